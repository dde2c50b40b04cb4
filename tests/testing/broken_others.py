"""Sound and broken datasets, evaluators and K estimators: one broken one for every check of the conformance kit."""

from __future__ import annotations

import gc
import itertools
import os
from typing import ClassVar

import numpy as np
from PIL import Image

from gcdbench.contracts import ClassSplit, Dataset, Evaluator, Index, KEstimate, KEstimator
from gcdbench.data.datasets.files import stat_hash
from gcdbench.data.splits import Split, row_order
from gcdbench.errors import DataError


class SoundDataset(Dataset):
    """Folders a, b, c, d with twelve PNG files each."""

    name = "subject"
    title = "Subject"
    layout = "a/0.png ..."

    def index(self, part: str) -> Index:
        files = sorted(self.root.glob("*/*.png"))
        if not files or part == "test":
            raise DataError(f"There are no images below {self.root}.")
        names = sorted({f.parent.name for f in files})
        items = tuple(str(f.relative_to(self.root)) for f in files)
        return Index(items, np.array([names.index(f.parent.name) for f in files]), tuple(names))

    def image(self, part: str, row: int) -> Image.Image:
        return Image.open(self.root / self.index(part).items[row]).convert("RGB")

    def class_split(self) -> ClassSplit:
        return ClassSplit((0, 1), (2, 3))

    def files_hash(self, part: str) -> str:
        return stat_hash(self.root / item for item in self.index(part).items)


class DatasetFailsPosition(SoundDataset):
    """Undoes the shuffling: rows have names without a meaning, and are placed so that methods meet them by class."""

    def index(self, part: str) -> Index:
        sound = super().index(part)
        self.files = [""] * len(sound)
        labels = np.zeros_like(sound.labels)
        items = tuple(f"row {number}" for number in range(len(sound)))
        for number, row in enumerate(row_order(Index(items, labels, sound.class_names))):
            self.files[row], labels[row] = sound.items[number], sound.labels[number]
        return Index(items, labels, sound.class_names)

    def image(self, part: str, row: int) -> Image.Image:
        self.index(part)
        return Image.open(self.root / self.files[row]).convert("RGB")


class DatasetFailsChanges(SoundDataset):
    """Says nothing of its files."""

    def files_hash(self, part: str) -> str:
        return ""


class DatasetFailsDescribesItself(SoundDataset):
    """Another name than the one it is registered under."""

    name = "other"


class DatasetFailsMissingData(SoundDataset):
    """A missing folder ends in whatever Python raises."""

    def index(self, part: str) -> Index:
        if part == "train" and not self.root.is_dir():
            raise KeyError(self.root)
        return super().index(part)


class DatasetFailsIndex(SoundDataset):
    """The order of rows is a matter of luck."""

    calls: ClassVar[itertools.count] = itertools.count()

    def index(self, part: str) -> Index:
        found = super().index(part)
        if next(self.calls) % 2:
            return Index(found.items[::-1], found.labels[::-1], found.class_names)
        return found


class DatasetFailsSplit(SoundDataset):
    """A class that is base and novel."""

    def class_split(self) -> ClassSplit:
        return ClassSplit((0, 1), (1, 2, 3))


class DatasetFailsImages(SoundDataset):
    """Grey images."""

    def image(self, part: str, row: int) -> Image.Image:
        return super().image(part, row).convert("L")


class SoundEvaluator(Evaluator):
    """Share of rows in the largest cluster."""

    name = "subject"
    version = 1
    headline = True

    def __call__(self, truth, prediction) -> dict[str, float]:
        return {"largest": 100 * float(np.bincount(prediction.cluster).max()) / len(prediction.cluster)}


class EvaluatorFailsDescribesItself(SoundEvaluator):
    """A version that cannot be compared."""

    version = "one"


class EvaluatorFailsNumbers(SoundEvaluator):
    """A division by the number of novel rows."""

    def __call__(self, truth, prediction) -> dict[str, float]:
        novel = prediction.cluster[truth.target >= truth.num_base]
        return {"largest": 100 * float(np.bincount(novel).max()) / len(novel)}


class EvaluatorFailsDeterministic(SoundEvaluator):
    """A bootstrap without a seed."""

    def __call__(self, truth, prediction) -> dict[str, float]:
        rows = np.random.default_rng().integers(len(truth.target), size=len(truth.target))
        return {"same": 100 * float((np.arange(len(rows)) == rows).mean()) + int.from_bytes(os.urandom(2), "big")}


class EvaluatorFailsInputsUntouched(SoundEvaluator):
    """Sorts in place."""

    def __call__(self, truth, prediction) -> dict[str, float]:
        prediction.cluster.sort()
        return super().__call__(truth, prediction)


class EvaluatorFailsNamesDoNotMatter(SoundEvaluator):
    """Takes the numbers of clusters at their word."""

    def __call__(self, truth, prediction) -> dict[str, float]:
        return {"same": 100 * float((truth.target == prediction.cluster).mean())}


class SoundEstimator(KEstimator):
    """Always the base classes."""

    name = "subject"
    version = 1

    def estimate(self, pool, task, largest) -> KEstimate:
        return KEstimate(task.num_base)


class KEstimatorFailsDescribesItself(SoundEstimator):
    """Another name than the one it is registered under."""

    name = "other"


class KEstimatorFailsRange(SoundEstimator):
    """Does not listen."""

    def estimate(self, pool, task, largest) -> KEstimate:
        return KEstimate(task.num_base + 1)


class KEstimatorFailsDeterministic(SoundEstimator):
    """Scores that change."""

    def estimate(self, pool, task, largest) -> KEstimate:
        return KEstimate(task.num_base, {task.num_base: float(int.from_bytes(os.urandom(6), "big"))})


class KEstimatorFailsHiddenLabels(SoundEstimator):
    """Finds the true classes in memory."""

    def estimate(self, pool, task, largest) -> KEstimate:
        found = [o for o in gc.get_objects() if isinstance(o, Split) and len(o.target) == len(pool)]
        seen = {split.target.tobytes(): split for split in found}
        return KEstimate(task.num_base, {task.num_base: float(sum(hash(key) % 997 for key in seen))})
