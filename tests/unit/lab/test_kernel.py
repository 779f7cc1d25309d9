"""Does the kernel get the options that were asked for?"""

from pathlib import Path

import pytest

from lab.errors import LabError
from lab.kernel import (
    FLAVOUR_VARIABLE,
    FRAGMENT,
    chosen_flavour,
    config_fragment,
    refused_options,
    wanted_options,
)


def test_an_option_that_kconfig_drops_is_noticed() -> None:
    wanted = wanted_options("# note\nCONFIG_NUMA=y\nCONFIG_VT=n\nCONFIG_KSM=y\n")
    config = "CONFIG_NUMA=y\nCONFIG_VT=y\n# CONFIG_KSM is not set\n"
    assert refused_options(wanted, config) == ["CONFIG_VT=n", "CONFIG_KSM=y"]


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    (tmp_path / "series").write_text("0001-one.patch\n")
    (tmp_path / "lab.config").write_text("CONFIG_OF_THE_PATCHES=y\n")
    return tmp_path


def test_the_stock_kernel_is_asked_for_nothing_that_patches_add(patches: Path) -> None:
    assert config_fragment(patches, "stock") == FRAGMENT.read_text()
    assert config_fragment(patches, "patched").endswith("CONFIG_OF_THE_PATCHES=y\n")


def test_the_debug_kernel_has_the_last_word_on_an_option(patches: Path) -> None:
    assert wanted_options(config_fragment(patches))["CONFIG_SLUB_DEBUG"] == "n"
    wanted = wanted_options(config_fragment(patches, "debug"))
    assert wanted["CONFIG_SLUB_DEBUG"] == "y" and wanted["CONFIG_OF_THE_PATCHES"] == "y"


def test_an_unknown_flavour_is_reported_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLAVOUR_VARIABLE, "kasan")
    with pytest.raises(LabError) as err:
        chosen_flavour()
    assert "debug" in (err.value.hint or "")
