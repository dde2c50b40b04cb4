"""The embedded data set with its preset, as `make demo` runs it: better than k-means on the same features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

import gcdbench
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import RunRequest, resolve_request
from gcdbench.prepare.run_context import prepare_run, run_pool
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.toolbox.cluster_accuracy import v2


def kmeans() -> np.ndarray:
    """All, Base, Novel of k-means on the backbone's CLS features of the unlabelled rows, in percent."""
    planned = resolve_request(RunRequest(method="simgcd", dataset="digits"))
    ctx = prepare_run(planned, planned.runs[0], SharedResources(RunEnvironment(root=Path("."), device="cpu")))
    tail = ctx.backbone.tail()
    queries = run_pool(ctx, "unlabelled").queries
    features = queries.features(lambda tokens: torch.nn.functional.normalize(tail(tokens)[:, 0], dim=1))
    features = features[ctx.data.by_row("train", queries.index)]
    truth = ctx.truth("unlabelled")
    runs = [KMeans(10, n_init=10, random_state=s).fit_predict(features.numpy()).astype(np.int64) for s in range(5)]
    return 100 * np.mean([v2(truth.target, labels, 5) for labels in runs], axis=0)


@pytest.mark.slow
def test_demo_beats_kmeans_and_is_not_degenerate(tmp_path):
    demo = Path(__file__).parents[2] / "configs" / "demo.toml"
    metrics = gcdbench.run(config=demo, seeds=0, runs=tmp_path)[0].metrics
    total, base, _ = kmeans()
    assert metrics["all"] > total + 2
    assert metrics["base"] > base + 5
    # The degenerate solution puts every unlabelled row into a novel class: Base near 0, OB still high.
    assert metrics["base"] > 85
    assert metrics["base_to_novel"] < 10
