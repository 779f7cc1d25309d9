"""vmplace doctor says what is there, what is not, and the cure."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.nobody import holds_for_nobody, needs_nobody
from tests.unit.sampling.damon_files import put, put_damon
from vmplace import native
from vmplace.interfaces import doctor
from vmplace.interfaces.cli import cli
from vmplace.interfaces.doctor import print_capabilities
from vmplace.sampling.registry import SENSORS
from vmplace.sampling.source_ibs import PMU
from vmplace.topology import capabilities
from vmplace.topology.capabilities import can_work, probe_host
from vmplace.topology.capability import Capability, Roots
from vmplace.topology.sampling_capabilities import probe_access_sampling

HOSTS = Path(__file__).parents[2] / "data/hosts"
NOWHERE = "test:///nowhere"


def probe(name: str, roots: Roots) -> Capability:
    return next(found for found in probe_host(roots, libvirt_uri=NOWHERE) if found.name == name)


def test_no_path_is_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "80")
    path = "/opt/vmplace/lib/python3.13/site-packages/vmplace/native/_native.abi3.so"
    print_capabilities([Capability("C core", True, f"loaded from {path}", needed=True)])
    assert path in capsys.readouterr().out.split()


@pytest.mark.parametrize("columns", ["1", "26", "27"])
def test_a_narrow_terminal_gets_longer_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
):
    monkeypatch.setenv("COLUMNS", columns)
    print_capabilities([Capability("C core", True, "loaded from a file", needed=True)])
    assert "loaded" in capsys.readouterr().out


def test_the_mark_of_damon_is_looked_for_beside_the_agents_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    looked: list[Roots] = []

    def probed(roots: Roots, **_: object) -> list[Capability]:
        looked.append(roots)
        return []

    (settings := tmp_path / "vmplace.toml").write_text(f'socket = "{tmp_path}/run/control.sock"\n')
    monkeypatch.setattr("vmplace.agent.config.DEFAULT_CONFIG", settings)
    monkeypatch.setattr(doctor, "probe_host", probed)
    assert CliRunner().invoke(cli, ["doctor"]).exit_code == 0
    settings.write_text("no settings\n")
    assert CliRunner().invoke(cli, ["doctor"]).exit_code == 1
    assert [one.run for one in looked] == [tmp_path / "run", Roots().run]


def test_four_nodes_can_be_placed_on_and_one_with_memory_cannot():
    assert probe("NUMA nodes", Roots(sys=HOSTS / "16amd64-4n8c")).answer is True
    lone = probe("NUMA nodes", Roots(sys=HOSTS / "8amd64-2n4c-memoryless"))
    assert lone.answer is False
    assert "node 1 has no memory" in lone.why
    # What pip installs has this command, and it says how the lab is got.
    assert lone.cure is not None and lone.cure.endswith(": vmplace lab boot")


def test_hmat_is_seen_where_firmware_has_it():
    assert probe("HMAT", Roots(sys=HOSTS / "24amd64-3n4c-cxl")).why == "bandwidth of node0, node1, node2"
    assert probe("HMAT", Roots(sys=HOSTS / "16amd64-4n8c")).answer is False


def test_a_host_without_kvm_has_no_placement_fd(tmp_path: Path) -> None:
    found = probe("KVM placement patch", Roots(dev=tmp_path))
    assert found.answer is False and "/kvm: No such file" in found.why


def test_the_meter_is_known_by_its_pci_id(tmp_path: Path):
    device = tmp_path / "bus/pci/devices/0000:00:04.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1af4\n")
    (device / "device").write_text("0x1110\n")
    assert probe("meter", Roots(sys=tmp_path)).answer is True
    (device / "device").write_text("0x1041\n")
    assert probe("meter", Roots(sys=tmp_path)).answer is False


@pytest.mark.parametrize(
    ("there", "by"),
    [
        ((), None),
        (("ibs",), "AMD IBS"),
        (("damon", "ibs"), "DAMON"),
        (("idle", "damon", "ibs"), "idle page tracking"),
    ],
)
def test_a_host_that_has_only_ibs_can_be_sampled_and_a_better_source_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], by: str | None
) -> None:
    """The order is that of source "auto"; the kernel of this machine need not have IBS."""
    monkeypatch.setattr(native, "perf_open", lambda *_: os.open(os.devnull, os.O_RDONLY))
    if "ibs" in there:
        put(tmp_path / PMU / "type", "11\n")
    if "damon" in there:
        put_damon(tmp_path)
    if "idle" in there:
        put(tmp_path / "kernel/mm/page_idle/bitmap", "")
    found = probe_access_sampling(Roots(sys=tmp_path, dev=tmp_path, run=tmp_path))
    assert (found.answer, found.why if found.answer else None) == (by is not None, by and f"by {by}")


def test_doctor_tries_the_sources_that_auto_tries_in_its_order(tmp_path: Path) -> None:
    """Where hint faults are, KVM has accessed bits, too (sampling/registry.py)."""
    names = {"kvm": "KVM placement patch", "idle": "idle page tracking", "damon": "DAMON", "ibs": "AMD IBS"}
    why = probe_access_sampling(Roots(sys=tmp_path, dev=tmp_path)).why
    tried = [one.partition(":")[0] for one in why.split("; ")]
    assert tried == [names[name] for name in SENSORS if name != "hints"]


@pytest.mark.parametrize("mode, is_away", [("0", True), ("1", False), ("2", True), ("3", False)])
def test_memory_tiering_is_in_nobodys_way(tmp_path: Path, mode: str, is_away: bool):
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/numa_balancing").write_text(f"{mode}\n")
    found = capabilities.probe_numa_balancing(Roots(proc=tmp_path))
    assert found.answer is is_away and f"is {mode}" in found.why


def test_an_empty_host_lacks_much_and_names_a_cure_each_time(tmp_path: Path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("CapEff:\t0000000000000000\n")
    found = probe_host(Roots(tmp_path, tmp_path, tmp_path), libvirt_uri=NOWHERE)
    assert not can_work(found)
    lacking = {capability.name for capability in found if not capability.answer}
    assert {"KVM", "access sampling", "pagemap", "move pages", "libvirt", "DAMON"} <= lacking
    # Only the emulated host has one, so nobody is advised to get it.
    assert {one.name for one in found if not one.answer and not one.cure} == {"meter"}


@pytest.mark.parametrize(
    ("top", "of_64", "why"),
    [
        ("always madvise [never]", "always [inherit] madvise never", "no other size is on"),
        ("always [madvise] never", "always [inherit] madvise never", "hugepages-64kB: inherit"),
        ("always madvise [never]", "always inherit [madvise] never", "hugepages-64kB: madvise"),
        ("[always] madvise never", "always inherit madvise [never]", "no other size is on"),
    ],
)
def test_folios_that_move_as_a_whole_though_small_are_reported(
    tmp_path: Path, top: str, of_64: str, why: str
) -> None:
    folder = tmp_path / "kernel/mm/transparent_hugepage"
    texts = {"": top, "hugepages-64kB": of_64, "hugepages-2048kB": "[always] inherit madvise never"}
    for name, text in texts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "enabled").write_text(f"{text}\n")
    found = probe("only 4 KiB and 2 MiB folios", Roots(sys=tmp_path))
    assert (found.why, found.answer) == (why, why == "no other size is on")


@needs_nobody
def test_without_root_frame_numbers_and_moves_are_refused():
    def refused() -> bool:
        found = {c.name: c for c in probe_host(libvirt_uri=NOWHERE)}
        both = [found[name].answer is False for name in ("pagemap", "move pages")]
        return all(both) and "CAP_SYS_NICE" in found["move pages"].why

    assert holds_for_nobody(refused)


@pytest.mark.parametrize("answer", [True, False])
def test_the_exit_code_tells_whether_the_agent_can_work(monkeypatch: pytest.MonkeyPatch, answer: bool):
    one = Capability("KVM", answer, "because", "cure", needed=True)
    monkeypatch.setattr("vmplace.interfaces.doctor.probe_host", lambda **_: [one])
    result = CliRunner().invoke(cli, ["doctor", "--json"])
    assert result.exit_code == (0 if answer else 1)
    assert json.loads(result.output)["can_work"] is answer


@pytest.mark.parametrize(
    ("text", "answer", "needed", "why"),
    [
        (None, True, True, "the defaults hold"),
        ('source = "idle"\n', True, True, "is right"),
        ('source = "bits"\n', False, True, "vmplace.toml:1:"),
        ("[defaults\n", False, True, "not valid TOML"),
        ("[guests.db1]\nnosuch = 1\n", False, False, "guests 'db1'"),
    ],
)
def test_settings_that_the_agent_refuses_are_reported_with_their_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, answer: bool, needed: bool, why: str
):
    if text is not None:
        (tmp_path / "vmplace.toml").write_text(text)
    monkeypatch.setattr("vmplace.agent.config.DEFAULT_CONFIG", tmp_path / "vmplace.toml")
    monkeypatch.setattr(doctor, "probe_host", lambda **_: [])
    result = CliRunner().invoke(cli, ["doctor", "--json"])
    (found,) = json.loads(result.output)["capabilities"]
    assert (found["name"], found["answer"], found["needed"]) == ("settings", answer, needed)
    assert why in found["why"] and answer is ("--check" not in str(found["cure"]))
    assert result.exit_code == (1 if needed and not answer else 0)


def test_settings_that_only_root_may_read_are_no_lack_of_the_agent(monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("vmplace.agent.config.read_bytes", refused)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(doctor, "probe_host", lambda **_: [])
    result = CliRunner().invoke(cli, ["doctor", "--json"])
    (found,) = json.loads(result.output)["capabilities"]
    assert (found["answer"], found["needed"], found["cure"]) == (None, False, "run it as root")
    assert result.exit_code == 0


def test_the_table_shows_brackets_of_names_as_they_are(monkeypatch: pytest.MonkeyPatch):
    one = Capability("KVM", False, "anon_inode:[kvm-gmem]", None, needed=True)
    monkeypatch.setattr("vmplace.interfaces.doctor.probe_host", lambda **_: [one])
    output = CliRunner().invoke(cli, ["doctor"]).output
    assert "anon_inode:[kvm-gmem]" in output
    assert "cannot work here; it lacks: KVM" in output


def test_every_probe_runs_here():
    names = [capability.name for capability in probe_host(libvirt_uri=NOWHERE)]
    assert len(names) == len(set(names)) == len(capabilities.PROBES) + 1


def test_people_read_groups_that_fit_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_capabilities(
        [
            Capability("KVM", True, "/dev/kvm is there", needed=True),
            Capability("pagemap", False, "hides frame numbers " * 5, needed=True, cure="run it as root"),
            Capability("HMAT", False, "firmware tells no bandwidth", cure="distances are used instead"),
            Capability("transparent huge pages", True, "madvise"),
            Capability("hugetlb pools", False, "all are empty"),
        ]
    )
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    found = [line.strip() for line in printed.splitlines()]
    titles = [found.index(title) for title in ("Needed", "Also there", "Better with")]
    assert titles == sorted(titles)
    assert "-> run it as root" in found and "hugetlb" not in printed
    assert found[-1] == "The agent cannot work here; it lacks: pagemap."
