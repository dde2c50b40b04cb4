"""The paper's numbers as data: complete, consistent with themselves, and marked where they are not."""

from __future__ import annotations

import pytest

from gcdbench.analysis import published as module
from gcdbench.analysis.compare_table import published_rows
from gcdbench.analysis.experiment_file import load_experiment
from gcdbench.analysis.published import published_tables
from gcdbench.errors import PluginError

pytestmark = pytest.mark.usefixtures("few_digits")

TABLES = published_tables()


def row(table, key):
    return next(row for row in TABLES[table].rows if row.key == key)


def cells(table, key, dataset):
    return row(table, key).cells[dataset]


def test_every_table_and_study_is_there():
    shipped = {name for name, table in TABLES.items() if "gcdbench_rlcd" in str(table.file)}
    assert shipped == {
        "fine-grained",
        "generic",
        "ablation",
        "alpha",
        "beta",
        "regularisers",
        "pseudo-labels",
        "oracle-base",
        "estimated-k",
        "estimated-k-cms",
        "label-ratios",
        "novel-ratios",
        "uncertainty",
        "distillation",
        "parameters",
        "class-distribution",
        "supervised-loss",
    }
    assert all("ICML 2025" in TABLES[name].source for name in shipped)


OWN = {
    "kmeans": "baselines",
    "gcd": "baselines",
    "legogcd": "legogcd",
    "cms": "cms",
    "uno": "uno",
    "orca": "orca",
    "rsplus": "rsplus",
    "crncd": "crncd",
    "sptnet": "sptnet",
    "infosieve": "infosieve",
    "gpc": "gpc",
    "dccl": "dccl",
    "mugcd": "mugcd",
    "protogcd": "protogcd",
    "eagc": "eagc",
}
FEWER = {"cms": 6, "dccl": 5, "mugcd": 4, "protogcd": 6, "eagc": 6}
"""Methods without published numbers on all seven datasets."""
SLIPS = {
    *(("kmeans", "cifar100"), ("sptnet", "cub"), ("dccl", "cifar10"), ("dccl", "cifar100")),
    *(("gpc", "cub"), ("gpc", "imagenet100"), ("gpc", "scars")),
}
"""Printed numbers of which one does not follow from the other two: k-means has 51.7 by them, printed as 52.0
everywhere; GPC's are of the test set, which has another share of base rows."""


@pytest.mark.parametrize("method", OWN)
def test_a_plugin_ships_its_own_numbers_which_agree_with_the_tables_of_all_methods(method):
    (own,) = (r for r in TABLES[OWN[method]].rows if r.method == method and r.backbone == "dino")
    assert len(own.cells) == FEWER.get(method, 7)
    for name in ("fine-grained", "generic"):
        for printed in (r for r in TABLES[name].rows if r.method == method and r.backbone == "dino"):
            for dataset, numbers in printed.cells.items():
                assert own.cells[dataset] == numbers, (name, dataset)


def test_numbers_that_several_plugins_ship_are_listed_once():
    for dataset in ("cub", "cifar100"):
        found = [(row.method, tuple(row.cells[dataset].items())) for _, row in published_rows(TABLES, dataset, "dino")]
        assert len(found) == len(set(found))
    alone = {name: table for name, table in TABLES.items() if name == "cms"}
    assert [row.method for _, row in published_rows(alone, "cub", "dino")] == ["cms"]


@pytest.mark.parametrize("method", OWN)
def test_all_is_the_mean_of_base_and_novel_weighted_by_rows(method):
    """Two of three numbers give the third, up to their rounding: a slip of the pen would show."""
    (own,) = (r for r in TABLES[OWN[method]].rows if r.method == method and r.backbone == "dino")
    for dataset, numbers in own.cells.items():
        share = (numbers["all"] - numbers["novel"]) / (numbers["base"] - numbers["novel"])
        spread = 0.15 / abs(numbers["base"] - numbers["novel"])
        # Unlabelled base rows are a third of all unlabelled ones, two thirds on CIFAR-100.
        expected = 2 / 3 if dataset == "cifar100" else 1 / 3
        assert (method, dataset) in SLIPS or abs(share - expected) < 0.03 + spread, (dataset, share)


