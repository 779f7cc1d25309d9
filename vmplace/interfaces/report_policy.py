"""How much of the oracle's gain does each policy reach?  From the table that the policy bench writes."""

from pathlib import Path

import msgspec
import numpy as np

from vmplace.errors import OutsideError, VmplaceError
from vmplace.interfaces.report_page import Section, Table, new_figure, number, svg_of
from vmplace.interfaces.traffic_picture import FAINT, INK
from vmplace.outside import parse_json, printable

MAX_CELLS = 4000
"""A larger picture than this many cells would be unreadable; the table tells all the same."""
LONGEST_NAME = 160
LABEL_INCHES = 0.07
"""What a letter of a name takes beside the map."""


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the simulator; shares are None where the oracle gains nothing."""

    host: str
    mix: str
    policy: str
    source: str
    run_time_s: float
    lar: float | None = None
    mc_imbalance: float | None = None
    oracle_share: float | None = None
    worst_guest_slowdown: float | None = None

    def __post_init__(self) -> None:
        """Make the names printable: they are drawn."""
        for name in ("host", "mix", "policy", "source"):
            msgspec.structs.force_setattr(self, name, printable(getattr(self, name), LONGEST_NAME))


class PolicyFile(msgspec.Struct, frozen=True):
    """The bench's file; it may hold more than this."""

    rows: tuple[PolicyRow, ...]


def parse_policy_table(content: bytes, path: Path) -> PolicyFile:
    """Return the table; raises VmplaceError for JSON of another shape, or without a row."""
    try:
        table = parse_json(content, PolicyFile)
    except OutsideError as err:
        raise VmplaceError(f"{path} is no table of policies: {err}", hint="make bench-policy") from err
    if not table.rows:
        raise VmplaceError(f"{path} holds no run", hint="make bench-policy")
    return table


def policy_sections(table: PolicyFile) -> list[Section]:
    """Return one part per source: the picture by mix and policy, and a table by policy."""
    sources = list(dict.fromkeys(row.source for row in table.rows))
    return [
        _source_section(source, [row for row in table.rows if row.source == source]) for source in sources
    ]


def _source_section(source: str, rows: list[PolicyRow]) -> Section:
    note = "1 is the oracle, 0 is what doing nothing reaches; below 0 is slower than that"
    shown = [row for row in rows if row.oracle_share is not None and row.policy not in {"none", "oracle"}]
    svg = _shares(shown) if shown else ""
    return Section(f"Share of the oracle's gain, source {source}", note, svg, (_summary(rows),))


def _shares(rows: list[PolicyRow]) -> str:
    """Draw a map: a row per trace or mix and host, a column per policy."""
    mixes = list(dict.fromkeys(f"{row.mix} on {row.host}" for row in rows))
    policies = list(dict.fromkeys(row.policy for row in rows))
    if len(mixes) * len(policies) > MAX_CELLS:
        return ""
    shares = np.full((len(mixes), len(policies)), np.nan)
    for row in rows:
        if row.oracle_share is not None:
            shares[mixes.index(f"{row.mix} on {row.host}"), policies.index(row.policy)] = row.oracle_share
    names = LABEL_INCHES * max(map(len, mixes))
    figure = new_figure(1.6 + names + 0.9 * len(policies), 1.6 + 0.27 * len(mixes))
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="RdYlGn", vmin=-0.25, vmax=1, aspect="auto")
    axes.set_xticks(range(len(policies)), policies, rotation=30, ha="right", color=INK)
    axes.set_yticks(range(len(mixes)), mixes, color=INK, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (i, j), share in np.ndenumerate(shares):
        if not np.isnan(share):
            # Dark ends of the scale need light text.
            ink = INK if 0.1 < share < 0.8 else "white"
            axes.text(j, i, f"{share:z.2f}", ha="center", va="center", fontsize=7, color=ink)
    figure.colorbar(image, ax=axes, extend="min", shrink=0.6).outline.set_edgecolor(FAINT)
    return svg_of(figure)


def _summary(rows: list[PolicyRow]) -> Table:
    reported = []
    for policy in dict.fromkeys(row.policy for row in rows):
        of = [row for row in rows if row.policy == policy]
        shares = [row.oracle_share for row in of if row.oracle_share is not None]
        slowest = [row.worst_guest_slowdown for row in of if row.worst_guest_slowdown is not None]
        mean = sum(shares) / len(shares) if shares else None
        worst = max(slowest) * 100 if slowest else None
        reported.append(
            (policy, str(len(of)), number(mean, 3), number(min(shares, default=None), 3), number(worst, 1))
        )
    headings = ("policy", "runs", "mean share", "least share", "worst guest: slower by %")
    return Table(headings, tuple(reported), "over all hosts and mixes")
