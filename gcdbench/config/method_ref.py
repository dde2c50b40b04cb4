"""How a method is named where a recipe may follow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MethodRef:
    """A method as asked for: `rlcd` or `rlcd:released`."""

    method: str
    recipe: str | None = None

    @staticmethod
    def parse(text: str) -> MethodRef:
        """From the command line."""
        method, _, recipe = text.partition(":")
        return MethodRef(method, recipe or None)

    def __str__(self) -> str:
        return self.method if self.recipe is None else f"{self.method}:{self.recipe}"
