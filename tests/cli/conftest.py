"""The cluster that commands and questions are tried on."""

from tests.controller.conftest import world

__all__ = ["world"]
