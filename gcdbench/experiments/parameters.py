"""Parameter counts of a method by part, without weights or data: everything is built on the meta device."""

from __future__ import annotations

from pathlib import Path

import torch

from gcdbench.backbone.load import on_meta
from gcdbench.backbone.tail import Tail
from gcdbench.config.sections import DataConfig
from gcdbench.contracts import Task
from gcdbench.data.splits import cut_base
from gcdbench.prepare.request import RunRequest, resolve_request
from gcdbench.system.plugin_call import plugin_call
from gcdbench.toolbox.heads import ContrastiveHead, CosineClassifier, Projector

PARTS = {Tail: "backbone", ContrastiveHead: "projector", CosineClassifier: "classifier", Projector: "projector"}
"""Which part of a model a module of this class is; everything else is extra."""


def count_parameters(request: RunRequest, root: Path) -> dict[str, int]:
    """Parameters of backbone, classifiers, projector, everything else, and their total.

    Only heads of `gcdbench.toolbox.heads` are known as classifiers and projectors; a method's own modules are extra.
    """
    planned = resolve_request(request)
    config = planned.runs[0].config
    data: DataConfig = config.data
    classes = cut_base(planned.dataset_class(root).class_split(), data.novel_ratio)
    backbone = on_meta(config.backbone, config.views.crop)
    task = Task(
        num_base=len(classes.base),
        num_classes=data.k or len(classes.base) + len(classes.novel),
        backbone=backbone,
        train=config.train,
        steps_per_epoch=1,
    )
    with torch.device("meta"), plugin_call(config.method, "__init__"):
        method = planned.method_class(config.method_config, task)
    parts = {"backbone": backbone.num_parameters(), "classifier": 0, "projector": 0, "extra": 0}
    known: set[int] = set()
    for module in method.modules():
        part = next((name for kind, name in PARTS.items() if isinstance(module, kind)), None)
        if part is not None:  # what is part of such a module counts with it
            own = [p for p in module.parameters() if id(p) not in known]
            known.update(map(id, own))
            # Tails are copies of blocks that the backbone's own count has already.
            parts[part] += 0 if part == "backbone" else sum(p.numel() for p in own)
    parts["extra"] = sum(p.numel() for p in method.parameters() if id(p) not in known)
    return {**parts, "total": sum(parts.values())}
