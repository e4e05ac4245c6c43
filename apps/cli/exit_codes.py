"""Exit codes of all commands."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
NOT_REACHED: Final = 3
DATA_LOST: Final = 4
"""Messages that were asked for are damaged, or were removed before they could be read."""
