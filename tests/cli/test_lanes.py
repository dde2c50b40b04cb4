"""Several methods in one command, stores, and what they look like on the command line."""

from __future__ import annotations

import json
import re

import pytest

QUICK = ("--dataset", "digits", "--epochs", "1")
pytestmark = pytest.mark.usefixtures("few_digits")


def test_several_methods_in_one_command(cli):
    answer = cli("run", "--method", "rlcd:paper,rlcd:released", *QUICK)
    assert answer.code == 0, answer.stderr
    assert "[1/1] rlcd (paper), rlcd (released) on digits, seed 0, 2 lanes" in answer.stderr
    assert "rlcd (paper) on digits" in answer.stdout
    assert "rlcd (released) on digits" in answer.stdout
    again = cli("run", "--method", "rlcd:paper,rlcd:released", *QUICK, "--json").json()["runs"]
    assert [(r["method"], r["recipe"]) for r in again] == [("rlcd", "paper"), ("rlcd", "released")]


def test_several_methods_in_a_config_file(cli, tmp_path):
    (tmp_path / "both.toml").write_text(
        '[run]\nmethod = ["rlcd", "rlcd:paper"]\ndataset = "digits"\n[train]\nepochs = 1\n'
    )
    runs = cli("run", "--config", "both.toml", "--json").json()["runs"]
    assert [r["recipe"] for r in runs] == ["released", "paper"]
    assert len(cli("run", "--config", "both.toml", "--method", "rlcd", "--json").json()["runs"]) == 1


def test_results_are_shown_before_what_failed(cli, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = RLCD.predict

    def predict(self, pool):
        if self.config.pseudo_base != "predicted":
            raise ZeroDivisionError("oops")
        return original(self, pool)

    monkeypatch.setattr(RLCD, "predict", predict)
    answer = cli("run", "--method", "rlcd:paper,rlcd:released", *QUICK)
    assert answer.code == 5
    assert "rlcd (paper) on digits" in answer.stdout
    assert "rlcd (released), seed 0 stopped: The method 'rlcd' failed in predict" in answer.stderr
    assert "1 of 2 runs failed; finished ones are kept." in answer.stderr
    assert "Traceback" not in answer.stderr


def test_compare_trains_what_is_missing_in_lanes(cli):
    answer = cli("compare", "rlcd:paper", "rlcd:released", "--run-missing", *QUICK, "--seed", "0,1", "--json")
    assert answer.code == 0, answer.stderr
    assert answer.stderr.count(", 2 lanes") == 2
    assert (
        ", 2 lanes"
        not in cli("compare", "rlcd:paper", "rlcd:released", "--run-missing", *QUICK, "--seed", "0,1").stderr
    )


def test_a_table_is_planned_in_lanes(cli):
    answer = cli("table", "ablation", "--dataset", "digits", "--dry-run", "--seed", "0", "--json").json()
    assert [run["lanes"] for run in answer["runs"]] == [8] * 8
    limited = cli("table", "ablation", "--dataset", "digits", "--dry-run", "--seed", "0", "--lanes", "3").stdout
    assert "8 of 8 runs to train, in up to 3 lanes" in limited


def test_stores_on_the_command_line(cli, tmp_path):
    stores = ("--store-tokens", "bf16", "--train-views", "2", "--cache", "cache")
    plan = cli("run", "--method", "rlcd", *QUICK, *stores, "--dry-run")
    assert plan.code == 0, plan.stderr
    assert "Store of train tokens: bf16, would take 870 kB in cache" in plan.stdout
    assert "Store of training views: bf16, would take 1.74 MB in cache" in plan.stdout
    assert not (tmp_path / "cache").exists()
    answer = cli("run", "--method", "rlcd", *QUICK, *stores)
    assert answer.code == 0, answer.stderr
    assert re.search(r"Writing bf16 tokens of 400 images .*, about 870 kB, to cache/tokens/", answer.stderr)
    assert "stored in cache" in cli("run", "--method", "rlcd", *QUICK, *stores, "--dry-run").stdout
    listed = cli("cache", "list", "--cache", "cache", "--json").json()["stores"]
    assert sorted(s["bytes"] for s in listed) == [872_128, 1_744_128]
    table = cli("cache", "list", "--cache", "cache").stdout
    assert "bf16 tokens of 2 training views of 400 images" in table
    assert "2.62 MB in all" in table
    gone = listed[0]["key"]
    assert "Deleted 1 stores, 1.74 MB." in cli("cache", "delete", gone[:6], "--cache", "cache").stdout
    assert cli("cache", "delete", gone, "--cache", "cache").code == 2
    assert cli("cache", "delete", "--cache", "cache").code == 2
    assert cli("cache", "delete", "", "--cache", "cache").code == 2
    left = tmp_path / "cache" / "tokens" / ".0123456789abcdef.x.tmp"
    left.mkdir()
    assert "1 unfinished stores of killed processes" in cli("cache", "list", "--cache", "cache").stdout
    cli("cache", "delete", "--all", "--cache", "cache")
    assert not left.exists()
    assert cli("cache", "list", "--cache", "cache").stdout == "There are no stores in cache.\n"


def test_a_folder_that_is_no_store_is_left_alone(cli, tmp_path):
    place = tmp_path / "cache" / "images" / "precious"
    place.mkdir(parents=True)
    (place / "store.json").write_text(json.dumps({"kind": "photographs", "bytes": 3}))
    assert cli("cache", "delete", "--all", "--cache", "cache").code == 0
    assert place.is_dir()


def test_wrong_values_are_sentences(cli):
    assert "train.stream is -1" in cli("run", "--method", "rlcd", *QUICK, "--set", "train.stream=-1").stderr
    too_few = cli("run", "--method", "rlcd", *QUICK, "--train-views", "1")
    assert too_few.code == 2
    assert "store.train_views is 1, but a step takes 2 different views" in too_few.stderr


def test_runs_with_rounded_tokens_do_not_compare_with_exact_ones(cli):
    for extra in ((), ("--store-tokens", "bf16", "--cache", "cache")):
        assert cli("run", "--method", "rlcd", *QUICK, *extra).code == 0
    answer = cli("compare", "rlcd", "--all-setups", *QUICK)
    assert answer.code == 3
    assert "approximations" in answer.stderr


def test_the_short_help_lists_every_command_and_imports_none(gcdbench):
    from gcdbench.cli.main import COMMANDS, cli

    answer = gcdbench("--help")
    for name, (_, purpose) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(purpose)}$", answer.stdout, flags=re.MULTILINE)
        assert cli.get_command(None, name).name == name


def test_neutral_values_are_the_same_run_also_where_runs_are_chosen(cli):
    assert cli("run", "--method", "rlcd:paper,rlcd:released", *QUICK).code == 0
    for same in ("store.eval_tokens=fp32", "store.train_views=0", "train.compile=false", "eval.batch_size=7"):
        answer = cli("compare", "rlcd", "rlcd:released", *QUICK, "--set", same, "--json")
        assert answer.code == 0, answer.stderr
    other = cli("compare", "rlcd", "rlcd:released", *QUICK, "--set", "store.train_views=4")
    assert other.code == 2
    assert "no finished run" in other.stderr
