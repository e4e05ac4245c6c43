"""Replacement that examines an environment in this process. The product uses another process,
because flipped bits may crash LMDB. Here no bits are flipped, and another process would take 100
times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from zsq.storage.state import state_check


@contextmanager
def looking_in_this_process() -> Iterator[None]:
    with mock.patch.object(state_check, "_examine", _examine):
        yield


def _examine(path: str, timeout_s: float) -> state_check.Verdict:
    """Examine an environment, without the commit to a copy."""
    return state_check.Verdict(state_check._read(path), finished=True)
