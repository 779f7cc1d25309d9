"""What was decided for a guest, expected of it and done: in words, line by line."""

from collections.abc import Iterator, Mapping
from typing import Any

MIB = 1 << 20
VCPUS, GATHER = "vcpus", "gather"
"""The way in which vCPUs are tied and nothing is carried (policy/options.py)."""
NOT_WEIGHED = "expected: not known: gain and price: nothing weighed them"
LEAST = 0.05
"""ms, or percent: less is printed as 0.0."""
NO_TRIAL = "cost since its memory moved: not known: no trial with counters is over"


def decided_lines(one: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a decision: what was moved of what was planned, why, and what else came of it."""
    outcome, planned = one["outcome"], one["planned_bytes"]
    if outcome:
        yield f"{outcome['moved'] * 4096 / MIB:,.1f} MiB moved of {planned / MIB:,.1f}"
    elif planned:
        yield f"{planned / MIB:,.1f} MiB planned"
    for reason in one["reasons"] or ["nothing to move"]:
        yield f"- {reason}"
    if (weighing := one.get("weighing")) or planned:
        yield f"- {expectation(weighing) if weighing else NOT_WEIGHED}"
    if (lar := one.get("expected_lar")) is not None:
        yield f"- expected: LAR {lar:.2f} once all of it is done"
    for vcpus in one.get("vcpus", ()):
        ids = ", ".join(map(str, vcpus["vcpu_ids"]))
        if vcpus["nid"] is None:
            yield f"- vCPUs {ids} may run where they did before"
        else:
            yield f"- vCPUs {ids} run on node {vcpus['nid']} now; {vcpus_expectation(vcpus)}"
    yield from _copies_lines(one)
    if outcome and (left := _not_moved(outcome)):
        yield f"- not moved, pages: {left}"


def _copies_lines(one: Mapping[str, Any]) -> Iterator[str]:
    if copies := one.get("copies"):
        made = f"- copies: {copies['replicated'] * 4096 / MIB:,.1f} MiB got some"
        counts = {"left": copies["left"]} | dict(copies["refused"])
        left = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        yield made + (f"; not copied, pages: {left}" if left else "")
    if dropped := one.get("dropped_bytes"):
        yield f"- copies: {dropped / MIB:,.1f} MiB have none any more"


def _not_moved(outcome: Mapping[str, Any]) -> str:
    names = ("already", "busy", "pinned", "gone", "vetoed", "left")
    counts = {name: outcome[name] for name in names} | dict(outcome["refused"])
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def expectation(weighing: Mapping[str, Any]) -> str:
    """Return what the plan expects of the way that it takes."""
    chosen, unknown = weighing["chosen"], weighing["unknown"]
    missing = f"not known: {unknown}" if unknown else ""
    if chosen is None:
        return f"expected: {missing}"
    of_time = " of its time" if chosen["saved_share"] is not None and chosen["saved_ns"] else ""
    known = f"expected: {effect_of(chosen)}{of_time} for {price_of(chosen)}"
    return f"{known}; {missing}" if missing else known


def vcpus_expectation(vcpus: Mapping[str, Any]) -> str:
    """Return what is expected of vCPUs that are tied to a node."""
    weighing = vcpus.get("weighing")
    if not weighing:
        return NOT_WEIGHED
    chosen = weighing["chosen"]
    is_gathered = chosen is not None and chosen["way"] == GATHER
    return f"{'with the memory that follows' if is_gathered else 'by itself'}, {expectation(weighing)}"


def effect_of(option: Mapping[str, Any]) -> str:
    """Return what a way saves: the share of the guest's time, or the time where no share is known."""
    share, saved_ms = option["saved_share"], option["saved_ns"] / 1e6
    if abs(saved_ms if share is None else 100 * share) < LEAST:
        return "saves nothing"
    size = f"{abs(saved_ms):,.1f} ms" if share is None else f"{abs(share):.1%}"
    return f"{'saves' if (saved_ms if share is None else share) >= 0 else 'adds'} {size}"


def price_of(option: Mapping[str, Any]) -> str:
    """Return what a way takes: time of the guest, and what is carried."""
    sizes = (("moved", "moved"), ("copied", "copied"), ("dropped", "of copies dropped"))
    carried = [f"{size / MIB:,.1f} MiB {words}" for key, words in sizes if (size := option[f"{key}_bytes"])]
    has_price = carried or option["way"] in (VCPUS, GATHER)
    return ", ".join([f"{option['price_ns'] / 1e6:,.1f} ms", *carried]) if has_price else "nothing"


def way_of(option: Mapping[str, Any]) -> str:
    """Return what a way is."""
    way: str = option["way"]
    return way if option["nid"] is None else f"all to node {option['nid']}"


def effect_lines(effect: Mapping[str, Any]) -> Iterator[str]:
    """Yield what came of all that was done for a guest."""
    refused = {reason: size for reason, size in effect["refused_bytes"].items() if size}
    left = ", ".join(f"{reason} {size / MIB:,.1f}" for reason, size in refused.items())
    yield f"moved: {effect['moved_bytes'] / MIB:,.1f} MiB; refused, MiB: {left or 'none'}"
    present, lost = (effect[key] / MIB for key in ("replica_bytes", "collapsed_bytes"))
    yield f"copies: {present:,.1f} MiB; pages that lost theirs: {lost:,.1f} MiB"
    yield f"vCPUs on nodes: {', '.join(map(str, effect['vcpu_nids'])) or 'not known'}"
    keys = ("estimated_lar", "counted_lar", "expected_lar")
    by_pages, by_counters, expected = (_ratio(effect.get(key)) for key in keys)
    yield f"LAR by pages: {by_pages}; the last plan that moved something expected: {expected}"
    yield f"LAR by counters: {by_counters}"
    cost = effect["cost_ratio"]
    yield NO_TRIAL if cost is None else f"cycles an instruction takes, after / before: {cost:.2f}"


def _ratio(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f}"
