"""Child process of the check `import-quiet`: imports one module and says what it did besides."""

from __future__ import annotations

import importlib
import io
import json
import os
import random
import signal
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any


def watch() -> None:
    """``sys.argv``: the module, then the search path. The answer is one marked line on the real standard output."""
    real, module = sys.stdout, sys.argv[1]
    sys.path[:] = [p for p in sys.argv[2:] if p]
    sys.dont_write_bytecode = True
    faults: list[str] = []
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        _import_once(module)
    before = _world()
    _listen(faults)
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            importlib.import_module(module)
        except BaseException as fault:
            faults.append(f"fails: {type(fault).__name__}: {fault}")
    if said.getvalue().strip():
        faults.append(f"prints {said.getvalue().strip().splitlines()[0]!r}")
    faults += [f"changes {name}" for name, value in _world().items() if value != before[name]]
    print("\ngcdbench-quiet " + json.dumps(list(dict.fromkeys(faults))), file=real, flush=True)


def _import_once(module: str) -> None:
    """Import it and forget it again: what other libraries do when they are first imported is not the plugin's doing."""
    with suppress(BaseException):  # a fault is reported the second time
        importlib.import_module(module)
    # A seed that was set now must not be mistaken for the state before it is set again.
    import numpy as np
    import torch

    random.seed()
    np.random.seed()
    torch.seed()
    own = module.partition(".")[0]
    for name in [n for n in sys.modules if n == own or n.startswith(f"{own}.")]:
        del sys.modules[name]


def _listen(faults: list[str]) -> None:
    """From now on, note what is written and which connections are opened."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            mode, flags = arguments[1], arguments[2] or 0
            writes = bool(isinstance(mode, str) and set(mode) & set("wax+"))
            writes = writes or bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if writes and os.fspath(arguments[0]) not in (os.devnull, os.devnull.encode()):
                faults.append(f"writes {arguments[0]!r}")
        elif event in ("os.mkdir", "os.remove", "os.rename", "os.symlink", "os.link"):
            faults.append(f"does {event} {arguments[0]!r}")
        elif event == "socket.connect":
            faults.append("opens a connection")
        elif event == "subprocess.Popen":
            faults.append("starts a process")

    sys.addaudithook(hook)


def _world() -> dict[str, Any]:
    """Global state that a plugin must leave alone."""
    import numpy as np
    import torch

    return {
        "the random numbers of torch": torch.get_rng_state().tolist(),
        "the random numbers of numpy": str(np.random.get_state()),
        "the random numbers of Python": random.getstate(),
        "whether gradients are on": torch.is_grad_enabled(),
        "the default type of torch": str(torch.get_default_dtype()),
        "the number of threads": torch.get_num_threads(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "CUDA (it is started)": torch.cuda.is_initialized(),
        "torch's precision of products": torch.get_float32_matmul_precision(),
        "torch's cudnn switches": [torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32],
        "torch's anomaly detection": torch.is_anomaly_enabled(),
        "numpy's error handling": np.geterr(),
        "the limit of recursion": sys.getrecursionlimit(),
        "the search path": list(sys.path),
        "what Ctrl-C does": signal.getsignal(signal.SIGINT),
        "the number of threads that run": threading.active_count(),
        "the current folder": os.getcwd(),
        "the environment": dict(os.environ),
    }
