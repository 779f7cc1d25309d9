"""What does the console of the Intel machine say about the selftests?"""

import pytest

from lab.errors import LabError
from lab.selftests_intel import parse_console

FD, MOVE = "x86_64/placement_fd_test", "x86_64/placement_move_test"
CONSOLE = (
    "[    0.005635] [Firmware Bug]: TSC_DEADLINE disabled due to Errata",
    "ept: eptad Y",
    f"running: {FD}",
    f"result: {FD} 0 Random seed: 0x6b8b4567",
    f"running: {MOVE}",
    "said: ==== Test Assertion Failure ====",
    f"result: {MOVE} 254 KVM_RUN failed",
    "kernel: [    1.0] WARNING: CPU: 0 PID: 7 at arch/x86/kvm/mmu/mmu.c:1",
    "end:",
)


def without(word: str) -> list[str]:
    return [line for line in CONSOLE if not line.startswith(word)]


def test_results_and_what_the_kernel_said_are_read_from_the_console() -> None:
    run = parse_console("patched", (FD, MOVE), CONSOLE)
    assert run.results == {FD: "ok", MOVE: "fail"}
    assert run.said[MOVE] == "KVM_RUN failed"
    assert run.complaints == ("[    1.0] WARNING: CPU: 0 PID: 7 at arch/x86/kvm/mmu/mmu.c:1",)


def test_nodes_that_share_a_cache_are_no_news() -> None:
    lines = [*without("kernel"), "kernel: [    0.0] WARNING: CPU: 1 PID: 0 at topology_sane.isra.0+0x61/0x70"]
    assert parse_console("patched", (FD, MOVE), lines).complaints == ()


@pytest.mark.parametrize("lost", ["end", f"result: {MOVE}", "ept"])
def test_a_console_that_lacks_something_is_no_result(lost: str) -> None:
    with pytest.raises(LabError):
        parse_console("patched", (FD, MOVE), without(lost))


def test_a_result_of_page_tables_without_accessed_bits_is_none() -> None:
    with pytest.raises(LabError, match="accessed and dirty"):
        parse_console("patched", (FD, MOVE), ["ept: eptad N", *without("ept")])
