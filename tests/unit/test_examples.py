"""The worked examples of the hard parts are true: each module's docstring is run."""

import doctest
from importlib import import_module

import pytest

MODULES = ("model.credibility", "model.fusion", "policy.descent", "policy.guard", "sampling.block_rows")


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    done = doctest.testmod(import_module(f"vmplace.{name}"))
    assert done.attempted > 1 and done.failed == 0
