"""Turning text and TOML values into typed config values, strictly."""

from __future__ import annotations

import sys
import tomllib
import types
from typing import Any, Literal, Union, get_args, get_origin

from gcdbench.errors import UsageError, nearest

LARGEST = 2**31 - 1
"""Of whole numbers; all that is counted fits."""


def parse_assignment(text: str) -> tuple[str, Any]:
    """`train.lr=0.05` as key and value; the value is read as TOML and falls back to plain text."""
    key, sign, raw = text.partition("=")
    key = key.strip()
    if not sign or "." not in key:
        raise UsageError(f"--set takes section.key=value (for example train.lr=0.05), not '{text}'.")
    return key, parse_value(raw, f"--set {key}")


def parse_value(raw: str, source: str = "--launcher-set") -> Any:
    """A value read as TOML, or plain text."""
    try:
        return tomllib.loads(f"value = {raw.strip()}")["value"]
    except RecursionError as fault:
        raise UsageError(f"{source}: the value is nested too deeply.") from fault
    except ValueError:  # no TOML (or a number longer than Python reads), so it is text
        return raw.strip()


def coerce(value: Any, hint: Any, key: str, source: str) -> Any:
    """``value`` as the annotated type, or a sentence. Only harmless changes are made (1 -> 1.0, list -> tuple)."""
    origin = get_origin(hint)
    if origin is Literal:
        choices = get_args(hint)
        if value in choices:
            return value
        close = nearest(str(value), [str(c) for c in choices])
        hint_text = f" Did you mean '{close}'?" if close else ""
        listing = ", ".join(map(str, choices))
        raise UsageError(f"{source}: {key} cannot be '{value}'.{hint_text} Possible: {listing}.")
    if origin in (Union, types.UnionType):
        options = get_args(hint)
        if type(None) in options and (value is None or str(value).lower() == "none"):
            return None
        real = [option for option in options if option is not type(None)]
        if len(real) == 1 and not isinstance(value, str):
            return coerce(value, real[0], key, source)
        for option in real:
            try:
                return coerce(value, option, key, source)
            except UsageError:
                continue
    elif origin is tuple:
        kinds = get_args(hint)
        if isinstance(value, list | tuple) and kinds and kinds[-1] is Ellipsis:
            return tuple(coerce(v, kinds[0], key, source) for v in value)
        if isinstance(value, list | tuple) and len(value) == len(kinds):
            return tuple(coerce(v, kind, key, source) for v, kind in zip(value, kinds, strict=True))
    elif hint is bool:
        if isinstance(value, bool):
            return value
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) > LARGEST:
                raise UsageError(f"{source}: {key} is {value}, which is too large.")
            return value
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            return float(value)
    elif hint is str and isinstance(value, str):
        return value
    raise UsageError(f"{source}: {key} must be {_spoken(hint)}, not {value!r}.")


def _spoken(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if hint in names:
        return names[hint]
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        return "a list like [0.5, 0.5, 0.5]" if kinds[-1] is Ellipsis else f"a list of {len(kinds)} values"
    options = [o for o in get_args(hint) if o is not type(None)]
    return " or ".join([_spoken(o) for o in options] + (["none"] if len(options) < len(get_args(hint)) else []))
