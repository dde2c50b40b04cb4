"""How the presets for the embedded digits were chosen: with held-out labelled rows and unsupervised quantities.

    python plugins/choose_digits_preset.py rlcd train.lr=0.02,0.05,0.1 method.entropy_weight=1,2,4

`rlcd:released` takes another recipe. A fifth of the labelled rows is treated as unlabelled during training. For every
combination of the given values it prints, averaged over seeds, what a user without hidden labels can know:

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

import dataclasses
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import silhouette_score

from gcdbench.coercion import parse_assignment
from gcdbench.contracts import Method
from gcdbench.engine.device import Compute
from gcdbench.engine.loop import train_together
from gcdbench.engine.reporter import Reporter
from gcdbench.engine.request import RunRequest, plan
from gcdbench.engine.runner import Runner
from gcdbench.engine.scoring import predict
from gcdbench.engine.trackers import Trackers
from gcdbench.engine.workspace import Workspace, prepare
from gcdbench.evaluation.information import nmi
from gcdbench.results.rundir import RunDirectory

SEEDS = (100, 101, 102)
"""Seeds of training that no reported result uses."""


class Keeper(Runner):
    """Keeps the trained method instead of writing a record."""

    def finish(self) -> None:
        """Training is over."""
        assert self.lane is not None
        self.trained = self.lane.method
        self.close()


def hold_out(space: Workspace, share: float = 0.2) -> np.ndarray:
    """Hide the labels of a share of the labelled rows; the rows whose labels were hidden."""
    split = space.data.split
    hidden = np.sort(np.random.default_rng(0).permutation(split.labelled)[: int(share * len(split.labelled))])
    labelled = np.setdiff1d(split.labelled, hidden)
    unlabelled = np.setdiff1d(np.arange(len(split.target)), labelled)
    space.data = dataclasses.replace(
        space.data, split=dataclasses.replace(split, labelled=labelled, unlabelled=unlabelled)
    )
    space.sampler = type(space.sampler)(space.data.split, space.config.train.batch_size)
    return hidden


def features(space: Workspace, method: Method) -> np.ndarray:
    """Normalised CLS features of the unlabelled rows."""
    tail: Any = method.tail
    extra = getattr(method, "aux_token", None)

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        return F.normalize(tail(tokens, extra)[:, 0], dim=1)

    return space.pool("unlabelled", "features").queries.features(embed).cpu().numpy()


def measure(method: str, settings: dict[str, Any], folder: Path) -> np.ndarray:
    """held-out, base rows, balance, silhouette and stability of one combination, averaged over seeds."""
    name, _, recipe = method.partition(":")
    planned = plan(RunRequest(method=name, dataset="digits", recipe=recipe or None, seeds=SEEDS, settings=settings))
    rows, answers = [], []
    for resolved in planned.runs:
        space = prepare(planned, resolved, Compute(torch.device("cpu"), "fp32"), Path("."))
        ratio = space.config.data.label_ratio
        expected = len(space.data.split.labelled) * (1 - ratio) / ratio
        held = hold_out(space)
        expected += len(held)
        run = RunDirectory(folder / space.run_id)
        run.open()
        run.clear()
        run.write_config({})
        runner = Keeper(space, run, Trackers((), print))
        train_together([runner], Reporter())
        trained = runner.trained.eval()
        answer = predict(space, trained, "unlabelled").cluster
        where = np.searchsorted(space.data.split.unlabelled, held)
        correct = (answer[where] == space.data.split.target[held]).mean()
        base_rows = max(0.0, 1 - abs((answer < len(space.data.split.base)).sum() - expected) / expected)
        share = np.bincount(answer, minlength=space.k) / len(answer)
        balance = -(share[share > 0] * np.log(share[share > 0])).sum() / np.log(space.k)
        clear = silhouette_score(features(space, trained), answer) if len(set(answer)) > 1 else 0.0
        rows.append((correct, base_rows, balance, clear))
        answers.append(answer)
    stability = np.mean([nmi(a, b) for a, b in itertools.combinations(answers, 2)])
    return np.array([*np.mean(rows, axis=0), stability])


def main(method: str, choices: list[str]) -> None:
    """Try every combination and print a table."""
    import tempfile

    lists = [(key, raw.split(",")) for key, raw in (c.split("=", 1) for c in choices)]
    print("held-out  base rows  balance  silhouette  stability  score  settings")
    with tempfile.TemporaryDirectory() as folder:
        for values in itertools.product(*(options for _, options in lists)):
            pairs = [f"{key}={value}" for (key, _), value in zip(lists, values, strict=True)]
            found = measure(method, dict(parse_assignment(p) for p in pairs), Path(folder))
            columns = "".join(f"{value:{width}.3f}" for value, width in zip(found, (8, 11, 9, 12, 11), strict=True))
            print(f"{columns} {found.mean():6.3f}  {' '.join(pairs)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
