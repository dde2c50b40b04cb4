"""What a shell offers when Tab is pressed: plugins, recipes, runs and settings, without importing torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def plugins(kind: str, listed: bool = False) -> Complete:
    """Names of plugins; ``listed`` completes the last one of A,B,C."""

    def complete(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        from gcdbench import registry

        before, comma, last = begun.rpartition(",") if listed else ("", "", begun)
        if ":" in last and kind == "method":
            method, _, recipe = last.partition(":")
            return _items(
                (f"{before}{comma}{method}:{r}" for r in _recipes(method)), f"{before}{comma}{method}:{recipe}"
            )
        return [
            CompletionItem(f"{before}{comma}{p.name}", help=p.summary)
            for p in registry.plugins(kind)
            if p.name.startswith(last)
        ]

    return complete


def recipes(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Recipes of the method that has been named."""
    method = str(ctx.params.get("method") or "").split(",")[0].partition(":")[0]
    return _items(_recipes(method), begun)


def backbones(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Backbones with names of their own; timm has a thousand more."""
    from gcdbench.backbone.catalogue import CATALOGUE

    return _items(CATALOGUE, begun)


def experiments(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Experiments of plugins and of `configs/`, and TOML files."""
    from gcdbench.analysis.experiment_file import experiment_files

    return _items(experiment_files(), begun) or [CompletionItem(begun, type="file")]


def kinds(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What can be listed."""
    from gcdbench.cli.commands.listing import KINDS

    return _items((*KINDS, "backbones", "experiments"), begun)


def runs(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Ids of runs below --runs, with what they are."""
    root = Path(ctx.params.get("runs") or "runs")
    found = sorted(root.glob("*/*/*/config.json"))
    return [
        CompletionItem(path.parent.name, help=f"{path.parents[2].name} on {path.parents[1].name}")
        for path in found
        if path.parent.name.startswith(begun)
    ]


def settings(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Keys of the config, with those of the method that has been named."""
    import dataclasses

    from gcdbench.config.resolve import SECTIONS

    keys = [f"{section}.{field.name}" for section, kind in SECTIONS.items() for field in dataclasses.fields(kind)]
    method = str(ctx.params.get("method") or "").split(",")[0].partition(":")[0]
    if method and begun.startswith("method"):
        from gcdbench import registry
        from gcdbench.errors import GcdbenchError

        try:
            keys += [f"method.{field.name}" for field in dataclasses.fields(registry.load("method", method).Config)]
        except GcdbenchError:
            return []
    return _items((f"{key}=" for key in keys), begun)


def _items(names: Iterable[str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(begun)]


def _recipes(method: str) -> tuple[str, ...]:
    """Of a method, which must be imported for it; a broken one has none."""
    from gcdbench import registry
    from gcdbench.errors import GcdbenchError

    try:
        return tuple(registry.load("method", method).recipes)
    except GcdbenchError:
        return ()
