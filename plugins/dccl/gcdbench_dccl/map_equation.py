"""Communities of a directed graph by the two-level map equation: a partition is good if it makes the path of a random
walker short to write down.

Written from the definition. Visit rates come from a walk that jumps with probability 0.15 to a row in proportion to
what leaves it; jumps are not written down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gcdbench_dccl.graph import Graph, Ints

Floats = NDArray[np.float64]
STAY = 0.85
"""Probability with which the walker follows a link."""
SMALLEST_GAIN = 1e-10
EFFORT = 200_000
"""Links of all searches together, each of which may end elsewhere; a large graph is searched once."""


def _sums(place: Ints, values: Floats, count: int) -> Floats:
    """(count,) sums of the values at each place."""
    return np.asarray(np.bincount(place, weights=values, minlength=count), dtype=np.float64)


def plogp(x: Floats) -> Floats:
    """x log2 x, zero at zero."""
    return np.asarray(x * np.log2(np.where(x > 0, x, 1.0)))


@dataclass(frozen=True)
class Flow:
    """How often the walker takes each link and enters each row."""

    source: Ints
    target: Ints
    link: Floats
    row: Floats

    @classmethod
    def of(cls, graph: Graph, rounds: int = 1000, tolerance: float = 1e-15) -> Flow:
        """The stationary walk."""
        out = _sums(graph.source, graph.weight, graph.rows)
        jump = out / max(out.sum(), 1e-300)
        share = graph.weight / out[graph.source]
        dead = out == 0
        visits = jump.copy()
        for _ in range(rounds):
            moved = _sums(graph.target, visits[graph.source] * share, graph.rows)
            after = STAY * moved + (1 - STAY + STAY * visits[dead].sum()) * jump
            after /= max(after.sum(), 1e-300)
            change = np.abs(after - visits).sum()
            visits = after
            if change < tolerance:
                break
        link = visits[graph.source] * share
        link = link / max(link.sum(), 1e-300)
        row = _sums(graph.target, link, graph.rows)
        return cls(graph.source, graph.target, link, row)

    def joined(self, module: Ints) -> Flow:
        """The flow between modules; what stays within one is left out of the links."""
        count = int(module.max(initial=-1)) + 1
        source, target = module[self.source], module[self.target]
        between = source != target
        key = source[between] * count + target[between]
        pairs, where = np.unique(key, return_inverse=True)
        link = _sums(where, self.link[between], len(pairs))
        row = _sums(module, self.row, count)
        return Flow(pairs // max(count, 1), pairs % max(count, 1), link, row)


def code_length(flow: Flow, module: Ints) -> float:
    """Bits per step of the walker under a partition; rows in no module (-1) are not in the graph."""
    count = int(module.max(initial=-1)) + 1
    source, target = module[flow.source], module[flow.target]
    between = source != target
    leaves = _sums(source[between], flow.link[between], count)
    enters = _sums(target[between], flow.link[between], count)
    inside = module >= 0
    within = _sums(module[inside], flow.row[inside], count)
    total = plogp(enters.sum(keepdims=True))[0] - plogp(enters).sum() - plogp(leaves).sum()
    return float(total + plogp(leaves + within).sum() - plogp(flow.row).sum())


def communities(flow: Flow, generator: torch.Generator, start: Ints | None = None) -> Ints:
    """(rows,) module of each row: the best of some searches, as many as take about a second."""
    if start is not None:
        return _search(flow, _taken_apart(flow, _in_order(start), generator), generator)
    searches = max(1, min(10, EFFORT // max(1, len(flow.link))))
    found = [_search(flow, np.arange(len(flow.row)), generator) for _ in range(searches)]
    return min(found, key=lambda module: code_length(flow, module))


def _search(flow: Flow, module: Ints, generator: torch.Generator) -> Ints:
    """Rows move to where the code gets shortest, then modules do, until nothing moves; then single rows again, as long
    as that shortens the code."""
    module = _merged(flow, _in_order(_settle(flow, module, generator)), generator)
    bits = code_length(flow, module)
    while True:
        again = _merged(flow, _in_order(_settle(flow, module, generator)), generator)
        fewer = code_length(flow, again)
        if fewer > bits - SMALLEST_GAIN:
            return module
        module, bits = again, fewer


def _taken_apart(flow: Flow, module: Ints, generator: torch.Generator) -> Ints:
    """Every module settled anew from single rows, by the links within it alone: rows that should part have parted."""
    within = module[flow.source] == module[flow.target]
    inner = Flow(flow.source[within], flow.target[within], flow.link[within], flow.row)
    return _in_order(_settle(inner, np.arange(len(flow.row)), generator))


def _merged(flow: Flow, module: Ints, generator: torch.Generator) -> Ints:
    """Modules move as rows did, again and again."""
    while True:
        coarse = flow.joined(module)
        moved = _in_order(_settle(coarse, np.arange(len(coarse.row)), generator))
        if int(moved.max(initial=-1)) + 1 == len(coarse.row):
            return module
        module = _in_order(moved[module])


def _in_order(module: Ints) -> Ints:
    """Numbered without gaps, by the first row."""
    _, first, where = np.unique(module, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return np.asarray(number[where])


def _settle(flow: Flow, module: Ints, generator: torch.Generator) -> Ints:
    """Units move one at a time, in random order, until none does."""
    state = _Modules(flow, module)
    units = len(flow.row)
    waiting = [True] * units
    while any(waiting):
        for unit in torch.randperm(units, generator=generator).tolist():
            if waiting[unit]:
                waiting[unit] = False
                if state.move(unit):  # who is linked with it may want to follow
                    for other, _ in state.linked[unit]:
                        waiting[other] = True
    return np.array(state.module, dtype=np.int64)


def _h(x: float) -> float:
    return x * math.log2(x) if x > 0 else 0.0


class _Modules:
    """A partition that units leave and join. Plain numbers: one move touches a handful of them."""

    def __init__(self, flow: Flow, module: Ints) -> None:
        units, count = len(flow.row), int(module.max(initial=-1)) + 1
        apart = flow.source != flow.target
        source, target = flow.source[apart], flow.target[apart]
        link = flow.link[apart]
        self.module: list[int] = module.tolist()
        self.row: list[float] = flow.row.tolist()
        self.out_all = _sums(source, link, units).tolist()
        self.in_all = _sums(target, link, units).tolist()
        self.linked: list[list[tuple[int, tuple[float, float]]]] = _both_ways(units, source, target, link)
        between = module[source] != module[target]
        self.leaves = _sums(module[source[between]], link[between], count).tolist()
        self.enters = _sums(module[target[between]], link[between], count).tolist()
        self.within = _sums(module, flow.row, count).tolist()
        self.total = sum(self.enters)

    def move(self, unit: int) -> bool:
        """Move a unit to the neighbouring module that shortens the code most; whether it moved."""
        own = self.module[unit]
        out_to: dict[int, float] = {own: 0.0}
        in_from: dict[int, float] = {own: 0.0}
        for other, (out, back) in self.linked[unit]:
            there = self.module[other]
            out_to[there] = out_to.get(there, 0.0) + out
            in_from[there] = in_from.get(there, 0.0) + back
        if len(out_to) == 1:
            return False
        out_all, in_all, row = self.out_all[unit], self.in_all[unit], self.row[unit]
        leaves = max(0.0, self.leaves[own] - (out_all - out_to[own]) + in_from[own])
        enters = max(0.0, self.enters[own] - (in_all - in_from[own]) + out_to[own])
        within = max(0.0, self.within[own] - row)
        left = self._terms(self.leaves[own], self.enters[own], self.within[own])
        base = self._terms(leaves, enters, within) - left
        best, gain = own, -SMALLEST_GAIN
        chosen = (0.0, 0.0)
        for there, out in out_to.items():
            if there == own:
                continue
            new_leaves = max(0.0, self.leaves[there] + (out_all - out) - in_from[there])
            new_enters = max(0.0, self.enters[there] + (in_all - in_from[there]) - out)
            total = self.total + (enters - self.enters[own]) + (new_enters - self.enters[there])
            change = _h(max(0.0, total)) - _h(self.total) + base
            change += self._terms(new_leaves, new_enters, self.within[there] + row)
            change -= self._terms(self.leaves[there], self.enters[there], self.within[there])
            if change < gain:
                best, gain, chosen = there, change, (new_leaves, new_enters)
        if best == own:
            return False
        self.total = max(0.0, self.total + (enters - self.enters[own]) + (chosen[1] - self.enters[best]))
        self.leaves[own], self.enters[own], self.within[own] = leaves, enters, within
        self.leaves[best], self.enters[best] = chosen
        self.within[best] += row
        self.module[unit] = best
        return True

    @staticmethod
    def _terms(leaves: float, enters: float, within: float) -> float:
        """What a module adds to the code length."""
        return _h(leaves + within) - _h(leaves) - _h(enters)


def _both_ways(units: int, source: Ints, target: Ints, link: Floats) -> list[list[tuple[int, tuple[float, float]]]]:
    """For each unit its partners with the flow to and from them."""
    found: list[dict[int, tuple[float, float]]] = [{} for _ in range(units)]
    triples: Iterable[tuple[int, int, float]] = zip(source.tolist(), target.tolist(), link.tolist(), strict=True)
    for a, b, f in triples:
        out, back = found[a].get(b, (0.0, 0.0))
        found[a][b] = (out + f, back)
        out, back = found[b].get(a, (0.0, 0.0))
        found[b][a] = (out, back + f)
    return [list(partners.items()) for partners in found]
