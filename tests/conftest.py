"""Settings of the whole fast suite."""

from __future__ import annotations

import os

from hypothesis import settings

# No wall-clock thresholds: a busy machine is not a counterexample. The ordinary form gives the same answer twice; the
# thorough one looks for examples that nobody has seen yet.
settings.register_profile("muster", deadline=None, derandomize="THOROUGH" not in os.environ)
settings.load_profile("muster")
