"""By which links do accesses get from one node to another?  By the fewest."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Way:
    """A connection of two nodes (indexes); ``directed``: from the first one to the second alone."""

    ends: tuple[int, int]
    directed: bool = False


def route_shares(count: int, ways: Sequence[Way]) -> Shares:
    """Return which share of the accesses from node k to node j passes each way [N, N, L].

    Equally short routes share them evenly.  Where no route leads, nothing passes.

    Example: in a triangle without one side accesses pass two ways.

    >>> route_shares(3, [Way((0, 1)), Way((1, 2))])[0].tolist()
    [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    """
    passes, from_node = np.zeros((count, count, len(ways))), _by_node(count, ways)
    for start in range(count):
        passes[start] = _from(start, from_node, len(ways))
    return passes


def _from(start: int, from_node: list[list[tuple[int, int]]], ways: int) -> Shares:
    """Return, for each node, the share of accesses from ``start`` that passes each way."""
    passes = np.zeros((len(from_node), ways))
    reached, frontier = {start}, [start]
    while frontier:
        arrivals: dict[int, list[Shares]] = {}
        for here in frontier:
            for number, there in from_node[here]:
                if there not in reached:
                    one = passes[here].copy()
                    one[number] += 1
                    arrivals.setdefault(there, []).append(one)
        for there, some in arrivals.items():
            passes[there] = np.mean(some, axis=0)
        frontier = list(arrivals)
        reached.update(frontier)
    return passes


def _by_node(count: int, ways: Sequence[Way]) -> list[list[tuple[int, int]]]:
    """Return for each node (number of the way, node at its other end): forth, then back."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for number, way in enumerate(ways):
        found[way.ends[0]].append((number, way.ends[1]))
    for number, way in enumerate(ways):
        if not way.directed:
            found[way.ends[1]].append((number, way.ends[0]))
    return found
