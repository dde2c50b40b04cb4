"""What the author of a plugin wants to see of a fault: where it was raised, the whole traceback, a debugger there."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Look = Literal["off", "traceback", "pdb"]
_looks: list[Look] = ["off"]
_NOT_PLUGINS = frozenset({"gcdbench", "torch", "numpy", "scipy", "sklearn", "timm", *sys.stdlib_module_names})


@contextmanager
def looking(how: Look) -> Iterator[None]:
    """Within, each fault of a plugin is shown in this way as soon as it is met."""
    _looks.append(how)
    try:
        yield
    finally:
        _looks.pop()


def look_at(fault: BaseException) -> None:
    """Show a fault as the user has asked for."""
    if _looks[-1] == "off":
        return
    traceback.print_exception(fault)
    if _looks[-1] == "pdb":
        import pdb

        pdb.post_mortem(fault.__traceback__)


def raised_at(fault: BaseException) -> str:
    """The last line of the plugin on the way to a fault, as ` (package/file.py:12, in function)`; empty if there is
    none."""
    package, found = "", ""
    trace = fault.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        owner = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        package = package or (owner if owner not in _NOT_PLUGINS else "")
        if package and owner == package:
            file = "/".join(frame.f_code.co_filename.replace("\\", "/").rsplit("/", 2)[-2:])
            found = f" ({file}:{trace.tb_lineno}, in {frame.f_code.co_name})"
        trace = trace.tb_next
    return found
