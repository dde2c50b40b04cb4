"""A recorded reference trajectory: starting weights, a few fixed batches, every loss of every step.

An .npz file with a tiny ViT and heads (`init.*`), batches (`batch0.images_x16`, `.labels`, `.labelled`; first views,
then second ones) and for each variant the losses of every step (`<variant>.losses`, or `.rows`), what came out
(`<variant>.final.*`) and, where they were kept, the gradients of the first step (`<variant>.grad0.*`). `memory0`, ...
are images that an epoch begins with. The entry `config` is JSON; what it leaves out follows from the arrays, and
`Method.reference_facts` says the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcdbench.contracts import IntArray
from gcdbench.errors import DataError
from gcdbench.system.files import not_a_file
from gcdbench.system.seeding import generator


class Recording:
    """A trajectory file, checked for what a replay needs."""

    def __init__(self, path: Path) -> None:
        odd = not_a_file(path)
        if odd is not None:
            raise DataError(f"The trajectory file {path} {odd}.")
        try:
            with np.load(path, allow_pickle=False) as archive:
                self.arrays = {name: archive[name] for name in archive.files}
            self.settings: dict[str, Any] = self._unsaid() | json.loads(str(self.arrays["config"]))
        except Exception as fault:  # a damaged archive can raise almost anything, and numpy would advise to trust it
            raise DataError(f"The file {path} is not a recorded trajectory ({type(fault).__name__}).") from fault

    def _unsaid(self) -> dict[str, Any]:
        """Settings that follow from the arrays; the configuration's own go before them."""
        batches = self._images("batch{}.images_x16")
        steps = max(len(self.losses(variant)) for variant in self.variants())
        labels = np.concatenate([self.arrays[f"batch{i}.labels"] for i in range(len(batches))])
        labelled = np.concatenate([self.arrays[f"batch{i}.labelled"] for i in range(len(batches))])
        return {
            "classes": int(labels.max()) + 1,
            "base_classes": int(labels[labelled].max()) + 1,
            "batch": len(batches[0]) // 2,
            "steps_per_epoch": len(batches),
            "epochs": steps // len(batches),
            "momentum": 0.9,
            "args": {},
            **({"loss_names": [str(n) for n in self.arrays["loss_names"]]} if "loss_names" in self.arrays else {}),
        }

    def variants(self) -> list[str]:
        """Names of the recorded variants."""
        ends = (".losses", ".rows")
        return [name[: -len(end)] for name in self.arrays for end in ends if name.endswith(end)]

    def losses(self, variant: str) -> np.ndarray[Any, Any]:
        """(steps, terms) of a variant."""
        name = f"{variant}.losses"
        found: np.ndarray[Any, Any] = self.arrays[name if name in self.arrays else f"{variant}.rows"]
        return found

    def initial(self) -> dict[str, Tensor]:
        """Starting weights by their recorded names."""
        return {
            name.removeprefix("init."): torch.from_numpy(array.astype(np.float32))
            for name, array in self.arrays.items()
            if name.startswith("init.")
        }

    def _images(self, name: str) -> list[Tensor]:
        count = sum(name.format(i) in self.arrays for i in range(len(self.arrays)))
        return [torch.from_numpy(self.arrays[name.format(i)].astype(np.float32)) / 16 for i in range(count)]

    def batches(self) -> list[dict[str, Tensor]]:
        """The fixed batches; labels of unlabelled rows are already hidden."""
        result = []
        for i, images in enumerate(self._images("batch{}.images_x16")):
            labelled = torch.from_numpy(self.arrays[f"batch{i}.labelled"])
            labels = torch.from_numpy(self.arrays[f"batch{i}.labels"].astype(np.int64))
            result.append({"images": images, "labelled": labelled, "target": torch.where(labelled, labels, -1)})
        return result

    def memory(self) -> list[Tensor]:
        """The images an epoch begins with, views as in a batch: recorded ones, or those of the batches."""
        return self._images("memory{}") or [batch["images"] for batch in self.batches()]


class RecordedPool:
    """All recorded rows as a pool: the first views are its evaluation views, both in turn its random ones."""

    def __init__(self, recording: Recording, trunk: Callable[[Tensor], Tensor]) -> None:
        batches = recording.batches()
        self.labelled = torch.cat([batch["labelled"] for batch in batches]).numpy()
        self.target: IntArray = torch.cat([batch["target"] for batch in batches]).numpy()
        self.index: IntArray = np.arange(len(self.target))
        halves = [images.chunk(2) for images in recording.memory()]
        self._views = [trunk(torch.cat([half[view] for half in halves])) for view in (0, 1)]
        self._turn = 0

    def __len__(self) -> int:
        return len(self.index)

    @property
    def queries(self) -> RecordedPool:
        """All rows."""
        return self

    @property
    def query_places(self) -> IntArray:
        """Every row stands where it is."""
        return self.index

    def generator(self) -> torch.Generator:
        """Random numbers for clustering."""
        return generator(0, "replay", "clustering")

    @torch.no_grad()
    def features(self, embed: Callable[[Tensor], Tensor], views: str = "test") -> Tensor:
        """``embed`` of the first views, or of each view in turn."""
        if views == "test":
            return embed(self._views[0])
        self._turn += 1
        return embed(self._views[(self._turn - 1) % 2])

    def once(self, action: Callable[[], Any]) -> Any:
        """There is one process."""
        return action()
