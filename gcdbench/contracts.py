"""Everything a plugin implements or receives, in one file.

A method is an ``nn.Module`` with two required functions: ``forward`` (a batch in, named losses out) and
``predict`` (a pool in, one class per row out). The harness owns data, split, loop, evaluation and selection;
labels that are hidden are -1 in everything a method is given.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gcdbench.config.sections import TrainConfig, ViewConfig

if TYPE_CHECKING:
    from PIL import Image

IntArray = NDArray[np.int64]


# ---------------------------------------------------------------------------------------------- datasets


@dataclass(frozen=True)
class Archive:
    """A tar archive at a stable public address, which begins with https."""

    url: str
    md5: str
    """As the publishers state it: guards against damage, not against an attacker."""
    sha256: str = ""
    """Guards against both; empty where none is known, and then https alone vouches for the origin."""

    @property
    def filename(self) -> str:
        """Its local name."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Index:
    """The rows of one part (train or test) of a dataset, known without opening an image."""

    items: tuple[str, ...]
    """One stable name per row, relative to the data root (a path, or `file:row`)."""
    labels: IntArray
    """Class id of each row in the dataset's own numbering; -1 where it is unknown."""
    class_names: tuple[str, ...]
    """Name of each class id."""

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class ClassSplit:
    """Which classes are base and which novel; targets are numbered in this order, base first."""

    base: tuple[int, ...]
    novel: tuple[int, ...]


@dataclass(frozen=True)
class Expected:
    """The official size of a dataset, for `gcdbench data verify`."""

    train: int | None
    """Training rows; None where no exact number was ever published."""
    test: int
    classes: int
    per_class: tuple[int, int] | None = None
    """Smallest and largest number of training rows of a class, where that is known instead."""


