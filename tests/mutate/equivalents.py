"""Sites whose removal nothing can observe, each with its reason. As few as possible: a line that
does nothing is better taken out.
"""

from __future__ import annotations

from typing import Final

EQUIVALENT: Final[dict[str, str]] = {}
