"""Plots of a report. Each function returns a matplotlib figure; `figure.py` turns it into SVG, PDF or HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from gcdbench.report.figure import BASE, MARKERS, NEUTRAL, NOVEL, PALETTE, new_figure, styled
from gcdbench.report.outcome import Outcome

MAX_LEGEND = 20


@styled
def loss_terms(epochs: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Every term's mean per epoch."""
    names = list(dict.fromkeys(name for line in epochs for name in line.get("losses", {})))
    if not names:
        return None
    figure, (axes,) = new_figure(1)
    for number, name in enumerate(names):
        points = [(i, line["losses"][name]) for i, line in enumerate(epochs, 1) if name in line["losses"]]
        style = {"color": NEUTRAL, "linewidth": 2.2} if name == "total" else {"color": PALETTE[number % len(PALETTE)]}
        axes.plot(*zip(*points, strict=True), label=_label(name), **_marked(points, number), **style)
    _finish(axes, "epoch", "loss (terms before weighting)", legend=True)
    return figure


@styled
def curves(series: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> Figure | None:
    """Lines by name; points where a line has only one."""
    shown = {name: points for name, points in series.items() if points}
    if not shown:
        return None
    figure, (axes,) = new_figure(1)
    for number, (name, points) in enumerate(shown.items()):
        color = PALETTE[number % len(PALETTE)]
        axes.plot(*zip(*points, strict=True), label=_label(name), color=color, **_marked(points, number))
    _finish(axes, x, y, legend=True)
    return figure


@styled
def sweep(series: Mapping[str, Sequence[tuple[float, float, float]]], key: str) -> Figure | None:
    """Accuracies against a setting, with the spread over seeds as bars: (value, mean, standard deviation)."""
    shown = {name: points for name, points in series.items() if points}
    if not shown:
        return None
    figure, (axes,) = new_figure(1)
    for number, (name, points) in enumerate(shown.items()):
        x, mean, spread = (np.array(v, dtype=float) for v in zip(*sorted(points), strict=True))
        color = PALETTE[number % len(PALETTE)]
        axes.errorbar(x, mean, spread, label=name, color=color, marker=MARKERS[number % len(MARKERS)], capsize=3)
    _finish(axes, key, "percent", legend=True)
    return figure


@styled
def class_distribution(outcomes: Mapping[str, Outcome]) -> Figure | None:
    """Rows predicted for each class against the true number, classes sorted by size within base and novel."""
    known = {name: o for name, o in outcomes.items() if o.classes}
    if not known:
        return None
    figure, axes = new_figure(len(known), height=2.8)
    for (name, outcome), ax in zip(known.items(), axes, strict=True):
        base = sorted((c for c in outcome.classes if c.is_base), key=lambda c: -c.size)
        novel = sorted((c for c in outcome.classes if not c.is_base), key=lambda c: -c.size)
        ordered = [*base, *novel]
        at = np.arange(len(ordered))
        colors = [BASE if c.is_base else NOVEL for c in ordered]
        ax.bar(at, [c.predicted for c in ordered], color=colors, width=0.9, alpha=0.75)
        ax.step(at, [c.size for c in ordered], where="mid", color=NEUTRAL, linewidth=1.4, label="true")
        captions = []
        for side, members in (("base", base), ("novel", novel)):
            if members:
                gap = np.sqrt(np.mean([(c.predicted - c.size) ** 2 for c in members]))
                captions.append(f"{side}: RMSE {gap:.2f}, {sum(c.predicted for c in members):,} predicted")
        ax.set_title("\n".join((name, *captions)), fontsize=9)
        _finish(ax, "classes, base then novel, by size", "rows", legend=ax is axes[-1])
    return figure


@styled
def confusion(outcome: Outcome) -> Figure | None:
    """The 2 x 2 confusion of base and novel, in percent of the true side."""
    table = outcome.confusion
    if table is None:
        return None
    sides = ("base", "novel")
    figure, (axes,) = new_figure(1, width=3.4, height=3.0)
    counts = np.array([[table[row, column] for column in sides] for row in sides], dtype=float)
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.set(xlim=(-0.5, 1.5), ylim=(1.5, -0.5), aspect="equal")
    for i in range(2):
        for j in range(2):
            # See-through, so that text in the page's own colour can be read on light and dark pages.
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=BASE, alpha=0.7 * shares[i, j] / 100))
            text = f"{shares[i, j]:.1f} %\n{counts[i, j]:,.0f} rows"
            axes.text(j, i, text, ha="center", va="center", fontsize=9)
    axes.set_xticks([0, 1], ["base", "novel"])
    axes.set_yticks([0, 1], ["base", "novel"])
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    return figure


