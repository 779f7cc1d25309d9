"""Tables of the agent's state for people, by rich.  Only commands that print tables import this."""

import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vmplace.interfaces.why_lines import expectation, vcpus_expectation

MIB = 1 << 20
LONGEST_NAME = 18
"""In tables of 80 columns; longer names are cut, and shown in full below."""
BLOCKS = " ▁▂▃▄▅▆▇█"
LEGEND = (
    "LAR: the share of accesses that stay on their vCPU's node.",
    "MC imbalance: of memory controllers, 0 if all serve alike.",
    "ms of latency: how much less all accesses together wait for memory, modelled.",
)
NODE_COLOURS = ("green", "yellow", "cyan", "magenta", "blue", "red", "bright_green", "bright_yellow")


WIDEST = 200
"""Columns where there is neither a terminal nor a wish."""


def console() -> Console:
    """Return where to print: as wide as COLUMNS says, or the terminal; without both, tables are not cut."""
    return Console(highlight=False, width=shutil.get_terminal_size((WIDEST, 0)).columns)


def mib(size_bytes: int) -> str:
    """Return bytes as MiB."""
    return f"{size_bytes / MIB:,.0f}"


def ratio(value: float | None) -> str:
    """Return a ratio, "?" where there is no answer."""
    return "?" if value is None else f"{value:.2f}"


def by_node(pages: Mapping[str, int] | None) -> str:
    """Return ``nid:MiB`` of each node that holds pages."""
    if pages is None:
        return "?"
    return "  ".join(f"{nid}:{mib(count * 4096)}" for nid, count in pages.items() if count) or "none"


def print_status(status: Mapping[str, Any]) -> None:
    """Print the agent's state: one line for the host, one for each guest."""
    out = console()
    rss = status["rss_bytes"]
    paused = ", [bold red]paused[/]" if status["paused"] else ""
    out.print(
        f"agent [bold]{status['version']}[/] pid {status['pid']}, source {status['source']}, policy "
        f"{status['policy']}{paused}: {status['windows']} windows, "
        f"{mib(status['moved_bytes'])} MiB moved, longest call {status['longest_move_call_ms']:.1f} ms, "
        f"estimated MC imbalance {ratio(status['mc_imbalance_estimate'])}; "
        f"cost {status['cpu_seconds']:.1f} CPU s, {'?' if rss is None else mib(rss)} MiB"
    )
    for note in status["notes"]:
        out.print(f"[yellow]note:[/] {escape(note)}")
    guests = sorted(status["guests"].items())
    if guests:
        out.print(_guest_table(guests))
    for name, guest in guests:
        if reasons := list(filter(None, [guest["problem"], *guest["reasons"]])):
            # Names are the guests' own to choose, and people paste commands.
            more = f"; and {len(reasons) - 1} more: vmplace why {shlex.quote(name)}"
            out.print(Text(f"{name}: {reasons[0]}{more if len(reasons) > 1 else ''}"))


