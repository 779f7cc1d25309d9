"""What did the patched KVM cost beside stock mechanisms?  Renders the kept run of ``make bench-kvm``."""

import ast
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SHORT_MS = 0.1
"""Waits that are shorter at every size have no row."""
TITLES = {
    "inside": "Harvests, roots, copies",
    "readings": "Early readings",
    "damon": "Beside DAMON",
    "speed-harvest": "A guest that is harvested",
    "speed-hints": "A guest with hint faults",
    "moves-4k": "Moves of small pages",
    "moves-2m": "Moves of huge pages",
    "holds": "Waits for locks",
    "lar": "Replicas",
    "written": "Replicas that the guest begins to write to",
}
Record = Mapping[str, Any]
Figure = Mapping[str, Any]


def rendered(kept: Record) -> Iterator[str]:
    """Yield the section's lines, but for its provenance."""
    yield "## The patched KVM beside stock mechanisms\n"
    yield (
        "*Counted and measured* in the emulated host by\n"
        "`python -m bench.bench_kvm` (`make bench-kvm`), one run. Controls are stock mechanisms in the same\n"
        "boot. Instructions are the meter's counts; of times only the ratios carry over to other machines.\n"
    )
    for part, reported in kept["parts"].items():
        yield f"### {TITLES.get(part, part)}\n"
        yield from (_waits if part == "holds" else _beside)(reported["figures"])
    yield "What they are:\n"
    for name, text in _explained():
        item = f"* `{name}`: {' '.join(text.replace('``', '`').split())}"
        yield textwrap.fill(item, 98, subsequent_indent="  ", break_on_hyphens=False)
    yield ""


def _beside(figures: Mapping[str, Figure]) -> Iterator[str]:
    yield "| figure | value | control | ratio | unit |\n|---|---|---|---|---|"
    for name, one in figures.items():
        numbers = [_number(one[key]) for key in ("value", "control", "ratio")]
        if "control_kernel" in one:
            numbers[1] += f"; kernel balancing {_number(one['control_kernel'])}"
        if "spread" in one:
            numbers[2] += f" (spread {_number(one['spread'])})"
        yield f"| {name.replace('_', ' ')} | {' | '.join(numbers)} | {one['unit']} |"
    yield ""


def _waits(figures: Mapping[str, Figure]) -> Iterator[str]:
    yield f"The longest, in ms, by MiB of the VM's memory; of less than {SHORT_MS} ms there is no row."
    yield "Of two rounds it is the one with the shorter longest wait; a discard has one round.  In brackets,"
    yield "where it was kept: what 99 of 100 waits of that round are below, which may be few.\n"
    for kind in ("mapped", "replicated"):
        some = {name: one for name, one in figures.items() if name.startswith(f"wait_{kind}_")}
        sizes = list(next(iter(some.values()))["by_mib"])
        yield f"| {kind} | {' | '.join(sizes)} |\n|{'---|' * (len(sizes) + 1)}"
        for name, one in some.items():
            if max(one["by_mib"].values()) >= SHORT_MS:
                waits = " | ".join(_with_most_below(one, mib) for mib in sizes)
                yield f"| {name.removeprefix(f'wait_{kind}_').replace('_', ' ')} | {waits} |"
        yield ""


def _with_most_below(one: Figure, mib: str) -> str:
    longest, most_below = one["by_mib"][mib], one.get("p99_by_mib")
    return f"{_number(longest)} ({_number(most_below[mib])})" if most_below else _number(longest)


def _explained() -> Iterator[tuple[str, str]]:
    """Yield the names of figures and what the bench's docstring says of them."""
    reported = ast.get_docstring(ast.parse((HERE / "bench_kvm.py").read_text())) or ""
    name, text = "", ""
    for line in reported.split("\n\n")[-1].splitlines():
        if not line.startswith(" "):
            if name:
                yield name, text
            name, text = line.split(maxsplit=1)
        else:
            text += f" {line.strip()}"
    yield name, text


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
