"""Sites whose removal has no effect that a test could observe, each with its reason. There should
be as few as possible: it is better to delete a line that does nothing.
"""

from __future__ import annotations

from typing import Final

EQUIVALENT: Final[dict[str, str]] = {}
