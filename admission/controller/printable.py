"""Text that others wrote into a cluster, fit for a terminal."""

from __future__ import annotations

_CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Without control characters: with them whoever writes an event or a message could drive the reader's terminal.

    >>> printable("[red]\\x1b[2Jgone\\r")
    '[red][2Jgone'
    """
    return text.translate(_CONTROL)
