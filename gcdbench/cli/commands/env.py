"""`gcdbench env`."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import click

from gcdbench.cli.options import data_root_option
from gcdbench.cli.output import json_option, print_json, print_table


@click.command("env")
@data_root_option
@json_option
def env_command(data_root: Path | None, as_json: bool) -> None:
    """Show versions, devices and folders, for a bug report."""
    import torch

    from gcdbench import registry
    from gcdbench.data.data_root import data_root as choose_root
    from gcdbench.data.store.store_folder import cache_root
    from gcdbench.records.provenance import versions
    from gcdbench.system.device import choose_device

    root = choose_root(data_root)
    facts = {
        "versions": versions(),
        "platform": platform.platform(),
        "device": str(choose_device("auto")),
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "data_root": str(root.resolve()),
        "data_root_exists": root.exists(),
        "cache": str(cache_root().resolve()),
        "plugins": {
            kind: [f"{p.name} ({p.package} {p.version})" for p in registry.plugins(kind)] for kind in registry.GROUPS
        },
    }
    if as_json:
        print_json(facts)
        return
    rows = []
    for key, value in facts.items():
        if isinstance(value, dict):
            for name, inner in value.items():
                rows.append([f"{key} {name}", ", ".join(inner) if isinstance(inner, list) else str(inner)])
        else:
            rows.append([key.replace("_", " "), ", ".join(value) if isinstance(value, list) else str(value)])
    print_table(None, ["What", "Value"], rows)