@styled
def confidence(outcomes: Mapping[str, Outcome]) -> Figure | None:
    """Histogram of the confidence, true base and novel rows apart where the truth is known."""
    known = {name: o for name, o in outcomes.items() if o.confidence is not None}
    if not known:
        return None
    figure, axes = new_figure(len(known), height=2.6)
    bins = np.linspace(0, 1, 26).tolist()
    for (name, outcome), ax in zip(known.items(), axes, strict=True):
        values = outcome.confidence
        assert values is not None
        if outcome.target is None:
            ax.hist(values, bins, color=BASE)
        else:
            is_base = outcome.target < outcome.num_base
            ax.hist(
                [values[is_base], values[~is_base]], bins, stacked=True, color=[BASE, NOVEL], label=["base", "novel"]
            )
        ax.set_title(f"{name}: mean {100 * float(values.mean()):.1f} %", fontsize=9)
        _finish(ax, "largest class probability", "rows", legend=outcome.target is not None and ax is axes[-1])
    return figure


@styled
def class_accuracy(outcome: Outcome) -> Figure | None:
    """Accuracy of every class, sorted within base and novel."""
    if not outcome.classes:
        return None
    figure, (axes,) = new_figure(1, height=2.8)
    at = 0
    for side, color in ((True, BASE), (False, NOVEL)):
        values = sorted((c.accuracy for c in outcome.classes if c.is_base is side and c.size), reverse=True)
        axes.bar(np.arange(at, at + len(values)), values, color=color, width=0.9, label="base" if side else "novel")
        at += len(values)
    axes.set_ylim(0, 100)
    _finish(axes, "classes, base then novel, by accuracy", "percent", legend=True)
    return figure


@styled
def maps(points: Mapping[str, np.ndarray], target: np.ndarray, names: Mapping[int, str], num_base: int) -> Figure:
    """Two-dimensional maps of features, coloured by class; circles are base, crosses novel."""
    figure, axes = new_figure(len(points), height=3.6)
    classes = np.unique(target)
    for (name, xy), ax in zip(points.items(), axes, strict=True):
        for number, cls in enumerate(classes):
            rows = target == cls
            marker = "o" if cls < num_base else "x"
            color = PALETTE[number % len(PALETTE)]
            ax.scatter(
                xy[rows, 0], xy[rows, 1], s=9, color=color, marker=marker, linewidths=0.8, label=_label(names[int(cls)])
            )
        ax.set_title(name, fontsize=9)
        ax.set_xticks([])
        ax.set_yticks([])
    if len(classes) <= MAX_LEGEND:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def _label(name: str) -> str:
    """A name in a legend; matplotlib would leave out one that begins with an underscore."""
    return f"\u200b{name}" if name.startswith("_") else name


def _marked(points: Sequence[Any], number: int) -> dict[str, Any]:
    """A marker where a line would not be seen."""
    return {"marker": MARKERS[number % len(MARKERS)]} if len(points) == 1 else {}


def _finish(axes: Axes, x: str, y: str, legend: bool) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if x == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if legend:
        handles, labels = axes.get_legend_handles_labels()
        figure = axes.get_figure(root=True)
        assert figure is not None
        # Below, in as many columns as the width has room for: a page on a phone is narrow.
        longest = max((len(label) for label in labels), default=1)
        columns = max(1, min(len(labels), 4, int(12 * figure.get_size_inches()[0] / (longest + 6))))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
