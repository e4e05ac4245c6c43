"""Tests of running an engine in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.transport.client.asyncio import aio_asker as module
from zsq.transport.client.asyncio.aio_asker import Turner
from zsq.transport.client.link import engine as engine_module
from zsq.transport.client.link.engine import Engine

S = 1_000_000_000


def test_a_time_out_of_hours_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this test moves forward by the time that is slept."""
    now_ns = 0
    for one in (module, engine_module):
        monkeypatch.setattr(one, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def call_later(pause_s: float, act: Callable[[], object]) -> asyncio.Handle:
            nonlocal now_ns
            now_ns += int(pause_s * S)
            return loop.call_soon(act)

        turner = Turner(Engine())
        turner.loop = cast(
            "Any", SimpleNamespace(create_future=loop.create_future, call_later=call_later)
        )
        assert not await asyncio.wait_for(turner.wait(lambda: False, 7_200 * S), 5)
        assert now_ns == 7_200 * S
        turner.loop = loop
        turner.stop()

    asyncio.run(main())
