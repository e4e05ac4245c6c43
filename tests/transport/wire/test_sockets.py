"""Tests of what a socket does with its frames."""

from __future__ import annotations

import socket
import subprocess
import sys
import weakref
from pathlib import Path

import zmq

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


def private_kib() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def test_small_frames_that_are_kept_take_little_memory(tmp_path: Path) -> None:
    """By default libzmq keeps 8 KiB for each message that arrives alone."""
    endpoint = f"ipc://{tmp_path}/line"
    context = sockets.make_context(16)
    try:
        receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        receiver.bind(endpoint)
        sender.connect(endpoint)
        kept, before = [], private_kib()
        for _ in range(4_000):
            sender.send(bytes(200))
            assert receiver.poll(20_000)
            kept.append(receiver.recv(copy=False))
        assert private_kib() - before < 4_000 * 2
        assert {len(frame) for frame in kept} == {200}
    finally:
        context.destroy(linger=0)


def test_a_monitor_that_nobody_reads_stops_no_other_socket(tmp_path: Path) -> None:
    """With libzmq's default, the I/O thread waits after 2,000 events, and all sockets with it."""
    context = sockets.make_context(16)
    with socket.create_server(("127.0.0.1", 0)) as server:
        dealer: sockets.Socket = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RECONNECT_IVL, 1)
        monitor = sockets.watch(dealer)
        try:
            dealer.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
            server.settimeout(10)
            for _ in range(1_200):  # each connection is at least CONNECTED and DISCONNECTED
                server.accept()[0].close()
            receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
            receiver.bind(f"ipc://{tmp_path}/line")
            sender.connect(f"ipc://{tmp_path}/line")
            sender.send(b"")
            assert receiver.poll(10_000)
            assert sockets.read_events(monitor) & sockets.GONE_EVENTS
        finally:
            sockets.close(dealer, monitor)
            context.destroy(linger=0)


def test_threads_that_begin_at_once_share_one_context() -> None:
    """A second context would end while the sockets of the first thread use it."""
    code = """
import sys, threading
from zsq.transport.wire import sockets

sys.setswitchinterval(1e-6)
barrier, found = threading.Barrier(16), []

def begin():
    barrier.wait()
    found.append(sockets.context())

threads = [threading.Thread(target=begin) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len({id(context) for context in found}) == 1
"""
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
