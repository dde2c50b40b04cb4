"""Helpers for tests of lanes."""

from __future__ import annotations

import json
from pathlib import Path

from gcdbench.engine import checkpoint
from tests.engine.runs import assert_same, start

SETTINGS = {"eval.every": 1}


def together(tmp_path, method="rlcd,simgcd", where="lanes", **more):
    return start(tmp_path, method, where, settings={**SETTINGS, **more.pop("settings", {})}, **more)


def alone(tmp_path, method, where="alone", **more):
    name, _, recipe = method.partition(":")
    settings = {**SETTINGS, **more.pop("settings", {})}
    return start(tmp_path, name, where, recipe=recipe or None, settings=settings, **more)[0]


def lines(record):
    found = [json.loads(x) for x in (Path(record.dir) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in x.items() if "seconds" not in k and k != "lanes"} for x in found]


def assert_equal_runs(one, two):
    assert one.run_id == two.run_id
    assert one.metrics == two.metrics
    assert lines(one) == lines(two)
    assert_same(one, two)
    left, right = (Path(r.dir) / checkpoint.FILE for r in (one, two))
    assert left.read_bytes() == right.read_bytes()
