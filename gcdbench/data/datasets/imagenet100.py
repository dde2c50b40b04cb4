"""ImageNet-100: 100 classes of ImageNet-1k, drawn once with a fixed seed by the field, found by their wnids."""

from __future__ import annotations

from pathlib import Path

from gcdbench.contracts import ClassSplit, Expected, Index
from gcdbench.data.class_lists import imagenet100_wnids, published_split
from gcdbench.data.data_root import missing
from gcdbench.data.datasets.files import FileDataset, listing, make_index

_ROOTS = ("imagenet100", "imagenet_100", "imagenet", "ImageNet", "ILSVRC/Data/CLS-LOC", "ILSVRC2012", ".")
_FOLDERS = {"train": ("train",), "test": ("val", "validation", "test")}


class ImageNet100(FileDataset):
    """Rows of the 100 class folders, in sorted wnid and file order; a full ImageNet tree works as it is."""

    name = "imagenet100"
    title = "ImageNet-100"
    expected = Expected(train=None, test=5_000, classes=100, per_class=(732, 1_300))
    layout = (
        "imagenet/\n  train/n01443537/*.JPEG ... (all 1,000 wnids, or just the 100)\n"
        "  val/n01443537/*.JPEG ... (sorted into wnid folders; only to score test rows)"
    )
    steps = (
        "Register at image-net.org and download ILSVRC2012_img_train.tar (and ILSVRC2012_img_val.tar).",
        "Unpack the training archive so that <data root>/imagenet/train/ holds one folder per wnid.",
        "To score test rows, sort the validation images into <data root>/imagenet/val/<wnid>/.",
        "Run `gcdbench data verify imagenet100` to check the result.",
    )

    def read_part(self, part: str) -> tuple[Path, Index]:
        """Rows of the 100 class folders."""
        wnids = imagenet100_wnids()
        for root in _ROOTS:
            for name in _FOLDERS[part]:
                folder = self.root / root / name
                present = [w for w in wnids if (folder / w).is_dir()]
                if not present:
                    continue
                absent = sorted(set(wnids) - set(present))
                if absent:
                    shown = ", ".join(absent[:3])
                    raise missing(self, f"{folder} lacks {len(absent)} of the 100 class folders ({shown}, ...)")
                items, labels = listing(folder, enumerate(wnids))
                return folder, make_index(items, labels, wnids)
        raise missing(self, f"there is no folder {self.root / 'imagenet' / _FOLDERS[part][0] / wnids[0]}")

    def class_split(self) -> ClassSplit:
        """The first 50 classes are base."""
        return published_split(self.name)
