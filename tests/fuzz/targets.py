"""All fuzz targets: one per parser of an outside format."""

from __future__ import annotations

from tests.fuzz import data_targets, own_targets
from tests.fuzz.target import Target

TARGETS: tuple[type[Target], ...] = (
    *(data_targets.Mat, data_targets.Pickles, data_targets.Cub, data_targets.Aircraft, data_targets.Csv),
    *(data_targets.Images, data_targets.Archives),
    *(own_targets.ConfigFile, own_targets.Assignments, own_targets.ExperimentFile, own_targets.Records),
    *(own_targets.Epochs, own_targets.Predictions, own_targets.Checkpoints, own_targets.Weights, own_targets.Stores),
    *(own_targets.Jobs, own_targets.Projections),
)
