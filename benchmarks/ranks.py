"""One run on one and on two processes, with the same batch: what the second one brings, and what they send."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figure import Claim, Figure
from benchmarks.scene import Scene, Sizes, Subjects, Training
from benchmarks.steps import Found
from gcdbench.errors import GcdbenchError

CROPS = (224, 112)
"""Views of 197 and of 50 tokens."""


def ranks(scene: Scene) -> Iterator[Found]:
    """Steps of one method at a fixed batch; each process has one thread."""
    alone, both = (_measured(scene, count, CROPS[0]) for count in (1, 2))
    few = _measured(scene, 2, CROPS[1])
    value = alone["seconds"] / (2 * both["seconds"])
    detail = f"{alone['seconds']:.3g} s against {both['seconds']:.3g} s"
    yield Figure("efficiency of two processes at the batch of one", value, 0.7, detail=detail)
    same = abs(alone["total"] - both["total"]) <= 1e-4 * abs(alone["total"])
    yield Claim("two processes have the losses of one", same, f"{alone['total']:.7g}, {both['total']:.7g}")
    sent = f"{both['gathered']:,} bytes gathered, {both['averaged']:,} of gradients averaged"
    equal = both["gathered"] == few["gathered"] and both["averaged"] == few["averaged"]
    yield Claim("bytes sent in a step do not depend on the number of patches", equal, sent)


def _measured(scene: Scene, count: int, crop: int) -> dict[str, Any]:
    """What the first of this many processes says of its steps."""
    from gcdbench.system.parallel.spawn import meeting_place, rank_environment

    asked = json.dumps({"folder": str(scene.folder), "sizes": asdict(scene.sizes), "crop": crop})
    with meeting_place() as store:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, asked],
                env={**rank_environment(rank, count, store), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        answers = [process.communicate() for process in processes]
    if any(process.returncode for process in processes):
        raise GcdbenchError(f"A process of the benchmark failed: {answers[0][1] or answers[-1][1]}")
    found: dict[str, Any] = json.loads(answers[0][0].splitlines()[-1])
    return found


def _child() -> None:
    """A rank: the first step warms up, the others are timed."""
    from gcdbench.system.parallel.join import joined

    asked = json.loads(sys.argv[1])
    with joined("cpu") as here:
        scene = Scene(Path(asked["folder"]), Sizes(**asked["sizes"]), Subjects.read(), here)
        ctx = scene.run(scene.subjects.methods[0], {"views.crop": asked["crop"]})
        training = Training([ctx])
        training.ours()
        loss = training.lanes[0].means()["total"]
        before, times = dict(here.traffic), []
        for _ in range(max(2, scene.sizes.rounds)):
            here.largest([0])
            started = time.perf_counter()
            training.ours()
            here.largest([0])
            times.append(time.perf_counter() - started)
        sent = {name: (total - before[name]) // len(times) for name, total in here.traffic.items()}
    found = {"seconds": statistics.median(times), "total": loss, "gathered": 0, "averaged": 0, **sent}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    _child()