def _guest_table(guests: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Return a table that fits 80 columns: sizes in MiB, the LAR by pages, and long names cut.

    A column more has the LAR by counters, where these tell of any guest.
    """
    are_counted = any(guest.get("counted_lar") is not None for _, guest in guests)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("guest", no_wrap=True, max_width=LONGEST_NAME)
    for name in ("mode", "state", "vCPUs on"):
        table.add_column(name, max_width=9)
    table.add_column("MiB by node", min_width=11)
    for name in (*(("LAR by\npages", "by\ncounters") if are_counted else ("LAR",)), "moved", "copies"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, guest in guests:
        table.add_row(
            Text(name, overflow="ellipsis"), guest["mode"], _state(guest["state"]),
            _listed(guest["vcpu_nids"]), by_node(guest["pages_by_node"]), ratio(guest["estimated_lar"]),
            *((ratio(guest.get("counted_lar")),) if are_counted else ()),
            mib(guest["moved_bytes"]), mib(guest["replica_bytes"]),
        )  # fmt: skip
    return table


def print_plan(plan: Mapping[str, Any]) -> None:
    """Print what would be moved, and what stays and why."""
    out = console()
    for note in plan.get("notes", ()):
        out.print(f"[bold red]{escape(note)}[/]")
    if plan["moves"]:
        out.print(_moves_table(plan["moves"]))
    for move in plan["vcpu_moves"]:
        _print_vcpu_move(out, move)
    for copy in plan["copies"]:
        _print_copies(out, copy)
    for drop in plan["collapses"]:
        size = mib(drop["pages_bytes"])
        out.print(f"  {escape(drop['guest'])}: no copies of {size} MiB: {escape(drop['reason'])}")
    for stay in plan["stays"]:
        out.print(f"  {escape(stay['guest'])}: {escape(stay['reason'])}")
    changed = {one["guest"] for part in ("moves", "copies", "collapses") for one in plan[part]}
    for name, weighing in plan.get("weighings", {}).items():
        if name in changed:
            out.print(f"  {escape(name)}: {expectation(weighing)}")


def _moves_table(moves: Iterable[Mapping[str, Any]]) -> Table:
    table = Table("guest", "MiB", "from node", "to node", "why")
    for move in moves:
        table.add_row(
            escape(move["guest"]), mib(move["moved_bytes"]), _bytes_by_node(move["from_bytes"]),
            _bytes_by_node(move["to_bytes"]), escape(move["reason"]),
        )  # fmt: skip
    return table


def _print_vcpu_move(out: Console, move: Mapping[str, Any]) -> None:
    vcpus = ", ".join(map(str, move["vcpu_ids"]))
    where = "back to their CPUs" if move["nid"] is None else f"to node {move['nid']}"
    out.print(f"  {escape(move['guest'])}: vCPUs {vcpus} {where}: {escape(move['reason'])}")
    if move["nid"] is not None:
        out.print(f"    {vcpus_expectation(move)}")


def _print_copies(out: Console, copy: Mapping[str, Any]) -> None:
    where = f"on nodes {', '.join(map(str, copy['nids']))}"
    saved = copy.get("saved_ns")
    effect = "" if saved is None else f", expected to save {saved / 1e6:.2f} ms of latency"
    out.print(
        f"  {escape(copy['guest'])}: copies of {mib(copy['pages_bytes'])} MiB {where}: "
        f"{escape(copy['reason'])}{effect}"
    )


def print_guest(shown: Mapping[str, Any]) -> None:
    """Print where a guest's memory and vCPUs are, and which of it is hot."""
    out = console()
    status = shown["status"]
    out.print(
        f"[bold]{escape(shown['name'])}[/] pid {status['pid']} ({status['origin']}), mode {status['mode']}, "
        f"{_state(status['state'])}; {shown['windows']} windows"
    )
    out.print(
        f"LAR by pages {ratio(status['estimated_lar'])}, by counters {ratio(status.get('counted_lar'))}; "
        f"{mib(status['moved_bytes'])} MiB moved, {mib(status['replica_bytes'])} MiB of copies"
    )
    out.print(
        f"expected LAR {ratio(status['expected_lar'])}; cycles an instruction takes, after / before: "
        f"{ratio(status['cost_ratio'])}"
    )
    for reason in filter(None, [status["problem"], *status["reasons"]]):
        out.print(f"  {escape(reason)}")
    if use := status["memory_use"]:
        out.print(memory_use_line(use))
    vcpus = Table("vCPU", "thread", "host CPUs", "cell")
    for vcpu in shown["vcpus"]:
        cell = "-" if vcpu["cell"] is None else str(vcpu["cell"])
        vcpus.add_row(str(vcpu["vcpu_id"]), str(vcpu["tid"]), cpulist(vcpu["cpus"]), cell)
    out.print(vcpus)
    out.print(_ram_table(shown))
    for strip in shown["strips"]:
        out.print(heat_line(strip))
    if shown["strips"]:
        out.print(_legend(shown["strips"]))


def memory_use_line(use: Mapping[str, Any]) -> str:
    """Return what samples tell of a guest's use of memory, as a line."""
    near, far, lost = (
        _cycles(use[name]) for name in ("local_latency", "remote_latency", "remote_wait_per_us")
    )
    return (
        f"  sampled: {use['dram_per_us']:.1f} DRAM accesses and {use['l1_per_us']:.1f} L1 hits a us, "
        f"LAR by samples {ratio(use['local_access_ratio'])}; a load takes {near} cycles from its own node, "
        f"{far} from others: its vCPUs wait {lost} cycles a us longer"
    )


def _cycles(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def _ram_table(shown: Mapping[str, Any]) -> Table:
    table = Table("RAM at", "MiB", "page size", "cell", "may move", "pages by node, MiB")
    pages = {strip["hva"]: strip["pages_by_node"] for strip in shown["strips"]}
    for ram in shown["ram"]:
        cell = "-" if ram["cell"] is None else str(ram["cell"])
        move = "yes" if ram["movability"] == "movable" else f"no: {ram['reason']}"
        size = f"{ram['page_size_bytes'] // 1024} KiB"
        at = f"{ram['hva']:#x}"
        table.add_row(at, mib(ram["npages"] * 4096), size, cell, escape(move), by_node(pages.get(ram["hva"])))
    return table


def heat_line(strip: Mapping[str, Any]) -> Text:
    """Return a range as blocks: height = heat, colour = node; "·" where nothing is present."""
    line = Text(f"{strip['hva']:#x} ")
    for heat, nid in zip(strip["heat"], strip["nid"], strict=True):
        if heat is None:
            line.append("·", "dim")
        else:
            # The lowest block, not a blank, for what is there but cold.
            line.append(BLOCKS[max(1, round(heat * 8))], NODE_COLOURS[nid % len(NODE_COLOURS)])
    return line


def _legend(strips: Iterable[Mapping[str, Any]]) -> Text:
    nids = sorted({nid for strip in strips for nid in strip["nid"] if nid is not None})
    line = Text("heat: ▁ cold … █ touched in each window; · not present; node ")
    for nid in nids:
        line.append(f" █ {nid}", NODE_COLOURS[nid % len(NODE_COLOURS)])
    return line


def print_rehearsal(result: Mapping[str, Any]) -> None:
    """Print what a policy would have done with a recording."""
    out = console()
    before, after = ratio(result["mc_imbalance_before"]), ratio(result["mc_imbalance_after"])
    # Guests may be sampled more often than plans are made.
    out.print(f"{result['windows']} plans; estimated MC imbalance {before} -> {after}")
    if result["decisions"]:
        out.print(f"{result['repeated']} of {result['decisions']} decisions were repeated to the page")
    table = Table("guest", "samples", "est. LAR before", "after", "would move, MiB")
    guests = sorted(result["guests"].items())
    for name, guest in guests:
        table.add_row(
            escape(name), str(guest["windows"]), ratio(guest["lar_before"]), ratio(guest["lar_after"]),
            mib(guest["moved_bytes"]),
        )  # fmt: skip
    out.print(table)
    for name, guest in guests:
        if guest["moved_bytes"]:
            out.print(Text(f"{name}: {_moved_in_sum(guest)}"))
    for line in LEGEND:
        out.print(Text(line))


def _moved_in_sum(guest: Mapping[str, Any]) -> str:
    """Return what a guest's moves would come to, and why: each one's own reason is in the JSON."""
    nids = cpulist(int(nid) for nid in guest["moved_bytes_by_nid"])
    why = list(guest["other_reasons"])
    if (saved_ns := guest["saved_ns"]) is not None:
        effect = "saves" if saved_ns >= 0 else "adds"
        why += ["nearer or less busy", f"{effect} {abs(saved_ns) / 1e6:,.1f} ms of latency"]
    node = "node" if nids.isdigit() else "nodes"
    return f"{mib(guest['moved_bytes'])} MiB to {node} {nids}: {'; '.join(why)}"


def cpulist(cpus: Iterable[int]) -> str:
    """Return CPUs as the kernel lists them: ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _bytes_by_node(sizes: Mapping[str, int]) -> str:
    return "  ".join(f"{nid}:{mib(size)}" for nid, size in sizes.items())


def _listed(nids: Iterable[int]) -> str:
    return ",".join(str(nid) for nid in nids) or "?"


def _state(state: str) -> str:
    colours = {"settled": "green", "moving": "yellow", "failed": "red", "held": "magenta"}
    return f"[{colours[state]}]{state}[/]" if state in colours else state
