"""The stages a method asks for, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcdbench.contracts import Method, Stage
from gcdbench.errors import PluginError
from gcdbench.system.plugin_call import plugin_call
from gcdbench.system.seeding import AmbientStream

if TYPE_CHECKING:
    from gcdbench.prepare.run_context import Workspace


def stages_of(space: Workspace, method: Method) -> list[Stage]:
    """Asked under the same random numbers whoever asks."""
    name = space.config.method
    with AmbientStream(space.config.seed, "stages"), plugin_call(name, "stages"):
        stages = list(method.stages())
    if not all(isinstance(stage, Stage) for stage in stages):
        raise PluginError(f"The method '{name}' must return gcdbench.Stage objects from stages.")
    if len({stage.name for stage in stages}) < len(stages):
        raise PluginError(f"The method '{name}' has two stages of the same name; random numbers go by the name.")
    return stages
