# vmplace: bare `make` explains the targets.
.DEFAULT_GOAL := help
.PHONY: help venv check test demo clean

VENV := .venv
STAMP := $(VENV)/.stamp
BIN := $(VENV)/bin

help: ## show this
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## set up the Python environment (.venv) with the C core built in place

$(STAMP): pyproject.toml setup.py $(wildcard vmplace/native/*.c vmplace/native/*.h)
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[lab,dev]'
	touch $@
