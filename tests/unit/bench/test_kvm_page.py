"""The kept run of ``make bench-kvm`` is shown with a row a figure."""

from typing import Any

from bench.kvm_page import rendered


def wait(*by_size: float) -> dict[str, Any]:
    by_mib = dict(zip(("16", "128"), by_size, strict=True))
    figure = {"value": by_size[-1], "control": by_size[0], "ratio": None, "unit": "ms", "by_mib": by_mib}
    return figure | {"p99_by_mib": {"16": 0.05, "128": 1.25}}


def kept() -> dict[str, Any]:
    moved = {"value": 73221.6, "control": 32576.7, "ratio": 2.2477, "unit": "pages of 4 KiB/s"}
    waits = {
        "wait_mapped_close_slots_lock": wait(0.07, 3.49),
        "wait_mapped_harvest_mmu_lock": wait(0.0, 0.04),
        "wait_replicated_log_slots_lock": wait(19.3, 85.5),
    }
    return {"parts": {"moves-4k": {"figures": {"move_rate": moved}}, "holds": {"figures": waits}}}


def test_a_figure_stands_beside_its_control():
    assert "| move rate | 73,222 | 32,577 | 2.25 | pages of 4 KiB/s |" in list(rendered(kept()))


def test_a_ratio_has_its_spread_and_a_second_control_stands_beside_the_first():
    one = kept()
    one["parts"]["moves-4k"]["figures"]["move_rate"] |= {"spread": 0.516, "control_kernel": 0.25}
    row = "| move rate | 73,222 | 32,577; kernel balancing 0.25 | 2.25 (spread 0.516) | pages of 4 KiB/s |"
    assert row in list(rendered(one))


def test_waits_stand_by_size_and_short_ones_are_left_out():
    lines = list(rendered(kept()))
    assert "| close slots lock | 0.07 (0.05) | 3.49 (1.25) |" in lines
    assert "| log slots lock | 19.3 (0.05) | 85.5 (1.25) |" in lines
    assert not [line for line in lines if "harvest mmu lock" in line]


def test_a_run_of_before_has_the_longest_waits_alone():
    one = kept()
    del one["parts"]["holds"]["figures"]["wait_mapped_close_slots_lock"]["p99_by_mib"]
    assert "| close slots lock | 0.07 | 3.49 |" in list(rendered(one))


def test_every_figure_of_the_bench_is_explained():
    text = "\n".join(rendered(kept()))
    assert all(f"* `{name}`: " in text for name in ("harvest_*", "move_*", "wait_*", "written_table_*"))
