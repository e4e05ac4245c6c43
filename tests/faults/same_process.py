"""Replacements that do parts of recovery in this process. The product uses another process because
flipped bits may crash LMDB. Here no bits are flipped, and another process would take 100 times as
long.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from zsq.storage.delayed import delayed_recovery as delayed_rescue
from zsq.storage.state import state_check


@contextmanager
def looking_in_this_process() -> Iterator[None]:
    with (
        mock.patch.object(state_check, "_examine", _examine),
        mock.patch.object(delayed_rescue, "_run", _run),
    ):
        yield


def _examine(path: str, timeout_s: float) -> state_check.Verdict:
    """Examine an environment, without the commit to a copy."""
    return state_check.Verdict(state_check._read(path), finished=True)


def _run(step: str, path: str, *rest: str) -> dict[str, Any] | None:
    if step in {"check", "meta"}:
        return dict(
            delayed_rescue.counted(path) if step == "check" else delayed_rescue.meta_of(path)
        )
    new, _, rows_max, border = rest
    delayed_rescue.take_step(step, path, new, os.getppid(), int(rows_max), bytes.fromhex(border))
    return {}
