"""The other commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gcdbench as package
from gcdbench.data.splits import draw_labelled
from tests.support import trees
from tests.support.serving import serving


@pytest.mark.parametrize("what", ["methods", "datasets", "evaluators", "backbones"])
def test_list(what, gcdbench):
    answer = gcdbench("list", what, "--json")
    assert answer.code == 0
    names = {row["name"] for row in answer.json()[what]}
    expected = {
        "methods": {"rlcd", "simgcd"},
        "datasets": {
            "cifar10",
            "cifar100",
            "imagenet100",
            "cub",
            "scars",
            "aircraft",
            "herbarium19",
            "folder",
            "digits",
        },
        "evaluators": {"cluster_accuracy", "oracle_base", "information"},
        "backbones": {"dino", "dinov2", "digits-vit"},
    }
    assert names >= expected[what]


def test_env(cli):
    facts = cli("env", "--json").json()
    assert facts["versions"]["gcdbench"] == package.__version__
    assert facts["device"]
    assert any("rlcd" in method for method in facts["plugins"]["method"])
    assert "torch" in cli("env").stdout


@pytest.mark.parametrize("name", list(trees.WRITERS))
def test_data_split_is_exact(name, cli, tmp_path, golden):
    trees.WRITERS[name](tmp_path / "data")
    split = cli("data", "split", name, "--json").json()
    assert set(split) == {"dataset", "base", "novel", "labelled", "unlabelled"}
    lists = json.loads((golden / "class_splits.json").read_text())[name]
    if isinstance(lists["base"], list):
        assert split["base"] == lists["base"]
    assert split["labelled"] == sorted(split["labelled"])
    assert not set(split["labelled"]) & set(split["unlabelled"])


def test_data_split_rows_by_hand(cli, tmp_path):
    trees.write_scars(tmp_path / "elsewhere", images=False)
    split = cli("data", "split", "stanford_cars", "--data-root", tmp_path / "elsewhere", "--json").json()
    classes = np.array([(i * 5) % 196 for i in range(392)])
    base = np.flatnonzero(np.isin(classes, split["base"]))
    assert split["labelled"] == sorted(base[draw_labelled(len(base), 0.5)].tolist())
    assert len(split["labelled"]) + len(split["unlabelled"]) == 392


def test_data_split_ratios(cli):
    split = cli("data", "split", "digits", "--label-ratio", "0.25", "--novel-ratio", "0.6", "--json").json()
    assert split["base"] == [0, 1, 2, 3]
    assert split["novel"] == [4, 5, 6, 7, 8, 9]
    assert len(split["labelled"]) == int(0.25 * 720)
    assert "labelled" in cli("data", "split", "digits").stdout


def test_data_root_from_the_environment(cli, tmp_path, monkeypatch):
    trees.write_cifar10(tmp_path / "sets")
    monkeypatch.setenv("GCDBENCH_DATA", str(tmp_path / "sets"))
    assert cli("data", "split", "cifar10", "--json").json()["base"] == [0, 1, 2, 3, 4]


def test_data_layout(cli):
    assert "cars_train_annos.mat" in cli("data", "layout", "scars").stdout
    assert "images.txt" in cli("data", "layout", "cub", "--json").json()["layout"]


def test_data_verify(cli, tmp_path):
    answer = cli("data", "verify", "digits", "--json")
    assert answer.code == 0
    assert answer.json()["ok"] is True
    trees.write_cub(tmp_path / "data")
    answer = cli("data", "verify", "cub", "--json")
    assert answer.code == 4
    assert answer.json()["problems"][0] == "train: 400 rows instead of 5,994"
    assert "400 rows instead of 5,994" in cli("data", "verify", "cub").stdout


def test_data_fetch_prints_steps_where_nothing_can_be_downloaded(cli):
    answer = cli("data", "fetch", "herbarium19")
    assert answer.code == 0
    assert "small-train" in answer.stdout
    assert "small-train" in cli("data", "fetch", "herbarium19", "--json").json()["steps"][0]
    assert cli("data", "fetch", "digits").stdout == "Digits (embedded) needs no download.\n"


def test_data_fetch_downloads_and_unpacks(cli, tmp_path, monkeypatch, certificate):
    import functools
    import hashlib
    import http.server
    import tarfile

    from gcdbench.contracts import Archive
    from gcdbench.data.datasets.cifar import Cifar10

    trees.write_cifar10(tmp_path / "made")
    archive = tmp_path / "served" / "cifar-10-python.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(archive.parent))
    with serving(handler, certificate) as address:
        md5 = hashlib.md5(archive.read_bytes()).hexdigest()
        monkeypatch.setattr(Cifar10, "archives", (Archive(f"{address}/{archive.name}", md5),))
        answer = cli("data", "fetch", "cifar10")
    assert answer.code == 0, answer.stderr
    assert "100 training rows" in answer.stdout
    assert cli("data", "split", "cifar10").code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("simgcd", "simgcd", "--recipe", "paper"), 0),
        (("rlcd", "rlcd", "--recipe", "released"), 0),
        (("rlcd", "rlcd", "--recipe", "released", "--param-groups", "difflr"), 0),
        (("rlcd", "rlcd", "--recipe", "paper"), 1),
    ],
)
def test_check_replays_recorded_trajectories(arguments, code, cli, golden):
    method, name, *rest = arguments
    answer = cli("check", method, "--trajectory", golden / f"{name}_trajectory.npz", *rest, "--json")
    assert answer.code == code
    result = answer.json()
    assert result["ok"] is (code == 0)
    worst = max(term["deviation"] for term in result["terms"])
    assert (worst <= 1e-4) is (code == 0)
    assert {"total", "final head.last_layer.weight_v"} <= {term["name"] for term in result["terms"]}


@pytest.mark.parametrize(
    ("method", "file", "recipe", "variants"),
    [
        ("gcd", "gcd", "paper", "plain"),
        ("cms", "cms", "paper", "plain"),
        ("orca", "orca", "adapted", "plain"),
        ("uno", "uno", "adapted", "gcd, gcd_raw"),
        ("legogcd", "legogcd_paper", "paper", "plain"),
        ("legogcd", "legogcd_released", "released", "plain"),
        ("simgcd", "simgcd", "paper", "plain"),
        ("rlcd", "rlcd", "released", "plain, difflr"),
    ],
)
def test_check_finds_the_recipe_and_replays_every_variant(method, file, recipe, variants, cli, golden):
    answer = cli("check", method, "--trajectory", golden / f"{file}_trajectory.npz", "--json")
    assert answer.code == 0, answer.stderr
    result = answer.json()
    assert (result["recipe"], result["param_groups"]) == (recipe, variants)
    assert {term["variant"] for term in result["terms"]} == set(variants.split(", "))


def _changed(source: Path, target: Path, **changes) -> Path:
    """A recording with some arrays changed; None leaves one out."""
    with np.load(source) as archive:
        arrays = {**{name: archive[name] for name in archive.files}, **changes}
    np.savez(target, **{name: value for name, value in arrays.items() if value is not None})
    return target


def test_check_notices_what_a_recording_has_and_the_method_does_not(cli, tmp_path, golden):
    whole = golden / "uno_trajectory.npz"
    extra = {"gcd.final.head_other.weight": np.ones(3)}
    answer = cli("check", "uno", "--trajectory", _changed(whole, tmp_path / "a.npz", **extra))
    assert answer.code == 1
    assert "final head_other.weight (not named by the method)" in answer.stderr
    rows = np.load(whole)["gcd_raw.rows"]
    rows[5, 4] += 0.01  # the sum of the second head's losses
    answer = cli("check", "uno", "--trajectory", _changed(whole, tmp_path / "b.npz", **{"gcd_raw.rows": rows}))
    assert answer.code == 1
    assert "'head_loss.1' (adapted, gcd_raw) deviates by 1.00e-02" in answer.stderr
    odd = {"init.head_unlab_over.prototypes.0.prototypes.weight": np.ones((14, 24), dtype=np.float16)}
    answer = cli("check", "uno", "--trajectory", _changed(whole, tmp_path / "c.npz", **odd))
    assert answer.code == 4
    assert "has the shape" in answer.stderr
    answer = cli("check", "kmeans", "--trajectory", golden / "gcd_trajectory.npz")
    assert answer.code == 5
    assert "trains nothing" in answer.stderr


def test_check_refuses_what_is_no_recording(cli, tmp_path, golden):
    np.savez(tmp_path / "x.npz", a=1)
    answer = cli("check", "rlcd", "--trajectory", tmp_path / "x.npz")
    assert answer.code == 4
    assert "not a recorded trajectory" in answer.stderr
    answer = cli("check", "simgcd", "--trajectory", golden / "simgcd_trajectory.npz", "--param-groups", "difflr")
    assert answer.code == 2
    assert "variant 'difflr'" in answer.stderr
    answer = cli("check", "simgcd", "--trajectory", golden / "rlcd_trajectory.npz")
    assert answer.code == 4
    assert "lacks" in answer.stderr


def test_module_and_version(gcdbench):
    answer = gcdbench("--version")
    assert answer.code == 0
    assert package.__version__ in answer.stdout
