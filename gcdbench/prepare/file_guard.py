"""Whether the image files are still those a run began with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gcdbench.data.images import DirectImages
from gcdbench.errors import DataError

if TYPE_CHECKING:
    from gcdbench.contracts import Dataset
    from gcdbench.prepare.run_context import Workspace


class DataChanged(DataError):
    """The image files are not those the run began with: what it has learnt from them since must not be kept."""


@dataclass(frozen=True)
class DataState:
    """Hash of the image files of each part when the run was prepared; see `Dataset.files_hash`."""

    files: dict[str, str]

    @staticmethod
    def of(dataset: Dataset, parts: tuple[str, ...]) -> DataState:
        """Of the files as they are now."""
        return DataState({part: dataset.files_hash(part) for part in parts})

    def check(self, space: Workspace) -> None:
        """Stop if files have changed since then and the run reads them; one that reads packed copies goes on."""
        images = space.source.images
        read = tuple(part for part in self.files if isinstance(images.get(part), DirectImages))
        if read:
            now = DataState.of(space.data.dataset, read)
            compare(DataState({part: self.files[part] for part in read}), now, space)


def compare(before: DataState, now: DataState, space: Workspace) -> None:
    """Stop if files have another size than before. Other times alone are noted: copies of the same files have those."""
    title = space.data.dataset.title
    for part, was in before.files.items():
        found = now.files.get(part, "")
        if was == found or not was or not found:
            continue
        if _sizes(was) != _sizes(found):
            raise DataChanged(
                f"The image files of {title} ({part}) have changed since this run began: its result would belong to "
                "neither data set. Put the files back and give the same command again, or start anew with --force."
            )
        note = f"The image files of {title} ({part}) have other times than when this run began, but the same sizes."
        if note not in space.warnings:
            space.warnings.append(note)


def _sizes(files_hash: str) -> Any:
    """The part of the hash that tells of sizes, where the dataset keeps it apart; else all of it."""
    return files_hash.partition("-")[0]
