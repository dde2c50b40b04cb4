"""Weights for a backbone: from a file (official DINO and DINOv2 checkpoints too) or the hub, safely, and their hash."""

from __future__ import annotations

import hashlib
import logging
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from gcdbench.errors import DataError
from gcdbench.system.files import not_a_file

_WRAPPERS = ("teacher", "model", "state_dict", "model_state_dict", "student")
_PREFIXES = ("module.", "backbone.")
_DROPPED = ("head.", "fc_norm.", "projection_head.", "head_dist.")
"""What a ViT's checkpoint may hold besides: classifiers and heads of other training."""


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors or .pth file. Nothing in the file is ever executed."""
    odd = not_a_file(path)
    if odd is not None:
        raise DataError(f"The weights file {path} {odd}. Give an existing file or use 'pretrained'.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(str(path))
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as fault:  # a damaged file can make either reader raise almost anything
        raise DataError(f"The weights file {path} cannot be read: {_first_line(fault)}") from fault
    return _unwrap(state, path)


def _unwrap(state: Any, path: Path) -> dict[str, Tensor]:
    while isinstance(state, Mapping):
        inner = next((state[key] for key in _WRAPPERS if isinstance(state.get(key), Mapping)), None)
        if inner is None:
            break
        state = inner
    if not isinstance(state, Mapping) or not any(isinstance(v, Tensor) for v in state.values()):
        raise DataError(f"The weights file {path} holds no tensors by name; it is not a model checkpoint.")
    tensors = {str(k): v for k, v in state.items() if isinstance(v, Tensor)}
    for prefix in _PREFIXES:
        if any(key.startswith(prefix) for key in tensors):
            tensors = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
    return tensors


def load_into(network: Any, state: Mapping[str, Tensor], where: str) -> None:
    """Fill a timm network; the position embedding of a ViT is interpolated if its grid differs."""
    # The module of each architecture knows the names in its authors' checkpoints.
    fit = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    state = _without_classifier(network, state)
    try:
        fitted = dict(state) if fit is None else fit(dict(state), network)
        missing, unexpected = network.load_state_dict(_without_classifier(network, fitted), strict=False)
    except Exception as fault:  # what knows the names of one architecture stumbles over those of another in many ways
        raise DataError(f"The weights in {where} do not fit this backbone: {_first_line(fault, last=True)}") from fault
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]  # a count no one uses
    if missing or unexpected:
        problems = [f"{len(missing)} missing (first: {missing[0]})"] if missing else []
        problems += [f"{len(unexpected)} unknown (first: {unexpected[0]})"] if unexpected else []
        raise DataError(f"The weights in {where} do not fit this backbone: {', '.join(problems)}.")


def _without_classifier(network: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The network has none; checkpoints do."""
    from timm.models.vision_transformer import VisionTransformer

    dropped: tuple[str, ...] = _DROPPED
    if not isinstance(network, VisionTransformer):
        named = (getattr(network, "pretrained_cfg", None) or {}).get("classifier") or ()
        dropped = tuple(f"{name}." for name in ((named,) if isinstance(named, str) else named))
    return {name: values for name, values in state.items() if not name.startswith(dropped)}


def weights_hash(network: nn.Module) -> str:
    """Sixteen hex digits over every tensor's name, shape and float32 bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _first_line(fault: Exception, last: bool = False) -> str:
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()] or [type(fault).__name__]
    return lines[-1 if last else 0]


PATIENCE = 5.0
"""Seconds for a first answer; the hub's own client tries for most of a minute."""


@contextmanager
def hub() -> Iterator[None]:
    """Within, weights come from the hub or, where it cannot be reached, from its cache; no line of its own is shown."""
    from huggingface_hub import constants

    logs = logging.getLogger("huggingface_hub")
    level, offline = logs.level, constants.HF_HUB_OFFLINE
    logs.setLevel(logging.CRITICAL)
    try:
        if not offline and not reachable(constants.ENDPOINT):
            constants.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        logs.setLevel(level)


def reachable(address: str) -> bool:
    """Whether something answers at an address."""
    parts = urlsplit(address)
    with suppress(OSError):
        port = parts.port or (80 if parts.scheme == "http" else 443)
        with socket.create_connection((parts.hostname or "", port), timeout=PATIENCE):
            return True
    return parts.scheme in getproxies()  # a proxy may reach what this machine does not
