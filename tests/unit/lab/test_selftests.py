"""How are the kernel's selftests judged?"""

import pytest

from lab.kernel import Flavour
from lab.selftests import (
    SelftestRun,
    parse_line,
    parse_lines,
    result_of,
    result_table,
    settled,
    what_is_wrong,
)


def run(flavour: Flavour, *complaints: str, **results: str) -> SelftestRun:
    named = {name.replace("__", "/"): word for name, word in results.items()}
    return SelftestRun(flavour, named, {}, complaints)


@pytest.mark.parametrize(
    ("code", "word"), [(0, "ok"), (4, "skip"), (124, "timeout"), (137, "timeout"), (254, "fail")]
)
def test_exit_codes_as_words(code: int, word: str) -> None:
    assert result_of(code) == word


def test_a_test_may_say_nothing() -> None:
    assert parse_line("x86_64/smm_test 0 ") == ("x86_64/smm_test", "0", "")
    assert parse_line("steal_time 4 1..0 # SKIP") == ("steal_time", "4", "1..0 # SKIP")


def test_progress_on_one_line_is_one_line() -> None:
    reported = (
        "max_guest_memory_test 137 \r3 vCPUs wait\r2 vCPUs wait\n# rseq_test: 7 calls\nrseq_test 0 fine\n"
    )
    assert parse_lines(reported) == [
        ("max_guest_memory_test", "137", "2 vCPUs wait"),
        ("rseq_test", "0", "fine"),
    ]


def test_the_kernels_own_tests_must_not_differ() -> None:
    runs = [
        run("stock", steal_time="ok", rseq_test="fail"),
        run("patched", steal_time="skip", rseq_test="fail"),
    ]
    assert what_is_wrong(runs) == ("steal_time differs: stock ok, patched skip",)


def test_the_tests_of_the_series_may_be_skipped_but_not_fail() -> None:
    stock, patched = run("stock", x86_64__placement_fd="skip"), run("patched", x86_64__placement_fd="ok")
    assert what_is_wrong([stock, patched]) == ()
    assert what_is_wrong([run("debug", x86_64__placement_fd="fail")]) == ("debug: x86_64/placement_fd: fail",)


def test_what_the_kernel_said_is_wrong_whatever_the_tests_say() -> None:
    assert what_is_wrong([run("debug", "BUG: KASAN: use-after-free in f")])


def test_the_table_has_a_column_for_each_kernel() -> None:
    table = result_table([run("stock", a="ok"), run("patched", a="fail", b="skip")]).splitlines()
    assert [line.split() for line in table] == [
        ["test", "stock", "patched"],
        ["a", "ok", "fail"],
        ["b", "-", "skip"],
    ]


def test_what_timed_out_on_one_kernel_alone_is_run_again() -> None:
    asked = []

    def once_more(only: str) -> list[SelftestRun]:
        asked.append(only)
        return [run("stock", slow="ok", here="ok"), run("patched", slow="ok", here="timeout")]

    runs = [
        run("stock", slow="timeout", never="timeout", here="ok", broken="fail"),
        run("patched", slow="ok", never="timeout", here="timeout", broken="ok"),
    ]
    stock, patched = settled(runs, once_more)
    assert asked == ["^(here|slow)$"]
    assert stock.results == {"slow": "ok", "never": "timeout", "here": "ok", "broken": "fail"}
    assert patched.results == {"slow": "ok", "never": "timeout", "here": "timeout", "broken": "ok"}


def test_nothing_is_run_again_where_all_is_reported() -> None:
    runs = [run("stock", one="ok"), run("patched", one="fail")]
    assert settled(runs, lambda only: runs[:0]) is runs
