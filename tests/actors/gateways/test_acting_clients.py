"""Test of gateways that act for clients: when they ask again which topics exist."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from zsq.actors.gateways import acting_clients
from zsq.actors.gateways.acting_clients import FIRST_USE_KNOWN_S, FirstUse

NOBODY: Any = SimpleNamespace(may=lambda *_: False)


def test_the_list_of_topics_is_requested_again_after_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, asked = [1_000.0], []
    topics: dict[str, list[str]] = {"t": ["c"]}

    async def known() -> dict[str, list[str]]:
        asked.append(now[0])
        return dict(topics)

    async def main() -> None:
        first_use = FirstUse(known)
        assert await first_use.permits(NOBODY, "t", "c")
        topics["u"] = []
        now[0] += FIRST_USE_KNOWN_S
        assert not await first_use.permits(NOBODY, "u")
        now[0] += 0.001
        assert await first_use.permits(NOBODY, "u")

    monkeypatch.setattr(acting_clients, "time", SimpleNamespace(monotonic=lambda: now[0]))
    asyncio.run(main())
    assert asked == [1_000.0, now[0]]