def test_main_tables_have_all_methods_and_both_backbones():
    dino = {row.method for _, row in published_rows(TABLES, "cub", "dino")}
    assert dino == {
        *("kmeans", "rsplus", "uno", "orca", "crncd", "gcd", "dccl", "gpc", "simgcd", "mugcd", "cms", "infosieve"),
        *("sptnet", "legogcd", "rlcd", "protogcd", "eagc"),
    }
    dinov2 = {row.method for _, row in published_rows(TABLES, "cub", "dinov2")}
    assert dinov2 == {"simgcd", "mugcd", "cipr", "rlcd", "sptnet"}
    assert {row.method for _, row in published_rows(TABLES, "cifar100", "dinov2")} == {"simgcd", "cipr", "rlcd"}
    assert {row.method for _, row in published_rows(TABLES, "cifar10", "dino")} >= {"cipr", "legogcd", "kmeans"}
    assert "cms" not in {row.method for _, row in published_rows(TABLES, "cifar10", "dino")}
    assert published_rows(TABLES, "digits", "digits-vit") == []


@pytest.mark.parametrize("name", ["fine-grained", "generic"])
def test_averages_printed_in_the_tables_are_those_of_the_data(name):
    """The tables' own averages of All check every number that enters them."""
    table = TABLES[name]
    checked = 0
    for row in table.rows:
        assert (row.average is None) == (len(row.cells) < len(table.datasets)), row.key
        if row.average is not None:
            mean = sum(row.cells[d]["all"] for d in table.datasets) / len(table.datasets)
            assert mean == pytest.approx(row.average, abs=0.051), row.key
            checked += 1
    assert checked >= 15


def test_parameters_add_up():
    for row in TABLES["parameters"].rows:
        numbers = row.cells["cub"]
        assert sum(v for k, v in numbers.items() if k != "total") == numbers["total"], row.key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ablation", "f", "cub"), ("fine-grained", "rlcd dino", "cub")),
        (("alpha", "0", "cub"), ("ablation", "g", "cub")),
        (("alpha", "0.5", "cub"), ("ablation", "f", "cub")),
        (("beta", "0", "cub"), ("ablation", "d", "cub")),
        (("uncertainty", "zero", "cub"), ("ablation", "g", "cub")),
        (("uncertainty", "aux_prob", "cifar100"), ("generic", "rlcd dino", "cifar100")),
        (("distillation", "pseudo_base", "cub"), ("ablation", "f", "cub")),
        (("regularisers", "none", "cub"), ("ablation", "d", "cub")),
        (("label-ratios", "simgcd 50", "cub"), ("fine-grained", "simgcd dino", "cub")),
        (("novel-ratios", "rlcd 50", "cub"), ("label-ratios", "rlcd 50", "cub")),
        (("estimated-k", "rlcd true", "imagenet100"), ("generic", "rlcd dino", "imagenet100")),
        (("estimated-k", "rlcd true", "scars"), ("fine-grained", "rlcd dino", "scars")),
    ],
)
def test_the_same_setting_has_the_same_numbers_in_every_table(one, other):
    left, right = cells(*one), cells(*other)
    shared = left.keys() & right.keys()
    assert {"all", "base", "novel"} <= shared
    assert all(left[m] == right[m] for m in shared)


def test_oracle_base_is_the_pseudo_label_accuracy_of_the_main_branch():
    for dataset in TABLES["oracle-base"].datasets:
        assert (
            cells("oracle-base", "rlcd", dataset)["ob"] == cells("pseudo-labels", "rlcd cls", dataset)["pseudo_label"]
        )
    assert cells("oracle-base", "rlcd", "cub")["ob"] == cells("ablation", "f", "cub")["ob"]


