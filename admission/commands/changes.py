"""Commands that change a cluster."""

from __future__ import annotations

COMMANDS = ()
