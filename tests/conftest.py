"""Settings of the whole fast suite."""

from __future__ import annotations

from hypothesis import settings

# No wall-clock thresholds: a busy machine is not a counterexample.
settings.register_profile("muster", deadline=None)
settings.load_profile("muster")
