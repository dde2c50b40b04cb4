"""`gcdbench run` through the real command, end to end on the embedded data."""

from __future__ import annotations

import json

import pytest

QUICK = ("--epochs", "1")
SMALL = ("--set", "method.projector_hidden=32", "--set", "method.projector_out=16")


@pytest.mark.parametrize(("method", "extra"), [("rlcd", ()), ("rlcd", ("--recipe", "released")), ("simgcd", SMALL)])
def test_run_prints_a_table_and_writes_the_run(method, extra, gcdbench, tmp_path):
    answer = gcdbench("run", "--method", method, "--dataset", "digits", "--seed", "0,1", *QUICK, *extra)
    assert answer.code == 0, answer.stderr
    for word in ("All", "Base", "Novel", "OB", "mean ± std", "n = 2"):
        assert word in answer.stdout
    folders = list((tmp_path / "runs" / method / "digits").iterdir())
    assert len(folders) == 2
    assert all((folder / "record.json").is_file() for folder in folders)


def test_json_is_one_document_and_repeats_exactly(gcdbench, cli, tmp_path):
    command = ("run", "--method", "rlcd", "--dataset", "digits", *QUICK, "--json")
    one, two = gcdbench(*command, "--runs", "a"), gcdbench(*command, "--runs", "b")
    assert one.code == 0, one.stderr
    runs = one.json()["runs"]
    assert set(runs[0]) == {"method", "recipe", "seed", "run_id", "dir", "metrics"}
    assert {"all", "base", "novel", "ob"} <= set(runs[0]["metrics"])
    assert runs[0]["metrics"] == two.json()["runs"][0]["metrics"]
    assert cli(*command, "--runs", "a").json() == one.json()


def test_config_file_and_show(cli, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[run]\nmethod = "rlcd"\ndataset = "digits"\nseeds = [4]\n'
        "[train]\nepochs = 1\nlr = 0.02\n[method]\nalpha = 0.25\n"
    )
    answer = cli("run", "--config", file, "--set", "method.alpha=0.3", "--json")
    assert answer.code == 0, answer.stderr
    run = answer.json()["runs"][0]
    assert run["seed"] == 4
    record = cli("show", run["run_id"][:6], "--json").json()
    assert record["config"]["train"]["lr"] == 0.02
    assert record["config"]["method"]["alpha"] == 0.3
    assert record["sources"]["method.alpha"] == "--set"
    assert "mine.toml" in record["sources"]["train.lr"]
    text = cli("show", run["dir"]).stdout
    assert run["run_id"] in text
    assert "method.alpha" in text