def test_rows_of_other_protocols_carry_a_note():
    table = TABLES["fine-grained"]
    remarks = {row.method: " ".join(row.remarks("cub")) for row in table.rows if row.backbone == "dino"}
    for method in ("gcd", "infosieve", "dccl", "gpc", "crncd", "cms", "sptnet", "rsplus", "uno", "orca", "mugcd"):
        assert remarks[method], method
    assert remarks["simgcd"] == remarks["rlcd"] == remarks["legogcd"] == ""
    assert "labelled subset" in " ".join(row("generic", "cipr dino").remarks("cifar10"))


def test_the_contradicting_aircraft_row_is_marked():
    found = row("estimated-k-cms", "rlcd cms")
    assert any("contradict" in text for text in found.remarks("aircraft"))
    assert not any("contradict" in text for text in found.remarks("cifar100"))
    # It does contradict: far above the row with the true number of classes.
    assert found.cells["aircraft"]["all"] > cells("fine-grained", "rlcd dino", "aircraft")["all"] + 8


def test_estimated_numbers_of_classes():
    assert row("estimated-k", "rlcd gcd").k == {"imagenet100": 109, "cub": 231, "scars": 230}
    assert row("estimated-k-cms", "rlcd cms").k["herbarium19"] == 666
    # The experiment files run with exactly these numbers.
    for name in ("estimated-k", "estimated-k-cms"):
        for line in (r for r in load_experiment(name).rows if " by " not in r.key):  # those with published numbers
            for dataset, k in row(name, line.key).k.items():
                told = line.settings_on(dataset).get("data.k")
                assert told == k or (line.key in ("rlcd true", "gpc gpc") and told is None)  # GPC finds its own


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id = ", "cannot be read"),
        ('id = "x"', "not understood"),
        (
            'id="x"\ntitle="x"\nsource="x"\nmetrics=["all"]\ndatasets=["cub"]\n[[row]]\nkey="a"\nlabel="a"\n',
            "not understood",
        ),
        (
            'id="x"\ntitle="x"\nsource="x"\nmetrics=["all"]\ndatasets=["cub"]\n'
            '[[row]]\nkey="a"\nlabel="a"\nmethod="m"\nbackbone="b"\ncub=[1.0, 2.0]\n',
            "2 numbers for 1 metrics",
        ),
        (
            'id="x"\ntitle="x"\nsource="x"\nmetrics=["all"]\ndatasets=["cub"]\n'
            '[[row]]\nkey="a"\nlabel="a"\nmethod="m"\nbackbone="b"\nscars=[1.0]\n',
            "unknown entries",
        ),
    ],
)
def test_a_bad_file_is_the_plugins_fault(text, words, tmp_path, monkeypatch):
    (tmp_path / "bad.toml").write_text(text)
    monkeypatch.setattr(module, "plugin_folders", lambda name: [tmp_path])
    with pytest.raises(PluginError, match=words):
        published_tables()


def test_a_bad_file_can_be_told_instead_and_hurts_no_other_plugin(tmp_path, monkeypatch):
    (tmp_path / "bad.toml").write_text("id = ")
    told: list[str] = []
    folders = module.plugin_folders("paper")
    monkeypatch.setattr(module, "plugin_folders", lambda name: [tmp_path, *folders])
    assert set(published_tables(told.append)) == set(TABLES)
    assert len(told) == 1
    assert "bad.toml" in told[0]


def test_two_tables_of_one_name_are_told(tmp_path, monkeypatch):
    for name in ("a", "b"):
        text = 'id="x"\ntitle="x"\nsource="x"\nmetrics=[]\ndatasets=[]\nrow=[]\n'
        (tmp_path / f"{name}.toml").write_text(text)
    monkeypatch.setattr(module, "plugin_folders", lambda name: [tmp_path])
    with pytest.raises(PluginError, match="both hold a table called 'x'"):
        published_tables()
