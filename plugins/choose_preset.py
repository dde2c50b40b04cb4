"""How presets of ours were chosen: with held-out labelled rows and unsupervised quantities, never with hidden labels.

    python plugins/choose_preset.py rlcd train.lr=0.02,0.05,0.1 method.entropy_weight=1,2,4
    python plugins/choose_preset.py rlcd --experiment cifar10-cpu-5000 --data-root data method.aux_init_std=0.1,0.5

`rlcd:released` takes another recipe; a value may be a list of alternatives, and several keys are tried in all
combinations. Settings that all of them share come from an experiment file, or are given as a single value. A fifth of
the labelled rows is treated as unlabelled during training. For every combination it prints, averaged over seeds, what
a user without hidden labels can know:

held-out    accuracy of the held-out rows over *all* classes: falls to zero if unlabelled base rows drift into
            novel classes, which the supervised loss cannot show
base rows   how close the number of unlabelled rows put into base classes is to what the label ratio tells (half
            of the base rows are labelled, so as many are not): 1 is exact, 0 is off by that number or more
balance     entropy of the use of classes among unlabelled rows, over its maximum
silhouette  how well the predicted clusters are separated in the features that are classified
stability   agreement (NMI) of the predictions of different seeds: a good clustering is found again
score       mean of the five; the preset takes the best
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from sklearn.metrics import silhouette_score

from gcdbench.analysis.experiment_file import load_experiment
from gcdbench.config.coercion import parse_assignment
from gcdbench.contracts import Method
from gcdbench.evaluation.information import nmi
from gcdbench.prepare.environment import RunEnvironment, StoreOptions
from gcdbench.prepare.request import RunRequest, resolve_request
from gcdbench.prepare.run_context import RunContext, run_pool
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.prepare.token_stores import make_stores
from gcdbench.records.run_directory import RunDirectory
from gcdbench.records.trackers import Trackers
from gcdbench.runs.execute import open_runs
from gcdbench.runs.lane_groups import trunk_groups
from gcdbench.system.observer import Observer
from gcdbench.training.evaluate import predict
from gcdbench.training.isolation import Guard
from gcdbench.training.lane import Lane
from gcdbench.training.loop import Clock, train

SEEDS = (100, 101, 102)
"""Seeds of training that no reported result uses."""
SILHOUETTE_ROWS = 5000
"""Rows whose silhouette is computed at most: its cost grows with their square."""
COLUMNS = ("held-out", "base rows", "balance", "silhouette", "stability", "score")


def hold_out(ctx: RunContext, share: float = 0.2) -> tuple[RunContext, np.ndarray]:
    """The run with the labels of a share of the labelled rows hidden, and these rows."""
    split = ctx.data.split
    hidden = np.sort(np.random.default_rng(0).permutation(split.labelled)[: int(share * len(split.labelled))])
    labelled = np.setdiff1d(split.labelled, hidden)
    unlabelled = np.setdiff1d(np.arange(len(split.target)), labelled)
    data = dataclasses.replace(ctx.data, split=dataclasses.replace(split, labelled=labelled, unlabelled=unlabelled))
    sampler = type(ctx.sampler)(data.numbered, ctx.config.train.batch_size)
    return dataclasses.replace(ctx, data=data, sampler=sampler), hidden


def silhouette(ctx: RunContext, method: Method, answer: np.ndarray) -> float:
    """Of the predicted clusters, in the normalised features of the method; 0 where there are none."""
    if len(set(answer)) < 2:
        return 0.0

    def embed(tokens: Any) -> Any:
        found = method.features(tokens)
        return tokens[:, 0] if found is None else F.normalize(found, dim=1)

    queries = run_pool(ctx, "unlabelled", "features").queries
    features = queries.features(embed).cpu().numpy()[ctx.data.by_row("train", queries.index)]
    some = min(SILHOUETTE_ROWS, len(features))
    return float(silhouette_score(features, answer, sample_size=some, random_state=0))


def judge(ctx: RunContext, trained: Method, held: np.ndarray, expected: float) -> tuple[list[float], np.ndarray]:
    """held-out, base rows, balance and silhouette of one trained method, and its predictions."""
    answer = predict(ctx, trained, "unlabelled").cluster
    where = np.searchsorted(ctx.data.split.unlabelled, held)
    correct = float((answer[where] == ctx.data.split.target[held]).mean())
    base_rows = max(0.0, 1 - abs((answer < len(ctx.data.split.base)).sum() - expected) / expected)
    share = np.bincount(answer, minlength=ctx.k) / len(answer)
    balance = float(-(share[share > 0] * np.log(share[share > 0])).sum() / np.log(ctx.k))
    return [correct, base_rows, balance, silhouette(ctx, trained, answer)], answer


def measure(
    requests: Sequence[RunRequest], environment: RunEnvironment, seeds: Sequence[int] = SEEDS
) -> list[tuple[np.ndarray, list[np.ndarray]]]:
    """The five criteria of each request, averaged over seeds, and its predictions; all of a seed train in lanes."""
    rows: list[list[list[float]]] = [[] for _ in requests]
    answers: list[list[np.ndarray]] = [[] for _ in requests]
    shared = SharedResources(environment)
    for seed in seeds:
        lanes, facts, trained = [], [], dict[int, Method]()
        for number, request in enumerate(requests):
            asked = resolve_request(dataclasses.replace(request, seeds=(seed,)))
            prepared = next(open_runs(asked, shared))
            ratio = prepared.config.data.label_ratio
            expected = len(prepared.data.split.labelled) * (1 - ratio) / ratio
            ctx, held = hold_out(prepared)
            run = RunDirectory(environment.runs / f"{number}-{seed}")
            run.open()
            run.write_config({})
            lanes.append(Lane(ctx, run, Trackers((), print)))
            facts.append((held, expected + len(held)))

        def keep(lane: Lane, trained: dict[int, Method] = trained) -> None:
            trained[id(lane)] = lane.trainer.method
            lane.close()

        for group in trunk_groups(lane.ctx for lane in lanes):  # those that see the same batches
            make_stores(group[0], Observer())
            chosen = {id(ctx) for ctx in group}
            train([lane for lane in lanes if id(lane.ctx) in chosen], Guard(Observer()), Clock(), keep)
        for number, (lane, (held, expected)) in enumerate(zip(lanes, facts, strict=True)):
            if lane.fault is not None:
                raise lane.fault
            found, answer = judge(lane.ctx, trained[id(lane)].eval(), held, expected)
            rows[number].append(found)
            answers[number].append(answer)
    return [
        (np.array([*np.mean(r, axis=0), np.mean([nmi(a, b) for a, b in itertools.combinations(given, 2)])]), given)
        for r, given in zip(rows, answers, strict=True)
    ]


def requests_of(method: str, choices: Sequence[str], shared: Mapping[str, Any], **common: Any) -> list[RunRequest]:
    """Every combination of the given values."""
    name, _, recipe = method.partition(":")
    lists = [(key, raw.split(",")) for key, raw in (c.split("=", 1) for c in choices)]
    found = []
    for values in itertools.product(*(options for _, options in lists)):
        pairs = dict(parse_assignment(f"{key}={value}") for (key, _), value in zip(lists, values, strict=True))
        found.append(RunRequest(method=name, recipe=recipe or None, settings={**shared, **pairs}, **common))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Try every combination and print a table."""
    parser = argparse.ArgumentParser(description="Compare settings by what a user without hidden labels can know.")
    parser.add_argument("method")
    parser.add_argument("choices", nargs="*", metavar="KEY=VALUE[,VALUE...]")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--experiment", help="take dataset and common settings from this experiment file")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--cache", type=Path)
    asked = parser.parse_args(arguments)
    dataset, shared, backbone = asked.dataset, {}, None
    if asked.experiment is not None:
        experiment = load_experiment(asked.experiment)
        dataset, shared = experiment.datasets[0], dict(experiment.common)
        backbone = experiment.backbones[0] if experiment.backbones else None
    requests = requests_of(asked.method, asked.choices, shared, dataset=dataset, backbone=backbone)
    with tempfile.TemporaryDirectory() as folder:
        environment = RunEnvironment(Path(folder), asked.data_root, store_options=StoreOptions.at(asked.cache))
        print("  ".join(COLUMNS) + "  settings")
        for request, (found, _) in zip(requests, measure(requests, environment), strict=True):
            values = zip((*found, found.mean()), COLUMNS, strict=True)
            chosen = {key: value for key, value in request.settings.items() if key not in shared}
            spelled = " ".join(f"{key}={value}" for key, value in chosen.items())
            print("  ".join(f"{value:{len(name)}.3f}" for value, name in values) + f"  {spelled}", flush=True)


if __name__ == "__main__":
    main()
