# vmplace: bare `make` explains the targets.
.DEFAULT_GOAL := help
.PHONY: help bench-agent setup venv check lint test test-unit test-native test-lab lab demo demo-full bench bench-ibs bench-kvm bench-policy \
	bench-sources bench-sweep test-cloud clean dashboard deb fuzz kvm-patches-check lint-ansible test-ansible kvm-selftests kvm-selftests-intel kvm-stress \
	qemu-patches-check promtool results
QUICK ?=
TRACES ?= ../shared/traces
# The tests start hundreds of processes that would each compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
RUNS ?= 10000
BENCH = bench/run $(BIN)/python

VENV := .venv
BIN := $(VENV)/bin
CPUS := $(shell nproc)
TOOLS := build/tools
STAMP := $(VENV)/.stamp
CLOUD := .venv-cloud
# What the targets need of a Debian 12 machine beyond git, make and python3; everything else lives in
# trees of the lab's own (docs/lab.md).
PACKAGES := ca-certificates debian-archive-keyring debootstrap gcc libc6-dev libvirt-dev patch pkg-config python3-dev python3-venv shellcheck
NATIVE := $(wildcard vmplace/native/*.c vmplace/native/*.h)
PYTHON_FILES := vmplace lab tests bench docs setup.py
PROSE := README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs ansible/README.md
DOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

help: ## show this
	@echo "vmplace $$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml): placement manager for KVM hosts"
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install the Debian packages that are missing (needs root)
	@missing=; for p in $(PACKAGES); do \
	  dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  echo "setup: installing$$missing"; \
	  [ "$$(id -u)" = 0 ] || { echo "setup: run as root: apt-get install$$missing" >&2; exit 1; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi

venv: $(STAMP) ## set up .venv with the C core built in place

# Exact versions, so that a new release of a package fails no test of an old commit.  The variable reaches
# what pip builds, too.
PINNED ?= constraints.txt
PIP_INSTALL = pip install --quiet --disable-pip-version-check
$(STAMP): pyproject.toml lab/pyproject.toml setup.py constraints.txt $(NATIVE) | setup
	@echo "venv: installing vmplace and its tools into $(VENV)"
	@python3 -m venv $(VENV)
	@PIP_CONSTRAINT=$(PINNED) $(BIN)/$(PIP_INSTALL) --editable '.[dev,libvirt,report]' --editable ./lab
	@touch $@

.PHONY: constraints
constraints: ## take the newest versions that Debian 12's Python can use into constraints.txt, and those of the cloud and the role
	@python3 -c 'import sys; sys.exit(sys.version_info >= (3, 11, 3) and "constraints: run this where python3 is 3.11.2")'
	@rm -rf $(VENV) $(CLOUD) $(ANSIBLE)
	@$(MAKE) --no-print-directory environments PINNED=/dev/null
	@for of in $(VENV):. $(CLOUD):tests/cloud $(ANSIBLE):ansible; do \
	  $${of%:*}/bin/pip freeze --all --exclude-editable | grep -vE '^(pip|setuptools==6)' >$${of#*:}/constraints.txt; done

lint: lint-files ## format, lint, types, shell scripts, prose and its links
	$(BIN)/pytest -q tests/unit/test_prose.py

# The unit tests have test_prose.py, too: what runs both asks for this.
LINTS := lint-format lint-types lint-shell lint-spelling lint-markdown lint-site
.PHONY: lint-files $(LINTS)
lint-files: venv
	@$(MAKE) --no-print-directory -j $(CPUS) $(LINTS)

$(LINTS): venv
lint-format:
	$(BIN)/ruff format --check $(PYTHON_FILES)
	$(BIN)/ruff check $(PYTHON_FILES)
lint-types:
	$(BIN)/mypy
lint-shell:
	git grep -lE '^#!.*\b(ba|da)?sh$$' -- ':!vmplace/interfaces/libvirt_hook.py' | xargs -r shellcheck
	@# To the shell all after the hook's "exit 0" is a here-document.
	shellcheck --exclude SC2317 vmplace/interfaces/libvirt_hook.py
lint-spelling:
	$(BIN)/codespell $(PROSE) vmplace lab bench debian libvirt-hooks kvm-patches/README qemu-patches/README
lint-markdown:
	$(BIN)/pymarkdown --config .pymarkdown.json scan --recurse $(PROSE)
lint-site:
	$(DOCS) --site-dir build/lint-site

.PHONY: docs pictures
docs: venv ## the documentation as a site that needs no server: build/site/index.html
	$(DOCS)
	@echo "docs: build/site/index.html"

pictures: venv ## draw the pictures of docs/how-it-works.md anew
	$(BIN)/python docs/pictures/draw.py

UNIT := --dist worksteal tests/unit
test-unit: venv promtool ## unit tests, on all CPUs: no root, no lab
	$(BIN)/pytest -n auto --maxprocesses 8 $(MARKED) $(UNIT)

test-native: venv ## tests of the C core, the meter and the payload
	$(BIN)/pytest tests/native --durations 10

FAULTS ?= 1000
.PHONY: faults
faults: venv ## 1,000 failures, kills and power cuts each at the calls that the journal makes (FAULTS=1000)
	FAULTS=$(FAULTS) $(BIN)/pytest tests/native/test_journal_faults.py

.PHONY: agent-faults
agent-faults: venv ## 10,000 seeds of things that go wrong under the agent, in virtual time, or what 3 minutes allow
	@$(BIN)/python -m tests.fuzz.agent_faults || { code=$$?; \
	  [ $$code = 5 ] || exit $$code; echo "agent-faults: the time was over before all seeds had run"; }

test-lab: venv lab ## tests in the emulated NUMA host (needs root)
	$(BIN)/pytest tests/lab $(MARKED) --ignore tests/lab/test_compute_node.py --durations 20

# Quick ones wait for processes more than they compute, so there are two for each CPU.
check: lint-files promtool ## everything that is quick: lint, and the unit tests that are
	$(BIN)/pytest -q -m 'not slow' -n $$((2 * $(CPUS))) --maxprocesses 16 $(UNIT)

fuzz: PACKAGES += clang libclang-rt-14-dev
fuzz: venv ## fuzzers of all that is read from outside, in Python and C, with limits of time and memory (RUNS=1000000)
	@PIP_CONSTRAINT=$(PINNED) $(BIN)/$(PIP_INSTALL) --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz.fuzz $(RUNS)
	@mkdir -p build/fuzz/found/perf_records
	clang -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -Ivmplace/native \
	  tests/native/fuzz_perf_records.c vmplace/native/perf_records.c -o build/fuzz/perf_records
	cd build/fuzz && ./perf_records -runs=$(RUNS) -max_len=300 -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 \
	  found/perf_records ../../tests/data/perf_records
	@mkdir -p build/fuzz/found/apart_requests
	clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -Ivmplace/native \
	  tests/native/fuzz_apart_requests.c vmplace/native/apart_requests.c -o build/fuzz/apart_requests
	cd build/fuzz && ./apart_requests -runs=$(RUNS) -max_len=4096 -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 found/apart_requests

# What is marked slow (pyproject.toml) is left to `make test-all`.
.PHONY: test-lab-quick test-slow
test-lab-quick:
	@$(MAKE) --no-print-directory test-lab MARKED="-m 'not slow'"
test-slow: ## the unit tests and tests in the emulated host that make test leaves out
	@$(MAKE) --no-print-directory test-unit MARKED="-m slow"
	@$(MAKE) --no-print-directory test-lab MARKED="-m slow"

# One after the other, as native and lab tests measure time; those that are quick come before the lab is built.
PARTS := environments check lint-ansible test-native lab test-lab-quick test-cloud
.PHONY: test-all
test-all: PARTS += test-slow agent-faults fuzz
test-all: test ## make test, what is slow, and fuzzers
test: ## lint, and tests that are quick: unit, native, lab, cloud (needs root; builds the lab first)
	@+began=$$(date +%s); number=0; for part in $(PARTS); do number=$$((number + 1)); \
	  echo "test: [$$(($$(date +%s) - began)) s] $$number of $(words $(PARTS)): make $$part"; \
	  $(MAKE) --no-print-directory $$part || exit; done; \
	echo "test: [$$(($$(date +%s) - began)) s] all $(words $(PARTS)) parts are well"

# Mostly downloads, so beside each other; but not .venv, which builds the C core in the same place as .venv-cloud.
.PHONY: environments
environments: venv
	@$(MAKE) --no-print-directory -j 3 $(ANSIBLE)/.stamp $(CLOUD)/.stamp promtool

lab: venv ## build the emulated NUMA host (kernel, trees, images; cached)
	$(BIN)/vmplace-lab build

kvm-patches-check: venv ## the KVM series applies, is clean, builds at every step (QUICK=--quick: touched directories)
	$(BIN)/vmplace-lab check-patches $(QUICK)

kvm-selftests: venv ## KVM's selftests agree on the stock and the patched kernel, the series' own pass (lab): kvm-patches/selftests.txt
	$(BIN)/vmplace-lab selftests --limit 60 --out kvm-patches/selftests.txt

kvm-stress: venv ## 10^6 light calls of the series' stress test in the emulated host: some three hours (estimated)
	$(BIN)/vmplace-lab selftests -k patched --only placement_stress --on n2-single --limit 36000 --stress-calls 1000000 --stress-light

kvm-selftests-intel: venv ## the series' own selftests on Intel's EPT, in Bochs
	$(BIN)/vmplace-lab selftests --on intel -k patched --only placement_ --limit 900

qemu-patches-check: venv ## the QEMU series applies, is clean, builds at every step
	$(BIN)/vmplace-lab check-qemu-patches

demo: venv ## vmplace beside kernel balancing, in the emulated host, two stories (STORY=restart: one of them); Error 1: a claim fails, Error 5: too slow to judge, Error 6: the lab cannot be built: build/demo
	@rm -rf build/demo && mkdir -p build/demo && $(BIN)/python -m bench.record > build/demo/record.json
	$(BIN)/vmplace-lab demo --out build/demo $(addprefix --story ,$(STORY))

.PHONY: demo-log
demo-log: RUNS = 20
demo-log: venv lab ## RUNS=20 further runs of the demo's first story, in turns on the idle machine and beside a busy loop, added to bench/results/demo_runs.json
	$(BIN)/python -m bench.demo_runs --runs $(RUNS)

.PHONY: scenario-log
scenario-log: RUNS = 1
scenario-log: venv lab ## RUNS=1 further runs of each scenario of the lab (SCENARIOS="a b": of these), every manager, added to bench/results/scenario_runs.json (hours)
	$(BIN)/python -m bench.scenario_runs $(SCENARIOS) --runs $(RUNS)

.PHONY: demo-status
demo-status: venv lab ## keep what `vmplace status` and `why` print of the demo's guests, in the emulated host: docs/results.md
	$(BIN)/python -m bench.bench_status --out build/bench/status.json
	$(BIN)/python -m bench.results_page build/bench/status.json

results: venv ## keep the last make demo, if there is one; render README's figures and picture, and docs/results.md
	$(BIN)/python -m bench.readme_results $(wildcard build/demo)
	$(BIN)/python -m bench.results_page

demo-full: venv ## both with all rivals, numad among them, and vmplace on a stock kernel (builds that, too): build/demo-full
	@rm -rf build/demo-full && mkdir -p build/demo-full && $(BIN)/python -m bench.record > build/demo-full/record.json
	$(BIN)/vmplace-lab demo --full --out build/demo-full

.PHONY: demo-recording
demo-recording: venv lab ## record anew, in the emulated host, what `vmplace demo` replays
	$(BIN)/python -m lab.demo_recording vmplace/interfaces/demo.vmptrace

bench: venv ## CPU and memory of sampling 16 GiB of guest, of page statistics for 1 TiB, of places, of 200 guests and who asks for them: build/bench
	@$(BENCH) "pages 1024" "sampling 16 --pages mapped" "places 4" "many 200" "control 200"

bench-kvm: venv lab ## costs of the patched KVM beside stock mechanisms, in the emulated host: build/bench/kvm.json
	@$(BENCH) kvm

.PHONY: bench-migration
bench-migration: venv lab ## live migrations between two libvirtds in the emulated host: build/bench/migration.json
	@$(BENCH) migration

.PHONY: bench-hook
bench-hook: venv ## how long libvirt waits for the hook, beside python3 -c pass: build/bench/hook.json
	@$(BENCH) "hook 1000"

bench-ibs: venv lab ## samples of IBS against the meter's exact counts, their cost and use: build/bench/ibs.json
	@$(BENCH) ibs

bench-sources: venv ## what each source of page statistics adds, on a few traces (TRACES=folder): build/bench/sources.json
	@$(BENCH) "sources --traces $(TRACES)"

bench-agent: venv ## what ships does no harm: the agent in virtual time on recorded traces (TRACES=folder)
	$(BIN)/python -m bench.bench_agent --traces $(TRACES) --windows 14

bench-policy: venv ## all policies on recorded traces (TRACES=folder), against an oracle: build/bench/policy.json
	@$(BENCH) "weighers --traces $(TRACES)" decision hostile "policy --traces $(TRACES)"

bench-sweep: $(CLOUD)/.stamp ## speed-up of a sweep, and the scheduler's work per task (TRACES=folder): build/bench/sweep.json
	@bench/run $(CLOUD)/bin/python "sweep --traces $(TRACES)"

# What runs against the services of clouds has an environment of its own: nova alone has 100 dependencies.
$(CLOUD)/.stamp: PINNED = tests/cloud/constraints.txt
$(CLOUD)/.stamp: pyproject.toml tests/cloud/requirements.txt tests/cloud/constraints.txt setup.py $(NATIVE) | setup
	@echo "cloud: installing the services that the cloud tests talk to into $(CLOUD)"
	@python3 -m venv $(CLOUD)
	@PIP_CONSTRAINT=$(PINNED) $(CLOUD)/bin/$(PIP_INSTALL) --editable '.[fleet,kube,metrics,openstack]' -r tests/cloud/requirements.txt
	@touch $@

test-cloud: $(CLOUD)/.stamp promtool ## sweeps, and what speaks to OpenStack and Kubernetes, against the real services
	$(CLOUD)/bin/pytest tests/fleet tests/cloud --ignore tests/cloud/test_watcher.py --ignore tests/cloud/test_keystone.py
# Nova and Watcher define the same settings, so they cannot be in one process.
	$(CLOUD)/bin/pytest tests/cloud/test_watcher.py

.PHONY: test-keystone
test-keystone: $(CLOUD)/.stamp ## tokens that expire, wrong passwords and outages, against a real Keystone and Placement (minutes)
	$(CLOUD)/bin/pytest tests/cloud/test_keystone.py

.PHONY: test-kube
test-kube: $(CLOUD)/.stamp ## annotations, hooks and manifests for KubeVirt, against a real API server (needs root, and Go; builds it first)
	$(CLOUD)/bin/python -c 'from lab.control_plane import control_plane; from lab.progress import Progress; control_plane(Progress())'
	$(CLOUD)/bin/pytest tests/kube

ANSIBLE := .venv-ansible
ANSIBLE_BIN := $(CURDIR)/$(ANSIBLE)/bin
$(ANSIBLE)/.stamp: PINNED = ansible/constraints.txt
$(ANSIBLE)/.stamp: ansible/requirements.txt ansible/constraints.txt | setup
	@echo "ansible: installing ansible-lint and molecule into $(ANSIBLE)"
	@python3 -m venv $(ANSIBLE)
	@PIP_CONSTRAINT=$(PINNED) $(ANSIBLE_BIN)/$(PIP_INSTALL) -r ansible/requirements.txt
	@touch $@

# The collection's way into a booted tree comes with the package ansible, of which nothing else is wanted.
$(ANSIBLE)/collections: $(ANSIBLE)/.stamp
	@$(ANSIBLE_BIN)/pip download --quiet --disable-pip-version-check --no-deps -d $(ANSIBLE)/wheel 'ansible==12.*'
	@mkdir -p $@ && cd $@ && python3 -c "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); \
	  z.extractall(members=[n for n in z.namelist() if n.startswith('ansible_collections/community/docker/')])" ../wheel/*.whl
	@rm -rf $(ANSIBLE)/wheel

lint-ansible: $(ANSIBLE)/.stamp ## the role, by ansible-lint's profile for production
	cd ansible && PATH=$(ANSIBLE_BIN):$$PATH ansible-lint -q --nocolor

test-ansible: $(ANSIBLE)/collections deb ## the role on a booted Debian 13 tree: converge, idempotence, verify, removal (needs root)
	@mkdir -p build/molecule
	cd ansible/roles/vmplace && PATH=$(ANSIBLE_BIN):$$PATH ANSIBLE_ROLES_PATH=$(CURDIR)/ansible/roles ANSIBLE_COLLECTIONS_PATH=$(CURDIR)/$(ANSIBLE)/collections \
	  VMPLACE_DEB=$$(ls $(CURDIR)/build/deb/vmplace_*.deb) VMPLACE_MOLECULE=$(CURDIR)/build/molecule \
	  VMPLACE_TREE=$$($(CURDIR)/$(BIN)/vmplace-lab tree managed-host) molecule test

.PHONY: test-ansible-lab
test-ansible-lab: $(ANSIBLE)/.stamp deb lab ## the role on the emulated host, where the agent works: the same playbooks (needs root)
	$(BIN)/pytest tests/lab/test_ansible_role.py

deb: venv ## the Debian packages vmplace and vmplace-lab (for Debian 13), built and checked by Debian's tools: build/deb
	$(BIN)/vmplace-lab deb --out build/deb

.PHONY: test-package
test-package: deb lab ## a new user's path in the emulated host: package, first policy, why, metrics, undo, removal (needs root)
	$(BIN)/pytest tests/lab/test_new_user.py

.PHONY: test-compute-node
test-compute-node: venv lab ## nova-compute in the emulated host boots a guest that the agent places; the rest of Nova outside (needs root)
	$(BIN)/pytest tests/lab/test_compute_node.py

.PHONY: deb-kernel
deb-kernel: venv ## the patched kernel as Debian packages, beside the stock kernel, never the default unasked (hours; CONFIG=file): build/deb-kernel
	$(BIN)/vmplace-lab kernel-deb $(if $(CONFIG),--config $(CONFIG)) --out build/deb-kernel

.PHONY: sdist-check
sdist-check: venv ## the source distribution builds, and its unit tests pass in an environment of its own
	@rm -rf build/sdist
	$(BIN)/python setup.py -q sdist -d build/sdist
	tar -xzf build/sdist/vmplace-*.tar.gz -C build/sdist
	$(MAKE) -C build/sdist/vmplace-*/ test-unit

dashboard: venv ## write the Grafana dashboard anew from vmplace/interfaces/prometheus/dashboard.py
	$(BIN)/python -m vmplace.interfaces.prometheus.dashboard

.PHONY: dashboard-types
dashboard-types: PACKAGES += nodejs npm
dashboard-types: setup ## the shipped dashboards have the types of Grafana's own schema (TypeScript)
	tests/dashboards/check_types.sh build/dashboard-types

# Unpacked: the package would start a server of its own.
promtool: $(TOOLS)/prometheus ## unpack Prometheus and its checker of metrics and rules, for the unit tests
$(TOOLS)/prometheus: | setup
	@echo "promtool: unpacking it, and Prometheus, from Debian's package"
	@mkdir -p $(TOOLS)/deb && cd $(TOOLS)/deb && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb .
	@mv $(TOOLS)/deb/usr/bin/promtool $(TOOLS)/deb/usr/bin/prometheus $(TOOLS) && rm -rf $(TOOLS)/deb && touch $@

clean: ## remove what was built here (the lab's cache stays; before it, vmplace lab clean --all empties that)
	rm -rf build lab/build .venv vmplace/native/*.so vmplace/native/vmplace-apart *.egg-info lab/*.egg-info
