"""Does the kernel get the options that were asked for?"""

from vmplace.lab.kernel import refused_options, wanted_options


def test_an_option_that_kconfig_drops_is_noticed() -> None:
    wanted = wanted_options("# note\nCONFIG_NUMA=y\nCONFIG_VT=n\nCONFIG_KSM=y\n")
    config = "CONFIG_NUMA=y\nCONFIG_VT=y\n# CONFIG_KSM is not set\n"
    assert refused_options(wanted, config) == ["CONFIG_VT=n", "CONFIG_KSM=y"]
