"""Tests of what a socket does with its frames."""

from __future__ import annotations

import weakref
from pathlib import Path

from zsq.transport.wire import sockets
from zsq.transport.wire.sockets import COPY_BYTES_MAX


def test_large_frames_in_a_pipe_are_not_in_memory_twice(tmp_path: Path) -> None:
    """A session keeps the blocks of its window until they are answered, and the pipe uses the same
    memory. Small frames are copied.
    """
    large, small = memoryview(bytes(COPY_BYTES_MAX + 1)), memoryview(bytes(COPY_BYTES_MAX))
    held = [weakref.ref(large), weakref.ref(small)]
    dealer = sockets.make_dealer()
    try:
        dealer.connect(f"ipc://{tmp_path}/nobody")
        assert sockets.send_frames(dealer, [large, small])
        del large, small
        assert [one() is not None for one in held] == [True, False]
    finally:
        dealer.close(linger=0)
