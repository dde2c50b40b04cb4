"""Tests of plugins run under the same conditions as those of the core, also when they are run alone."""

from tests.conftest import *  # noqa: F403
