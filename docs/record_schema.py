"""JSON Schema of `record.json` from the classes of `gcdbench.records`: types, docstrings, dictionaries beside types."""

from __future__ import annotations

import ast
import inspect
import types
from itertools import pairwise
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from gcdbench.records.record import SCHEMA, Record

NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema() -> dict[str, Any]:
    """The whole schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"gcdbench record.json, schema {SCHEMA}",
        "description": _line(Record.__doc__),
        **_object(Record),
    }


def _object(cls: type) -> dict[str, Any]:
    hints, notes, properties = get_type_hints(cls, include_extras=True), _docstrings(cls), {}
    required = [name for name, hint in hints.items() if get_origin(hint) is not NotRequired]
    for name, hint in hints.items():
        properties[name] = _of(hint)
        if name in notes:
            properties[name]["description"] = notes[name]
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def _of(hint: Any) -> dict[str, Any]:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(*parts)
    if origin is NotRequired:
        return _of(parts[0])
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, types.UnionType):
        (one,) = (part for part in parts if part is not type(None))
        return _or_null(_of(one))
    if origin is list:
        return {"type": "array", "items": _of(parts[0])}
    if origin is dict:
        return {"type": "object"} if parts[1] is Any else {"type": "object", "additionalProperties": _of(parts[1])}
    if is_typeddict(hint):
        return _object(hint)
    return {"type": NAMES[hint]}


def _annotated(kind: Any, *notes: Any) -> dict[str, Any]:
    """A type beside the type says more than it; a dictionary is part of the schema."""
    shape = next((note for note in notes if not isinstance(note, dict)), kind)
    found = _of(shape)
    for note in notes:
        if isinstance(note, dict):
            found = {"const": note["const"]} if "const" in note else {**found, **note}
    null = shape is not kind and type(None) in get_args(kind)
    return _or_null(found) if null else found


def _or_null(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "type": [found["type"], "null"]}


def _docstrings(cls: type) -> dict[str, str]:
    """The docstring below each field."""
    body = ast.parse(inspect.getsource(cls)).body[0].body  # type: ignore[attr-defined]
    found = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[field.target.id] = _line(below.value.value)  # type: ignore[union-attr]
    return found


def _line(text: str | None) -> str:
    return " ".join((text or "").split())