def test_dry_run_trains_nothing(cli, tmp_path):
    answer = cli("run", "--method", "rlcd", "--dataset", "digits", "--dry-run", "--json")
    assert answer.code == 0, answer.stderr
    plan = answer.json()["plan"][0]
    assert plan["labelled_rows"] == 450
    assert plan["steps_per_epoch"] == 1797 // plan["config"]["train"]["batch_size"]
    assert plan["status"] == "new"
    assert plan["estimated_training_seconds"] > 0
    assert plan["memory_bytes"] > 50_000_000  # torch alone takes that
    assert 1_000_000 < plan["disk_bytes"] < 10_000_000 < plan["disk_free_bytes"]
    assert len(plan["fingerprint"]) == 16
    assert not (tmp_path / "runs").exists()
    assert "Config" in cli("run", "--method", "rlcd", "--dataset", "digits", "--dry-run").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "--method", "rlcdd", "--dataset", "digits"), 2, "Did you mean 'rlcd'"),
        (("run", "--method", "rlcd", "--dataset", "digit"), 2, "Did you mean 'digits'"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--recipe", "papr"), 2, "Did you mean 'paper'"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--backbone", "dinno"), 2, "Did you mean 'dino"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--set", "method.alhpa=1"), 2, "'method.alpha'"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--set", "alpha=1"), 2, "section.key=value"),
        (
            ("run", "--method", "rlcd", "--dataset", "digits", "--set", "method.reg_on=man"),
            2,
            "Did you mean 'main'",
        ),
        (("run", "--method", "rlcd", "--dataset", "digits", "--seed", "x"), 2, "not a list of seeds"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--k", "2"), 2, "5 base classes"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--epochs", "0"), 2, "at least 1"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--epochs", "many"), 2, "not a valid integer"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--label-ratio", "2"), 2, "between 0 and 1"),
        (
            ("run", "--method", "rlcd", "--dataset", "digits", "--set", "eval.selection=lst"),
            2,
            "Did you mean 'last'",
        ),
        (("run", "--method", "rlcd", "--dataset", "digits", "--set", "eval.rows=test"), 4, "no test part"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--config", "none.toml"), 2, "cannot be read"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--set", "views.count=3"), 2, "'rlcd' needs 2"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--k", "1000000000"), 2, "at most"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--set", "eval.batch_size=0"), 2, "at least 1"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--set", "train.momentum=-1"), 2, "not be negative"),
        (("run", "--method", "simgcd", "--dataset", "digits", "--set", "method.student_temp=0"), 2, "positive"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--set", "method.alpha=inf"), 2, "must be a number"),
        (("run", "--method", "rlcd", "--dataset", "digits", "--seed", "0-9999999999"), 2, "more than 1000 seeds"),
        (
            ("run", "--method", "rlcd", "--dataset", "digits", "--backbone", "vit_base_patch16_224.dinoo"),
            2,
            "Did you mean 'vit_base_patch16_224.dino'",
        ),
        (("run", "--method", "rlcd"), 2, "--dataset is missing"),
        (("data", "splt", "cub"), 2, "Did you mean 'split'"),
        (("run", "--dataset", "digits"), 2, "--method is missing"),
        (("run", "--method", "rlcd", "--dataset", "scars"), 4, "cars_train_annos.mat"),
        (("run", "--method", "rlcd", "--dataset", "cifar10"), 4, "gcdbench data fetch cifar10"),
        (
            ("run", "--method", "rlcd", "--dataset", "digits", "--set", "backbone.weights=/none.pth"),
            4,
            "does not exist",
        ),
        (("run", "--method", "rlcd", "--dataset", "folder", "--data-root", "nowhere"), 4, "does not exist"),
        (("rn",), 2, "Did you mean 'run'"),
        (("list", "method"), 2, "Did you mean 'methods'"),
        (("show", "abc"), 2, "There is no run 'abc'"),
        (("data", "split", "cubb"), 2, "Did you mean 'cub'"),
        (("check", "rlcd", "--trajectory", "none.npz"), 4, "does not exist"),
        (("score", "none.npz"), 4, "does not exist"),
    ],
)
def test_mistakes_are_sentences(arguments, code, words, cli, tmp_path):
    answer = cli(*arguments)
    assert answer.code == code
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_show_says_that_a_run_is_unfinished(cli, tmp_path):
    folder = tmp_path / "runs/rlcd/digits/0123456789ab"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"train": {"epochs": 9}}))
    (folder / "metrics.jsonl").write_text('{"epoch": 1}\n')
    answer = cli("show", "0123")
    assert answer.code == 2
    assert "1 of 9 epochs are done" in answer.stderr


def test_runs_folder_that_is_a_file_is_a_sentence(cli, tmp_path):
    (tmp_path / "file").write_text("")
    answer = cli("run", "--method", "rlcd", "--dataset", "digits", *QUICK, "--runs", "file/x")
    assert answer.code == 1
    assert "Error: The run of 'rlcd' could not write or read a file: file" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_show_of_a_foreign_folder_is_a_sentence(cli, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    answer = cli("show", ".")
    assert answer.code == 2
    assert "is no run directory" in answer.stderr


def test_unreadable_record_is_a_sentence(cli, tmp_path):
    folder = tmp_path / "runs/rlcd/digits/0123456789ab"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "record.json").write_text('{"schema": 99}')
    answer = cli("show", "0123")
    assert answer.code == 1
    assert "schema 99" in answer.stderr
