"""Experiment files: strict, complete, and each resolves on every dataset it names."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from gcdbench.analysis.experiment_file import experiment_files, load_experiment, parse_experiment
from gcdbench.analysis.published import published_tables
from gcdbench.config.protocol import Protocol
from gcdbench.config.resolve import Layer
from gcdbench.errors import UsageError
from gcdbench.experiments.study_runs import installed_rows
from gcdbench.prepare.request import RunRequest, resolve_request

pytestmark = pytest.mark.usefixtures("few_digits")

ROOT = Path(__file__).parents[2]
HOMES = {ROOT / "configs", ROOT / "plugins/rlcd/gcdbench_rlcd/experiments"}
NAMES = sorted(experiment_files())
PUBLISHED = [name for name in NAMES if load_experiment(name).published is not None]
GOOD = '[experiment]\ntitle = "T"\ndatasets = ["digits"]\n[[row]]\nkey = "a"\nlabel = "A"\nmethod = "rlcd"\n'


def test_every_study_of_the_paper_has_a_file():
    assert set(PUBLISHED) == {
        *("fine-grained", "generic", "ablation", "alpha", "beta", "regularisers", "pseudo-labels", "estimated-k"),
        *("estimated-k-cms", "label-ratios", "novel-ratios", "uncertainty", "distillation", "parameters"),
        *("oracle-base", "class-distribution", "supervised-loss"),
    }
    assert {path.parent.resolve() for path in experiment_files().values()} == HOMES


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_file_parses_and_fits_its_published_table(name):
    experiment = load_experiment(name)
    table = published_tables()[experiment.published]
    assert set(experiment.datasets) == set(table.datasets)
    assert set(experiment.varies) <= {f.name for f in dataclasses.fields(Protocol)}
    covered = {r.published for r in experiment.rows}
    for row in table.rows:
        assert row.key in covered or row.key.removesuffix(f" {row.backbone}") in covered, row.key


@pytest.mark.parametrize("name", NAMES)
def test_every_row_resolves_everywhere(name):
    """No unknown key or value on the published datasets or on the embedded one; rows of a study differ."""
    experiment = load_experiment(name)
    rows = installed_rows(experiment)
    assert rows
    backbone = next(iter(experiment.backbones), None)
    for dataset in (*experiment.datasets, "digits"):
        seen = {}
        for row in rows:
            study = Layer("x", row.settings_on(dataset))
            request = RunRequest(row.method, dataset, row.recipe, backbone=backbone, study=study)
            config = resolve_request(request).runs[0].config.as_dict()
            seen.setdefault(str(config), []).append(row)
        for twins in seen.values():
            assert len(twins) == 1 or len({tuple(t.read.items()) for t in twins}) == len(twins)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no \\[experiment\\] section"),
        ('[experiment]\ntitle = "T"\ndatasets = []\n', "at least one \\[\\[row\\]\\]"),
        (GOOD.replace("title", "titel"), "has no key 'titel'. Did you mean 'title'"),
        (GOOD.replace('title = "T"', "title = 3"), "experiment.title must be text, not 3"),
        (GOOD.replace("method", "metod"), "row 1 has no key 'metod'. Did you mean 'method'"),
        (GOOD.replace('["digits"]', '"digits"'), "must be a list of names"),
        (GOOD + 'settings = "x"\n', "row 1.settings must be a table"),
        (GOOD + '[[row]]\nkey = "a"\nlabel = "B"\nmethod = "rlcd"\n', "two rows have the key 'a'"),
        (GOOD.replace("[[row]]", "seeds = [-1]\n[[row]]"), "seeds must be whole numbers"),
        (GOOD.replace("[[row]]", 'kind = "runns"\n[[row]]'), "kind is 'runns'"),
        (GOOD + "[other]\nx = 1\n", "has no key 'other'"),
        (GOOD.replace('["digits"]', "[]"), "datasets is empty"),
        (GOOD.replace("[[row]]", 'published = ["x"]\n[[row]]'), "experiment.published must be text"),
        (GOOD.replace("[[row]]", 'varies = ["kk"]\n[[row]]'), "no field of the protocol .* called 'kk'"),
        (GOOD + "recipe = 3\n", "row 1.recipe must be text"),
        (GOOD + 'read = { all = ["x"] }\n', "row 1.read.all must be text"),
        ("[experiment\n", "not valid TOML"),
        (GOOD + '[[override]]\nlabel = "x"\n', "override 1.key is missing"),
        (GOOD + '[[override]]\nkey = "x"\nlabl = "x"\n', "override 1 has no key 'labl'"),
        (GOOD.replace("[[row]]", 'methods = "rlcd"\n[[row]]'), "experiment.methods must be a list"),
        (GOOD.replace("[[row]]", 'methods = ["a"]\n[[row]]'), "two rows have the key 'a'"),
        (GOOD.replace("[[row]]", 'backbones = "dino"\n[[row]]'), "experiment.backbones must be a list"),
    ],
)
def test_mistakes_are_sentences(text, words, tmp_path):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UsageError, match=words):
        parse_experiment(tmp_path / "mine.toml")


def test_a_row_without_settings_for_a_dataset_is_told():
    row = next(r for r in load_experiment("estimated-k").rows if r.key == "rlcd gcd")
    assert row.settings_on("cub") == {"data.k": 231}
    with pytest.raises(UsageError, match="no settings for 'aircraft'"):
        row.settings_on("aircraft")


def test_settings_for_all_other_datasets(tmp_path):
    (tmp_path / "mine.toml").write_text(GOOD + 'on = { cub = { "data.k" = 9 }, "*" = { "data.k" = 8 } }\n')
    row = parse_experiment(tmp_path / "mine.toml").rows[0]
    assert row.settings_on("cub") == {"data.k": 9}
    assert row.settings_on("digits") == {"data.k": 8}


def test_methods_are_short_for_rows_and_overrides_multiply_them(tmp_path):
    text = GOOD.replace("[[row]]", 'methods = ["simgcd", "rlcd:released"]\nbackbones = ["dino", "dinov2"]\n[[row]]')
    text += '[[override]]\nkey = "slow"\nlabel = "slowly"\nsettings = { "train.lr" = 0.001 }\n'
    (tmp_path / "mine.toml").write_text(text)
    found = parse_experiment(tmp_path / "mine.toml")
    assert [row.key for row in found.rows] == [
        *("simgcd", "rlcd:released", "a"),
        *("simgcd/slow", "rlcd:released/slow", "a/slow"),
    ]
    assert (found.rows[1].method, found.rows[1].recipe) == ("rlcd", "released")
    assert [dict(row.settings) for row in found.rows] == [{}] * 3 + [{"train.lr": 0.001}] * 3
    assert found.rows[3].label == "simgcd, slowly"
    assert found.rows[3].published != found.rows[0].published
    assert found.backbones == ("dino", "dinov2")


def test_a_file_of_ones_own_is_found_by_path_and_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.toml").write_text(GOOD)
    (tmp_path / "configs" / "ablation.toml").write_text(GOOD)
    assert load_experiment("mine").title == "T"
    assert load_experiment(f"configs{os.sep}mine.toml").title == "T"
    assert load_experiment("ablation").title == "T"
    (tmp_path / "configs" / "broken.toml").write_text("[experiment")
    assert "broken" not in experiment_files()
    assert load_experiment("mine").title == "T"
    with pytest.raises(UsageError, match="not valid TOML"):
        load_experiment("broken")
    with pytest.raises(UsageError, match="no experiment file"):
        load_experiment("none.toml")
    with pytest.raises(UsageError, match="Did you mean 'ablation'"):
        load_experiment("ablatio")
