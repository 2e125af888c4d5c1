"""Settings of the whole fast suite."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

# No wall-clock thresholds: a busy machine is not a counterexample. The ordinary form gives the same answer twice; the
# thorough one looks for examples that nobody has seen yet.
settings.register_profile("muster", deadline=None, derandomize="THOROUGH" not in os.environ)
settings.load_profile("muster")


@pytest.fixture(autouse=True)
def _logs_as_they_come() -> Iterator[None]:
    """A command sets up logs for its whole process; here that is the tests that follow."""
    yield
    structlog.reset_defaults()
