"""Methods side by side on one dataset and backbone: means, paired differences and what can be said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gcdbench.analysis.setups import Setup, distinct_names, spell
from gcdbench.analysis.statistics import Difference, pairwise
from gcdbench.config.protocol import difference as protocol_difference
from gcdbench.errors import ProtocolError, UsageError
from gcdbench.records.summary import HEADLINE, mean_std

_PROTOCOL_KEYS = ("data.label_ratio", "data.novel_ratio", "data.k", "data.k_from", "eval.rows", "eval.selection")
"""Settings that are part of the protocol: never a note, because such results do not stand in one table."""


@dataclass(frozen=True)
class Paired:
    """One method against the reference in one metric."""

    difference: Difference
    p_adjusted: float | None
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """Everything a table of one dataset and backbone shows."""

    dataset: str
    backbone: str
    setups: tuple[Setup, ...]
    """The first is the reference of the differences."""
    names: tuple[str, ...]
    metrics: tuple[str, ...]
    paired: Mapping[tuple[int, str], Paired]
    """By set-up and metric, against the first set-up."""
    best: Mapping[str, int]
    """Set-up that is better than each other one, by metric; absent where that cannot be said."""
    notes: tuple[str, ...]
    note_numbers: tuple[tuple[int, ...], ...]
    """Numbers of the notes that concern each set-up."""
    tests: tuple[str, ...]
    """Tests that were used, and why some could not be."""
    shared: tuple[str, ...] = ()
    """Chosen settings that all set-ups share, and that their names therefore leave out."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = []
        for i, (setup, name) in enumerate(zip(self.setups, self.names, strict=True)):
            metrics = {}
            for metric in self.metrics:
                values = setup.values(metric)
                mean, std = mean_std(list(values.values())) if values else (None, None)
                metrics[metric] = {"n": len(values), "mean": mean, "std": std, "best": self.best.get(metric) == i}
            row: dict[str, Any] = {
                "name": name,
                "method": setup.method,
                "recipe": setup.recipe,
                "chosen": {key: setup.settings.get(key) for key in setup.chosen},
                "seeds": [r.seed for r in setup.records],
                "runs": [r.run_id for r in setup.records],
                "metrics": metrics,
                "notes": list(self.note_numbers[i]),
            }
            if i:
                row["against"] = self.names[0]
                row["difference"] = {
                    m: {**asdict(p.difference), "p_adjusted": p.p_adjusted, "verdict": p.verdict}
                    for m in self.metrics
                    if (p := self.paired.get((i, m)))
                }
            rows.append(row)
        first = self.setups[0].records[0]
        return {
            "dataset": self.dataset,
            "backbone": self.backbone,
            "fingerprint": first.fingerprint,
            "protocol": first.protocol,
            "rows": rows,
            "notes": list(self.notes),
        }


def compare(setups: Sequence[Setup], names: Sequence[str] | None = None) -> Comparison:
    """Compare set-ups on one dataset and backbone; a ProtocolError if their protocols differ."""
    shared = () if names or len(setups) < 2 else shared_choices(setups)
    names = list(
        names or distinct_names([replace(s, chosen=tuple(k for k in s.chosen if k not in shared)) for s in setups])
    )
    check_protocols(setups, names)
    metrics = tuple(m for m in HEADLINE if any(s.values(m) for s in setups))
    if not metrics:
        raise UsageError(f"The runs on '{setups[0].dataset}' have no accuracies: the true classes are not known.")
    paired: dict[tuple[int, str], Paired] = {}
    best: dict[str, int] = {}
    tests: dict[str, None] = {}
    for metric in metrics:
        found = pairwise([s.values(metric) for s in setups])
        tests.update(dict.fromkeys(d.test for d in found.differences.values()))
        for (i, j), d in found.differences.items():
            if i == 0:
                paired[j, metric] = Paired(_turned(d), found.adjusted[i, j], found.verdict(j, i))
        champion = found.best()
        if champion is not None:
            best[metric] = champion
    notes, numbers = setup_notes(setups, names)
    first = setups[0]
    return Comparison(
        dataset=first.dataset,
        backbone=first.backbone,
        setups=tuple(setups),
        names=tuple(names),
        metrics=metrics,
        paired=paired,
        best=best,
        notes=notes,
        note_numbers=numbers,
        tests=tuple(tests),
        shared=tuple(f"{key}={spell(first.settings.get(key))}" for key in shared),
    )


