"""Names of topics for the queues of other systems, and a check of their options. Pure.

Their names may be longer than ZSQ's and contain other characters, as in `celery@host.pidbox`. Such
a name gets `_` for each other character, and a hash of the whole name at its end, so that two names
never become one.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.wire.protocol import MESSAGE_TIMEOUT_MS_MAX, MESSAGE_TIMEOUT_MS_MIN

CHANNEL: Final = "workers"
NAME_CHARS_MAX: Final = 64
TOPIC_CHARS_MAX: Final = NAME_CHARS_MAX - len(f".{CHANNEL}.dead")  # TOPIC.CHANNEL.dead is a topic
_OTHER: Final = re.compile(r"[^.a-zA-Z0-9_-]")
_HASH_BYTES: Final = 5


def legal(name: str, chars_max: int) -> str:
    """Return `name` if it is legal and short enough, else a legal name that stands for it."""
    if 0 < len(name) <= chars_max and not _OTHER.search(name) and name not in {".", ".."}:
        return name
    end = f"-{blake2b(name.encode(), digest_size=_HASH_BYTES).hexdigest()}"
    return _OTHER.sub("_", name)[: chars_max - len(end)] + end


def check_lease(seconds: float) -> float:
    """Return a message timeout in seconds. Raises `UsageError` for one that is out of range.

    Otherwise only a worker would notice it, and not the program that sends.
    """
    low, high = MESSAGE_TIMEOUT_MS_MIN / 1000, MESSAGE_TIMEOUT_MS_MAX / 1000
    if not low <= seconds <= high:
        text = f"message_timeout must be {low:g} to {high:g} seconds, not {seconds:g}"
        raise UsageError(E_BAD_ARGUMENT, text)
    return seconds