class Dataset(abc.ABC):
    """A source of images in an official on-disk layout. Constructing one touches no file."""

    name: ClassVar[str]
    title: ClassVar[str]
    expected: ClassVar[Expected | None] = None
    """Official counts; None where there are none (a person's own images)."""
    views: ClassVar[ViewConfig | None] = None
    """Views that suit these images; None takes the published 256/224 protocol."""
    backbone: ClassVar[str | None] = None
    """Default backbone; None takes `dino`."""
    layout: ClassVar[str]
    """The files and folders below the data root, as text for a person."""
    steps: ClassVar[tuple[str, ...]] = ()
    """What to do by hand to get the data, one sentence each, where no stable download exists."""
    archives: ClassVar[tuple[Archive, ...]] = ()
    """Downloads from a stable public source."""
    expected_failures: ClassVar[Mapping[str, str]] = {}
    """Checks of `gcdbench check` that this dataset is known to fail, and why."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @abc.abstractmethod
    def index(self, part: str) -> Index:
        """Rows of `train` or `test`, from annotation files and folder listings only."""

    @abc.abstractmethod
    def image(self, part: str, row: int) -> Image.Image:
        """The RGB image of a row."""

    @abc.abstractmethod
    def class_split(self) -> ClassSplit:
        """The published base and novel classes."""

    def content_hash(self, part: str) -> str:
        """Identifies the images behind the names, where names alone do not (a person's own files); else empty."""
        return ""

    def files_hash(self, part: str) -> str:
        """Changes whenever the image files may have changed: the image store is then made again, and a run that has
        begun is refused. Written as `SIZES-TIMES`, files whose times alone have changed pass for the same ones."""
        return ""

    def remarks(self) -> Sequence[str]:
        """Sentences on what was found that a person should see before a run: what was ignored, what looks like a
        slip."""
        return ()

    def labelled_rows(self, index: Index, base: Sequence[int], ratio: float) -> IntArray | None:
        """Rows that are labelled, where the data itself says so; None applies the published draw."""
        return None


# ---------------------------------------------------------------------------------------------- methods


@dataclass(frozen=True)
class Traits:
    """What the harness must know about a method before it is built."""

    needs_k: bool = True
    """The method must be given the number of classes (see `Method.finds_k` where that depends on its settings)."""
    inductive: bool = True
    """A row's prediction does not depend on the other rows."""
    reads: tuple[str, ...] = ()
    """What it reads beyond images and the labels of labelled rows (part of the protocol fingerprint)."""
    train_from: int = -1
    """First trained block of the backbone, counted from the end if negative; 0 sees pixels."""
    views: int = 2
    """Views of each image in a training batch."""
    sampler: str = "balanced"
    """How batches are drawn: `balanced` (half labelled, half not, with replacement), `mostly-labelled` (the same with
    unlabelled rows weighted by L/(L+U) instead of L/U), or `paired` (labelled rows first, then unlabelled ones, in
    numbers proportional to the sets, each set shuffled)."""


class TailFactory(Protocol):
    """Makes trainable tails of the backbone; given to a method at construction."""

    embed_dim: int
    pixels: tuple[int, int] | None
    """Sides of an image and of a patch, for a method that sees pixels (train_from = 0); else None."""

    def tail(self, *, norm: bool = True, extra_tokens: int = 0) -> nn.Module:
        """The trained blocks: tokens in, read-out tokens out (CLS first, then the extra ones).

        A copy of a ViT's last blocks or, behind a network with a feature map, fresh blocks that change nothing yet.
        It is called with tokens and, if there are any, the (extra, dim) extra tokens that are appended before the last
        block (``on_cls=True`` adds each row's CLS token to them). ``norm`` applies the backbone's final
        norm (kept frozen) to what is read.
        """
        ...


@dataclass(frozen=True)
class Task:
    """What a method knows of its job."""

    num_base: int
    """Classes with labels; targets 0..num_base-1."""
    num_classes: int
    """Classes in all, as far as the method knows: true, given or estimated (--k). For a method that finds the number
    itself, and for K estimators, just the base classes."""
    backbone: TailFactory
    train: TrainConfig
    steps_per_epoch: int
    generator: torch.Generator | None = None
    """Source of randomness for initial weights; None on the meta device (counting parameters)."""


@dataclass(frozen=True)
class Batch:
    """One training batch. Rows are images; views are stacked view-major: all first views, then all second ones.

    Several runs may train on the same batch: its tensors must not be changed in place.
    """

    tokens: Tensor
    """(views x rows, tokens, dim) trunk output, or pixels for a method with train_from = 0.

    On several ranks these are the views of this rank's rows only, while everything else is of the whole batch: a tail
    that is given them (or some of the views) returns the read-outs of the whole batch, with gradients. A network of
    the method's own in place of a tail must pass what it gives through `gcdbench.whole_batch`.
    """
    target: Tensor
    """(rows,) class of each labelled row, -1 where the label is hidden."""
    labelled: Tensor
    """(rows,) bool."""
    index: Tensor
    """(rows,) numbers of the rows in the training pool, for memory banks. Rows are numbered at random, once for each
    dataset: neither a number nor the order of a pool says anything about the class."""
    views: int = 2


@dataclass(frozen=True)
class Progress:
    """Where training stands."""

    stage: str
    epoch: int
    """Counted from 0 within the stage."""
    epochs: int
    step: int
    """Counted from 0 within the epoch."""
    steps_per_epoch: int
    generator: torch.Generator | None = None
    """Random numbers for this epoch, on the training device."""


@dataclass(frozen=True)
class Term:
    """One loss term: its value before weighting, and its weight."""

    value: Tensor
    weight: float = 1.0


class Losses(dict[str, Term]):
    """Named, weighted terms; the loss is their weighted sum.

    Call the supervised cross entropy `ce`, or `<branch>_ce` where there are several: reports draw it by that name.
    """

    def add(self, name: str, value: Tensor, weight: float = 1.0) -> None:
        """Add a term; a name may appear once."""
        if name in self:
            raise ValueError(f"the loss term '{name}' was added twice")
        self[name] = Term(value, weight)

    def total(self) -> Tensor:
        """The weighted sum, with gradients."""
        if not self:
            raise ValueError("the method returned no loss term")
        return torch.stack([term.value * term.weight for term in self.values()]).sum()


@dataclass(frozen=True)
class Stage:
    """A part of training with its own epochs and optimisers."""

    name: str
    epochs: int


class Schedule(Protocol):
    """Learning rate of an epoch (or step, see `Optim.per_step`), from the rate the parameter group started with."""

    def __call__(self, initial: float, t: Progress) -> float: ...


@dataclass(frozen=True)
class Optim:
    """An optimiser and the schedule of its learning rates."""

    optimizer: torch.optim.Optimizer
    schedule: Schedule
    per_step: bool = False
    """Ask the schedule before every step instead of once at the start of an epoch."""


class Pool(Protocol):
    """A whole set of rows with hidden labels, in a fixed random order that says nothing about them."""

    index: IntArray
    """Numbers of the rows, as in `Batch.index`."""
    target: IntArray
    """Class of each labelled row, -1 elsewhere."""
    labelled: NDArray[np.bool_]

    @property
    def queries(self) -> Pool:
        """The rows `predict` must answer for, in the order its answer must have."""
        ...

    @property
    def query_places(self) -> IntArray | None:
        """Where in this pool each query row stands; None if they are rows of another part, never seen in training."""
        ...

    def generator(self) -> torch.Generator:
        """A new source of random numbers on the host, the same at each call: for clustering."""
        ...

    def features(self, embed: Callable[[Tensor], Tensor], views: str = "test") -> Tensor:
        """``embed`` applied to the trunk tokens of every row (`test`: centre crop, `train`: one random view).

        Ranks share the work; all of them get all rows.
        """
        ...

    def once(self, action: Callable[[], Any]) -> Any:
        """What ``action`` returns on the first rank, on all ranks: for clustering. Plain data and tensors, on the host
        for all ranks but the first; there must be no call of ``features`` in it."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Prediction:
    """A method's answer for the query rows of a pool."""

    cluster: IntArray
    """Class or cluster of each row; 0..num_base-1 are the base classes for methods that know them."""
    confidence: NDArray[np.float32] | None = None
    """Largest class probability of each row."""
    base: Mapping[str, IntArray] = field(default_factory=dict)
    """Per branch (`main`, `aux`, ...) the best base class of each row, chosen among base classes only."""

    def take(self, rows: NDArray[Any]) -> Prediction:
        """The answer for some of the rows."""
        return Prediction(
            self.cluster[rows],
            None if self.confidence is None else self.confidence[rows],
            {name: values[rows] for name, values in self.base.items()},
        )


class Method(nn.Module, abc.ABC):
    """A GCD method. State is parameters, buffers or ``get_extra_state``: checkpoints need no further code."""

    Config: ClassVar[type]
    """Frozen dataclass of the method's settings, a docstring under each field."""
    traits: ClassVar[Traits] = Traits()
    recipes: ClassVar[tuple[str, ...]] = ("default",)
    """Named variants; the first is the default. Values come from `presets/<recipe>.toml` beside the module."""
    expected_failures: ClassVar[Mapping[str, str]] = {}
    """Checks of `gcdbench check` that this method is known to fail, and why."""

    def __init__(self, config: Any, task: Task) -> None:
        super().__init__()
        self.config = config
        self.task = task

    @abc.abstractmethod
    def forward(self, batch: Batch, t: Progress) -> Losses:
        """The named, weighted terms of one training step."""

    @abc.abstractmethod
    def predict(self, pool: Pool) -> Prediction:
        """A class for every row of ``pool.queries``."""

    @classmethod
    def finds_k(cls, config: Any) -> bool:
        """Whether the method, with these settings, finds the number of classes itself and must not be given it."""
        return not cls.traits.needs_k

    def stages(self) -> Sequence[Stage]:
        """Parts of training in order; none for a method that only clusters."""
        return (Stage("main", self.task.train.epochs),)

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """Optimisers of a stage; by default SGD with a cosine per epoch, no decay on one-dimensional parameters."""
        from gcdbench.toolbox.optim import default_optim

        return {"main": default_optim(self, self.task.train)}

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """Called before each epoch with the whole training pool: cluster it, rebuild banks, set margins.

        A run may be continued in the middle of an epoch, without this call: what it leaves for the steps must be
        state (parameters, buffers, ``get_extra_state``) as well.
        """

    def features(self, tokens: Tensor) -> Tensor | None:
        """(rows, dim) representation of each row, for pictures of the feature space; None if there is none to show."""
        return None

    def on_step_end(self, batch: Batch, t: Progress) -> None:
        """Called after each optimiser step: moving averages, queues, running distributions."""

    def active(self, t: Progress) -> tuple[str, ...] | None:
        """Names of the optimisers that step now; None means all."""
        return None

    @classmethod
    def reference_config(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Config values that correspond to a recorded reference trajectory (`gcdbench check`).

        ``settings`` is what the recording says of itself, its ``variant`` that is replayed among it, and ``shapes`` the
        shape of each recorded tensor.
        """
        return {}

    @classmethod
    def reference_facts(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """What a recording does not say of itself, in its own terms (`classes`, `base_classes`, `loss_names`, ...)."""
        return {}

    def reference_names(self) -> dict[str, str]:
        """This method's state name for each name of a recorded reference trajectory (`gcdbench check`)."""
        return {}

    def reference_tensor(self, name: str, recorded: Tensor) -> Tensor:
        """A recorded tensor in this method's own form, where that differs; ``name`` is the recorded one."""
        return recorded

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name and parameter of everything that is optimised."""
        return ((name, p) for name, p in self.named_parameters() if p.requires_grad)


# ------------------------------------------------------------------------------------------- evaluation


@dataclass(frozen=True)
class Truth:
    """The true classes of the scored rows: seen by evaluators, never by methods."""

    target: IntArray
    """True class of each scored row, base classes first."""
    num_base: int
    num_classes: int


class Evaluator(abc.ABC):
    """Turns truth and prediction into named numbers."""

    name: ClassVar[str]
    version: ClassVar[int]
    """Raised whenever the same input gives another number."""
    headline: ClassVar[bool] = False
    """Whether its numbers are compared between methods; only then its version is part of the fingerprint."""
    needs_truth: ClassVar[bool] = True
    """False for quantities that can be had where no true class is known."""
    expected_failures: ClassVar[Mapping[str, str]] = {}
    """Checks of `gcdbench check` that this evaluator is known to fail, and why."""

    @abc.abstractmethod
    def __call__(self, truth: Truth, prediction: Prediction) -> dict[str, float]:
        """Named numbers: shares in percent, counts as they are."""


# ------------------------------------------------------------------------------------ number of classes


@dataclass(frozen=True)
class KEstimate:
    """How many classes there seem to be."""

    k: int
    scores: Mapping[int, float] = field(default_factory=dict)
    """What the estimator maximised, for each number of classes that it tried."""


class KEstimator(abc.ABC):
    """Finds the number of classes from the images and the labels of labelled rows, before any training."""

    name: ClassVar[str]
    version: ClassVar[int]
    """Raised whenever the same input gives another number."""
    expected_failures: ClassVar[Mapping[str, str]] = {}
    """Checks of `gcdbench check` that this estimator is known to fail, and why."""

    @abc.abstractmethod
    def estimate(self, pool: Pool, task: Task, largest: int) -> KEstimate:
        """A number from ``task.num_base`` to ``largest``; ``task.backbone.tail()`` gives features of the backbone."""


# --------------------------------------------------------------------------------------------- tracking


class Tracker:
    """Follows a run while it trains; override what it needs.

    One that cannot be made or started stops the run before it begins; one that fails later is reported and left out.
    """

    name: ClassVar[str]

    def start(self, folder: Path, config: Mapping[str, Any], epochs_done: int, steps_done: int) -> None:
        """The run in ``folder`` begins, or resumes after this many epochs and steps: later ones must be forgotten."""

    def step(self, step: int, means: Mapping[str, float]) -> None:
        """Now and then within an epoch: running means of the loss terms; ``step`` counts from the run's start."""

    def epoch(self, number: int, line: Mapping[str, Any]) -> None:
        """Epoch ``number`` of the whole run (from 1) is done: `losses`, `lr`, `seconds` and maybe `metrics`."""

    def finish(self, record: Mapping[str, Any]) -> None:
        """The run is finished; ``record`` is what `record.json` holds."""

    def close(self) -> None:
        """The run is over, well or badly."""


# -------------------------------------------------------------------------------------------- launching


@dataclass(frozen=True)
class Resources:
    """What each job of a sweep is given; None where the user leaves it to the launcher."""

    gpus: float | None = None
    """GPUs; less than one lets several jobs share one."""
    cpus: int | None = None
    """Processor cores."""
    memory_gb: float | None = None
    """Main memory."""
    minutes: int | None = None
    """Time after which a job is asked to save its runs and is queued again; None for no limit."""

    def filled(self, gpus: float, cpus: int) -> Resources:
        """With these numbers where there are none."""
        return dataclasses.replace(
            self, gpus=gpus if self.gpus is None else self.gpus, cpus=cpus if self.cpus is None else self.cpus
        )


@dataclass(frozen=True)
class LaunchJob:
    """A command that trains some runs. Given again after a fault, it resumes where it was."""

    name: str
    """Different for each job of a sweep; letters, digits and '-'."""
    command: tuple[str, ...]
    """Program and arguments; the same on any machine that sees the same folders."""
    environment: Mapping[str, str]
    """Variables to be set besides those of the machine it runs on."""
    log: Path
    """Where everything it prints goes."""


@dataclass(frozen=True)
class JobState:
    """How a job stands."""

    phase: Literal["waiting", "running", "ended", "lost"]
    """`ended`: by itself, with an exit code. `lost`: its process or machine was taken away; it may be given again."""
    code: int | None = None
    """Exit code of a job that has ended."""
    where: str = ""
    """Machine or number in a queue, for a person."""
    reason: str = ""
    """Why it was lost, where the launcher knows."""


class Launcher(abc.ABC):
    """Brings the jobs of a sweep to where they run. One is made for each sweep, in the process that follows it."""

    name: ClassVar[str]
    Config: ClassVar[type]
    """Frozen dataclass of the launcher's settings, a docstring under each field."""

    def __init__(self, config: Any, resources: Resources, device: str, folder: Path) -> None:
        """``device`` is what runs are asked to compute on (`auto`, `cpu`, `cuda`); ``folder`` is the sweep's own, in
        the run directory that all machines share. Whoever derives from this fills in ``self.resources``."""
        self.config = config
        self.resources = resources.filled(0 if device == "cpu" else 1, 1)
        self.device = device
        self.folder = folder

    @abc.abstractmethod
    def submit(self, jobs: Sequence[LaunchJob]) -> None:
        """Take jobs, to be run as soon as there is room. May be called again, also with jobs that were lost."""

    @abc.abstractmethod
    def poll(self) -> Mapping[str, JobState]:
        """How every job stands, by its name. Called about once a second; must not wait."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ask all jobs to save their runs and end, and give back what was taken. Called once, however it went."""
