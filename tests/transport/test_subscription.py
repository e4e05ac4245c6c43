"""A consumer's engine: what it was refused is told before it tries again."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsq.transport.address import parse
from zsq.transport.errors import E_CLOSED, Refused
from zsq.transport.link import LinkState
from zsq.transport.session_consumer import ConsumerSession
from zsq.transport.subscription import ConsumerEngine


def test_a_refusal_is_told_before_the_next_attempt(tmp_path: Path) -> None:
    """Else each call raises what the attempt of the call before has met, also when all is well again."""
    engine = ConsumerEngine(parse(f"ipc://{tmp_path}"), "t", "c", ConsumerSession(1), None, {})
    engine.on_refused(Refused(E_CLOSED, "closed"))
    engine.start()
    assert engine.link.state is LinkState.IDLE
    with pytest.raises(Refused, match="E_CLOSED"):
        engine.raise_refused()
    engine.start()
    assert engine.link.state is not LinkState.IDLE
    engine.stop()