def shared_choices(setups: Sequence[Setup]) -> tuple[str, ...]:
    """Settings that were chosen for every set-up, and alike."""
    first = setups[0]
    return tuple(
        key
        for key in first.chosen
        if all(key in s.chosen and s.settings.get(key) == first.settings.get(key) for s in setups)
    )


def _turned(d: Difference) -> Difference:
    """The same difference seen from the other side."""
    low, high = (None if d.high is None else -d.high, None if d.low is None else -d.low)
    return Difference(d.n, -d.mean, low, high, d.p, d.test)


def check_protocols(setups: Sequence[Setup], names: Sequence[str], by_design: Sequence[str] = ()) -> None:
    """Refuse results that do not compare, naming each field and its values.

    ``by_design`` are protocol fields that a study varies on purpose.
    """
    labelled = [(n, r) for s, n in zip(setups, names, strict=True) for r in s.records]
    first = labelled[0][1].protocol
    fields: dict[str, None] = {}
    for _, record in labelled:
        fields.update(dict.fromkeys(protocol_difference(first, record.protocol)))
    wrong = [field for field in fields if field not in by_design]
    if not wrong:
        return
    lines = []
    for field in wrong:
        holders: dict[str, list[str]] = {}
        for name, record in labelled:
            entry = holders.setdefault(spell(record.protocol.get(field)), [])
            if name not in entry:
                entry.append(name)
        listed = "; ".join(f"{value} in {', '.join(who)}" for value, who in holders.items())
        lines.append(f"  {field}: {listed}")
    raise ProtocolError(
        f"These results on '{setups[0].dataset}' follow different protocols, so they do not stand in one table:\n"
        + "\n".join(lines)
    )


def setup_notes(setups: Sequence[Setup], names: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Numbered notes on set-up differences, and which of them concern each set-up."""
    notes: list[str] = []
    numbers: list[list[int]] = [[] for _ in setups]

    def add(text: str, concerned: Sequence[int]) -> None:
        notes.append(text)
        for i in concerned:
            numbers[i].append(len(notes))

    everybody = range(len(setups))
    shared = [
        key for key in setups[0].settings if not key.startswith("method.") and key not in ("plugin", *_PROTOCOL_KEYS)
    ]
    trained = [i for i in everybody if any(r.selected["epoch"] for r in setups[i].records)]
    for key in shared:
        concerned = trained if key.startswith("train.") else list(everybody)  # what trains nothing has no rate
        values = {i: spell(setups[i].settings.get(key)) for i in concerned}
        if len(set(values.values())) > 1:
            add(f"{key} differs: {'; '.join(f'{names[i]} {value}' for i, value in values.items())}.", concerned)
    facts: dict[str, list[set[str]]] = {
        "device": [{r.device for r in s.records} for s in setups],
        "torch": [{r.versions.get("torch", "?") for r in s.records} for s in setups],
        "gcdbench": [{r.versions.get("gcdbench", "?") for r in s.records} for s in setups],
        "Source of gcdbench": [{_source(r.git.get("core")) for r in s.records} for s in setups],
    }
    # Versions of different plugins have nothing to do with each other; two set-ups of one plugin have.
    if len({s.settings["plugin"].split()[0] for s in setups}) == 1:
        facts["Plugin"] = [{s.settings["plugin"]} for s in setups]
    for what, found in facts.items():
        if len(set().union(*found)) > 1:
            listed = "; ".join(f"{n} {', '.join(sorted(f))}" for n, f in zip(names, found, strict=True))
            add(f"{what} differs: {listed}.", everybody)
    for i, setup in enumerate(setups):
        sources = {_source(r.git.get("plugin")) for r in setup.records}
        if len(sources) > 1:
            add(f"Runs were made with different sources of the plugin: {', '.join(sorted(sources))}.", [i])
    seeds = [[r.seed for r in s.records] for s in setups]
    if any(s != seeds[0] for s in seeds):
        listed = "; ".join(f"{n} {', '.join(map(str, s))}" for n, s in zip(names, seeds, strict=True))
        add(f"Seeds differ: {listed}. Differences are over common seeds.", everybody)
    for i, setup in enumerate(setups):
        for warning in dict.fromkeys(w for r in setup.records for w in r.warnings):
            add(warning, [i])
    return tuple(notes), tuple(tuple(n) for n in numbers)


def _source(state: Mapping[str, Any] | None) -> str:
    """A commit, or that there is none; uncommitted changes are said."""
    if state is None:
        return "not under git"
    return str(state["commit"])[:12] + (" with changes" if state["dirty"] else "")
