"""Fills the templates of a kind of plugin and puts the package where the user wants it, whole or not at all."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from string import Template

from gcdbench import registry
from gcdbench.errors import GcdbenchError, UsageError, unknown
from gcdbench.system.files import cannot_write

KINDS = ("method", "dataset", "evaluator", "k-estimator")
SUFFIX = ".txt"
"""Of template files, so that no tool takes them for what they will become."""


def words(name: str, kind: str = "method") -> dict[str, str]:
    """What the templates need of a plugin's name. Only a method's package is named after it alone."""
    if not registry.NAME.fullmatch(name):
        raise UsageError(
            f"'{name}' cannot be the name of a plugin: use letters, digits, '-', '_', '.' and '+', beginning with a "
            "letter or digit."
        )
    plain = re.sub(r"\W", "_", name.lower())
    more = "" if kind == "method" else f"-{kind}"
    cls = "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", name) if part)
    return {
        "name": name,
        "package": f"gcdbench-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}{more}",
        "module": f"gcdbench_{plain}{more.replace('-', '_')}",
        "key": plain,
        "cls": cls if cls[0].isalpha() else f"Plugin{cls}",
    }


def base_words(base: str) -> dict[str, str]:
    """What the templates need of the method that a new one is derived from."""
    plugin = registry.get("method", base)
    found = plugin.load()
    module, _, name = plugin.target.partition(":")
    names = {"base_name": plugin.name, "base_package": plugin.package}
    return {**names, "base_module": module, "base_class": name or found.__name__}


def write_plugin(name: str, kind: str, folder: Path, base: str | None = None) -> list[str]:
    """Write a working package; the names of its files. ``base`` is a method that the new one is derived from."""
    if kind not in KINDS:
        raise unknown("kind of plugin called", kind, KINDS)
    if base is not None and kind != "method":
        raise UsageError(f"--from derives a method from another one; a {kind} cannot be derived.")
    fields = words(name, kind) | ({} if base is None else base_words(base))
    others = {p.name.lower(): p.package for p in registry.plugins(kind)} | registry.aliases(kind)
    if name.lower() in others:
        raise UsageError(f"There is a {kind} '{name}' already ({others[name.lower()]}); take another name.")
    if _installed(fields["package"]) or find_spec(fields["module"]) is not None:
        raise UsageError(
            f"A package {fields['package']} or a module {fields['module']} is installed already, which this one would "
            "replace; take another name."
        )
    if folder.exists():
        raise UsageError(f"{folder} exists already; take another --folder.")
    templates = resources.files("gcdbench.testing.scaffold")
    folders = ("common", kind if base is None else "from")
    texts = {path: text for each in folders for path, text in _filled(templates / each, "", fields)}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".new-plugin-", dir=folder.parent))
    except OSError as fault:
        raise cannot_write(fault, f"The folder {folder}") from fault
    try:
        for path, text in texts.items():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_text(text, encoding="utf-8")
        made.chmod(0o755)
        made.rename(folder)
    except OSError as fault:
        raise cannot_write(fault, f"The folder {folder}") from fault
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return sorted(texts)


def _installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _filled(folder: Traversable, where: str, fields: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Every file of a template folder, with its name and its text filled in."""
    for entry in folder.iterdir():
        names = {"package": fields["module"], "test_name.py.txt": f"test_{fields['key']}.py.txt", "github": ".github"}
        name = names.get(entry.name, entry.name)
        if entry.is_dir():
            yield from _filled(entry, f"{where}{name}/", fields)
        elif name.endswith(SUFFIX):
            text = Template(entry.read_text(encoding="utf-8"))
            try:
                yield where + name.removesuffix(SUFFIX), text.substitute(fields)
            except (KeyError, ValueError) as fault:
                raise GcdbenchError(f"The template {entry.name} is damaged: {fault}.") from fault
