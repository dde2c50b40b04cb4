"""Which epoch's predictions count. The rule is part of the protocol fingerprint."""

from __future__ import annotations

from dataclasses import dataclass

from gcdbench.errors import unknown


@dataclass(frozen=True)
class SelectionRule:
    """Keep the epoch with the highest value of a metric; None keeps the last epoch."""

    name: str
    description: str
    metric: str | None = None
    rows: str = "unlabelled"
    """Rows the metric is computed on."""
    oracle: bool = False
    """Whether the rule looks at labels that a user of the method would not have."""


RULES = {
    rule.name: rule
    for rule in (
        SelectionRule("last", "the last epoch, no selection"),
        SelectionRule(
            "best-base-test",
            "highest Base accuracy (v2) on the test rows (an oracle: the assignment sees novel labels)",
            "base",
            "test",
            True,
        ),
        SelectionRule("best-base-test-v1", "highest Base accuracy (v1) on the test rows", "v1_base", "test"),
        SelectionRule(
            "best-novel-test",
            "highest Novel accuracy (v2) on the test rows (an oracle)",
            "novel",
            "test",
            True,
        ),
        SelectionRule(
            "best-all-unlabelled",
            "highest All accuracy (v2) on the unlabelled rows (an oracle)",
            "all",
            "unlabelled",
            True,
        ),
    )
}


def selection_rule(name: str) -> SelectionRule:
    """The rule of that name."""
    if name not in RULES:
        raise unknown("selection rule (eval.selection)", name, RULES)
    return RULES[name]
