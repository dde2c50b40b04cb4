"""Helpers for tests of lanes."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from gcdbench.training import checkpoint
from tests.support.runs import assert_same, start

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


def deep(state):
    """A nested state as plain data whose equality is equality of bits."""
    if isinstance(state, torch.Tensor):
        return (str(state.dtype), tuple(state.shape), state.contiguous().view(-1).view(torch.uint8).tolist())
    if isinstance(state, dict):
        return {key: deep(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [deep(value) for value in state]
    return state


def assert_resumed_equal(one, two):
    """Every bit of the final checkpoint too; its file may differ, since pickle notes which equal objects are one."""
    assert one.run_id == two.run_id
    assert one.metrics == two.metrics
    assert lines(one) == lines(two)
    assert_same(one, two)
    left, right = (deep(checkpoint.load(Path(r.dir))) for r in (one, two))
    assert left == right


def assert_equal_runs(one, two):
    assert one.run_id == two.run_id
    assert one.metrics == two.metrics
    assert lines(one) == lines(two)
    assert_same(one, two)
    left, right = (Path(r.dir) / checkpoint.FILE for r in (one, two))
    assert left.read_bytes() == right.read_bytes()
