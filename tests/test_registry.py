from __future__ import annotations

from pathlib import Path

import pytest

from gcdbench import registry
from gcdbench.errors import PluginError, UsageError


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes an installed-looking package that registers plugins."""

    def write(name: str, entry_points: str, modules: dict[str, str]) -> Path:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nSummary: a test\n")
        (info / "entry_points.txt").write_text(entry_points)
        for module, code in modules.items():
            (tmp_path / f"{module}.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        registry.refresh()
        return tmp_path

    yield write
    registry.refresh()


def test_built_in_names():
    assert {p.name for p in registry.plugins("method")} >= {"rlcd", "simgcd"}
    assert len(registry.plugins("dataset")) >= 9


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("stanford_cars", "scars"),
        ("imagenet_100", "imagenet100"),
        ("fgvc_aircraft", "aircraft"),
        ("herbarium_19", "herbarium19"),
        ("CUB", "cub"),
        ("CIFAR10", "cifar10"),
        ("cifar_100", "cifar100"),
    ],
)
def test_aliases_of_the_literature(alias, name):
    assert registry.canonical("dataset", alias) == name
    assert registry.load("dataset", alias).name == name


def test_every_alias_leads_somewhere():
    names = {p.name for p in registry.plugins("dataset")}
    assert set(registry.aliases("dataset").values()) <= names


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'simgcd'"):
        registry.get("method", "simgdc")


def test_broken_plugin_is_reported_and_breaks_nothing(package, gcdbench):
    package(
        "broken-one",
        "[gcdbench.methods]\nbroken = broken_one:Method\nquits = quitting_one:Method\nabsent = no_such_module:X\n",
        {
            "broken_one": "import a_library_nobody_has\n",
            "quitting_one": "import os, sys\nprint('noise')\nsys.stdout.flush()\nos._exit(3)\n",
        },
    )
    answer = gcdbench("list", "methods", "--json")
    assert answer.code == 0
    rows = {row["name"]: row for row in answer.json()["methods"]}
    assert rows["broken"]["status"] == "broken"
    assert "a_library_nobody_has" in rows["broken"]["reason"]
    assert "ended the process (exit code 3)" in rows["quits"]["reason"]
    assert "no_such_module" in rows["absent"]["reason"]
    assert rows["rlcd"]["status"] == rows["simgcd"]["status"] == "ok"
    answer = gcdbench("run", "--method", "broken", "--dataset", "digits")
    assert answer.code == 5
    assert "cannot be imported: ModuleNotFoundError" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert "broken" in gcdbench("--help").stdout


def test_help_does_not_import_plugins(package, gcdbench, tmp_path):
    marker = tmp_path / "imported"
    package("nosy", "[gcdbench.methods]\nnosy = nosy:M\n", {"nosy": f"open({str(marker)!r}, 'w')\nM = 1\n"})
    assert "nosy" in gcdbench("--help").stdout
    assert "nosy" in gcdbench("list", "methods", "--no-check").stdout
    assert not marker.exists()
    assert gcdbench("list", "methods").code == 0
    assert marker.exists()


def test_name_clash_is_told_and_only_hits_that_name(package):
    package("rival", "[gcdbench.methods]\nrlcd = rival:M\n", {"rival": "M = 1\n"})
    plugin = registry.get("method", "rlcd")
    with pytest.raises(PluginError, match="registered as a method by both"):
        plugin.load()
    assert registry.load("method", "simgcd").__name__ == "SimGCD"
    assert registry.probe([plugin])["rlcd"].reason == plugin.clash


def test_third_party_method_runs(package, gcdbench):
    package(
        "nearest",
        "[gcdbench.methods]\nnearest = nearest_mean:NearestMean\n",
        {"nearest_mean": THIRD_PARTY},
    )
    answer = gcdbench("run", "--method", "nearest", "--dataset", "digits", "--epochs", "1", "--json")
    assert answer.code == 0, answer.stderr
    assert answer.json()["runs"][0]["metrics"]["all"] > 30


THIRD_PARTY = """
from dataclasses import dataclass

from gcdbench import Losses, Method, Prediction
from gcdbench.toolbox.heads import CosineClassifier
from gcdbench.toolbox.losses import cross_entropy


@dataclass(frozen=True)
class Config:
    temperature: float = 0.1


class NearestMean(Method):
    Config = Config

    def __init__(self, config, task):
        super().__init__(config, task)
        self.tail = task.backbone.tail()
        self.head = CosineClassifier(task.backbone.embed_dim, task.num_classes, task.generator)

    def forward(self, batch, t):
        losses = Losses()
        logits = self.head(self.tail(batch.tokens)[:, 0])
        losses.add("ce", cross_entropy(logits, batch.target.repeat(2), batch.labelled.repeat(2), 0.1))
        return losses

    def predict(self, pool):
        logits = pool.queries.features(lambda tokens: self.head(self.tail(tokens)[:, 0]))
        return Prediction(logits.argmax(1).cpu().numpy())
"""
