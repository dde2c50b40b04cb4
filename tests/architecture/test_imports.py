"""Light commands stay light: no torch, no plugin import."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines())


HEAVY = {"torch", "timm", "torchvision", "scipy", "sklearn", "gcdbench_rlcd", "gcdbench_simgcd"}

HELP = """
from gcdbench.cli.main import main
try:
    main(['--help'])
except SystemExit as stop:
    assert stop.code == 0
"""


@pytest.mark.parametrize(
    "code", ["import gcdbench", HELP, "import gcdbench.registry, gcdbench.config.resolve, gcdbench.config.protocol"]
)
def test_no_torch_and_no_plugin_is_imported(code):
    assert not HEAVY & modules_after(code)


def test_help_lists_plugins_without_importing_them(gcdbench):
    answer = gcdbench("--help")
    assert answer.code == 0
    assert {"rlcd", "simgcd"} <= set(re.findall(r"\w+", answer.stdout))
    assert "herbarium19" in answer.stdout


def test_listing_runs_without_torch_in_its_own_process():
    code = """
from gcdbench.cli.main import main
try:
    main(['list', 'methods'])
except SystemExit as stop:
    assert stop.code == 0
"""
    assert not HEAVY & modules_after(code)


def test_public_names_resolve():
    import gcdbench

    for name in gcdbench.__all__:
        assert getattr(gcdbench, name) is not None
    with pytest.raises(AttributeError, match="no attribute"):
        gcdbench.nothing  # noqa: B018
