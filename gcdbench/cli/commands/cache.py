"""`gcdbench cache list|delete`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gcdbench.cli.environment_options import cache_option
from gcdbench.cli.options import SuggestingGroup
from gcdbench.cli.output import json_option, out, print_json, print_table, print_words
from gcdbench.errors import UsageError


@click.group("cache", cls=SuggestingGroup)
def cache_group() -> None:
    """Stores of resized images and trunk tokens: what there is, how large it is, and how to be rid of it."""


def _stores(root: Path) -> list[dict[str, Any]]:
    """Every finished store, largest first."""
    from gcdbench.data.store.store_folder import list_stores

    return sorted(list_stores(root), key=lambda store: -int(store["bytes"]))


@cache_group.command("list")
@cache_option
@json_option
def list_command(cache: Path | None, as_json: bool) -> None:
    """List the stores and their sizes."""
    from gcdbench.data.store.store_folder import cache_root, leftovers, spoken_size

    root = cache_root(cache)
    found, left = _stores(root), [str(path) for path in leftovers(root)]
    if as_json:
        print_json({"cache": str(root), "stores": found, "unfinished": left})
        return
    if left:
        sentence = (
            f"{len(left)} unfinished stores of killed processes; `gcdbench cache delete --all` deletes them as well."
        )
        print_words(out(), sentence)
    if not found:
        print_words(out(), f"There are no stores in {root}.")
        return
    rows = [[s["key"], s["kind"], s["what"], spoken_size(s["bytes"])] for s in found]
    print_table(f"Stores in {root}", ["Store", "Kind", "What", "Size"], rows)
    total = spoken_size(sum(s["bytes"] for s in found))
    out().print(f"{total} in all. A store that is deleted is made again when a run needs it.", markup=False)


@cache_group.command("delete")
@click.argument("keys", nargs=-1, metavar="STORE...")
@click.option("--all", "everything", is_flag=True, help="Delete every store.")
@cache_option
@json_option
def delete_command(keys: tuple[str, ...], everything: bool, cache: Path | None, as_json: bool) -> None:
    """Delete stores by their names (or beginnings of them), or all of them."""
    import shutil

    from gcdbench.data.store.store_folder import cache_root, delete_store, leftovers, spoken_size

    if "" in keys or bool(keys) == everything:
        raise UsageError("Name the stores to delete (`gcdbench cache list`), or give --all.")
    root = cache_root(cache)
    found = _stores(root)
    chosen = found if everything else [_named(key, found, root) for key in keys]
    for store in chosen:
        delete_store(root, store)
    for path in leftovers(root) if everything else ():
        shutil.rmtree(path, ignore_errors=True)
    if as_json:
        print_json({"cache": str(root), "deleted": chosen})
        return
    freed = spoken_size(sum(s["bytes"] for s in chosen)) if chosen else "nothing"
    out().print(f"Deleted {len(chosen)} stores, {freed}.", markup=False)


def _named(key: str, found: list[dict[str, Any]], root: Path) -> dict[str, Any]:
    fits = [store for store in found if store["key"].startswith(key)]
    if len(fits) != 1:
        what = "no store" if not fits else f"{len(fits)} stores"
        raise UsageError(f"There is {what} '{key}' in {root}; `gcdbench cache list` shows the names.")
    return fits[0]
