#!/usr/bin/env python3
"""A spike that asks how many processes a topic should have: scripts/spikes/topic_process.py
[--help].

The spike sends messages over the same hops as the product, but with pyzmq alone. Each block is
written with `writev` and synced with `fdatasync` before it is acknowledged and passed on. Nothing
is packed, checked, leased or finished. `docs/design.md` has the result. The arrangements are:

| arrangement | what it is |
|---|---|
| processes | topic and storage are two processes that talk over ipc |
| threads | one process; the storage is a thread behind inproc, which writes and syncs |
| loop | one process with one loop, which writes; a thread behind inproc syncs |
| inline | like loop, but the loop itself syncs small writes |

In each arrangement, the producer, the channel and the consumer are separate processes. There are
two measurements. The first one publishes `--blocks` blocks and measures the rate. At most 24 of
these blocks are unanswered at a time. The second one publishes `--singles` small messages, and
waits for the acknowledgement of each before the next. It measures the time from the publish to the
acknowledgement, and from the publish to the consumer. The arrangements take turns, and the results
are medians of the rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import tempfile
import threading
import time
from typing import Any

import zmq

ARRANGEMENTS = ("processes", "threads", "loop", "inline")
WAIT_MS = 60_000
GATHER_MAX = 2 << 20


class Ends:
    """The sockets of one process."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.context: zmq.Context[Any] = zmq.Context()

    def open(self, kind: int, name: str, *, bind: bool) -> Any:
        socket = self.context.socket(kind)
        socket.set_hwm(1_000)
        socket.linger = 10_000
        socket.rcvtimeo = socket.sndtimeo = WAIT_MS
        address = f"inproc://{name[1:]}" if name.startswith("+") else f"ipc://{self.run}/{name}"
        socket.bind(address) if bind else socket.connect(address)
        return socket

    def close(self) -> None:
        self.context.destroy(linger=10_000)


def producer(run: str, barrier: Any, count: int, size: int, window: int, out: Any) -> None:
    ends = Ends(run)
    socket = ends.open(zmq.DEALER, "topic", bind=False)
    payload = os.urandom(size)
    barrier.wait()
    time.sleep(0.3)
    taken = []
    begun = time.monotonic()
    if window == 1:
        for _ in range(count):
            now = time.monotonic()
            socket.send_multipart((b"%020d" % int(now * 1e9), payload))
            socket.recv()
            taken.append(time.monotonic() - now)
    else:
        answered = 0
        for sent in range(count):
            while sent - answered >= window:
                answered += int(socket.recv())
            socket.send_multipart((b"%020d" % 0, payload), copy=False)
        while answered < count:
            answered += int(socket.recv())
    out.put(("producer", begun, time.monotonic(), taken))
    ends.close()


def channel(run: str, barrier: Any, count: int) -> None:
    ends = Ends(run)
    arriving, out = (
        ends.open(zmq.DEALER, "channel", bind=True),
        ends.open(zmq.DEALER, "consumer", bind=False),
    )
    barrier.wait()
    passed = 0
    while passed < count:
        frames = arriving.recv_multipart(copy=False)
        passed += len(frames) // 2
        out.send_multipart(frames, copy=False)
    ends.close()


def consumer(run: str, barrier: Any, count: int, out: Any) -> None:
    ends = Ends(run)
    arriving = ends.open(zmq.DEALER, "consumer", bind=True)
    barrier.wait()
    taken, came = [], 0
    while came < count:
        frames = arriving.recv_multipart(copy=False)
        came += len(frames) // 2
        stamp = int(bytes(frames[0].buffer))
        if stamp:
            taken.append(time.monotonic() - stamp / 1e9)
    out.put(("consumer", 0.0, time.monotonic(), taken))
    ends.close()


def write(file: Any, blocks: list[Any]) -> None:
    pieces = [frame.buffer for block in blocks for frame in block]
    for at in range(0, len(pieces), 1_000):
        os.writev(file, pieces[at : at + 1_000])


def take(socket: Any) -> list[Any]:
    """Return the waiting blocks, about 2 MiB at most. Each is a list [peer, stamp, payload]."""
    got: list[Any] = []
    size = 0
    while size < GATHER_MAX:
        try:
            frames = socket.recv_multipart(zmq.DONTWAIT, copy=False)
        except zmq.Again:
            break
        got.append(frames)
        size += len(frames[-1].buffer)
    return got


def storage(run: str, barrier: Any, count: int) -> None:
    ends = Ends(run)
    loop_storage(ends, "storage", count, run, barrier)
    ends.close()


def loop_storage(ends: Ends, name: str, count: int, run: str, barrier: Any) -> None:
    """Write and sync one append after the other, and answer each."""
    socket = ends.open(zmq.PAIR, name, bind=name.startswith("+") is False)
    with tempfile.TemporaryFile(dir=run) as file:
        if barrier is not None:
            barrier.wait()
        done = 0
        while done < count:
            frames = socket.recv_multipart(copy=False)
            write(file.fileno(), [frames[at : at + 2] for at in range(0, len(frames), 2)])
            os.fdatasync(file.fileno())
            done += len(frames) // 2
            socket.send(b"ok")
    socket.close()


def syncing(context: zmq.Context[Any], descriptor: int) -> None:
    socket = context.socket(zmq.PAIR)
    socket.connect("inproc://sync")
    while socket.recv():
        os.fdatasync(descriptor)
        socket.send(b"ok")
    socket.close()


def durable(front: Any, out: Any, blocks: list[Any]) -> int:
    """Acknowledge these blocks and pass them on, in runs of 256 KiB. Return their number."""
    peers: dict[bytes, int] = {}
    run: list[Any] = []
    size = 0
    for peer, stamp, payload in blocks:
        name = bytes(peer.buffer)
        peers[name] = peers.get(name, 0) + 1
        run += (stamp, payload)
        size += len(payload.buffer)
        if size >= 256 << 10:
            out.send_multipart(run, copy=False)
            run, size = [], 0
    for name, number in peers.items():
        front.send_multipart((name, b"%d" % number))
    if run:
        out.send_multipart(run, copy=False)
    return len(blocks)


def topic(run: str, barrier: Any, count: int, arrangement: str) -> None:
    ends = Ends(run)
    front, out = (
        ends.open(zmq.ROUTER, "topic", bind=True),
        ends.open(zmq.DEALER, "channel", bind=False),
    )
    poller = zmq.Poller()
    poller.register(front, zmq.POLLIN)
    threads = []
    file = tempfile.TemporaryFile(dir=run)  # noqa: SIM115 - closed with the process
    if arrangement == "processes":
        answers = ends.open(zmq.PAIR, "storage", bind=False)
    elif arrangement == "threads":
        answers = ends.open(zmq.PAIR, "+storage", bind=True)
        threads.append(
            threading.Thread(target=loop_storage, args=(ends, "+storage", count, run, None))
        )
    else:
        answers = ends.open(zmq.PAIR, "+sync", bind=True)
        threads.append(threading.Thread(target=syncing, args=(ends.context, file.fileno())))
    for thread in threads:
        thread.start()
    poller.register(answers, zmq.POLLIN)
    barrier.wait()
    waiting: list[Any] = []  # blocks that have arrived
    written: list[Any] = []  # blocks that are written, but not yet being synced
    under: list[Any] = []  # blocks that are being synced, or that the storage has
    done = 0
    while done < count:
        for socket, _ in poller.poll(WAIT_MS):
            if socket is front:
                waiting += take(front)
            else:
                answers.recv()
                done += durable(front, out, under)
                under = []
        if arrangement in ("processes", "threads"):
            if waiting and not under:
                under, waiting = waiting, []
                answers.send_multipart(
                    [frame for block in under for frame in block[1:]], copy=False
                )
            continue
        if waiting:
            write(file.fileno(), [block[1:] for block in waiting])
            written += waiting
            waiting = []
        if written and not under:
            under, written = written, []
            if arrangement == "inline" and sum(len(block[2].buffer) for block in under) <= 64 << 10:
                os.fdatasync(file.fileno())
                done += durable(front, out, under)
                under = []
            else:
                answers.send(b"go")
    if arrangement in ("loop", "inline"):
        answers.send(b"")
    for thread in threads:
        thread.join()
    ends.close()


def measure(
    arrangement: str, count: int, size: int, window: int, folder: str
) -> tuple[float, list[float], list[float]]:
    """Return the seconds until the consumer has all blocks, and two lists of times in seconds.

    The first list has the times from each publish to its acknowledgement. The second list has the
    times from each publish to the consumer.
    """
    with tempfile.TemporaryDirectory(prefix="spike-", dir=folder) as run:
        with_storage = arrangement == "processes"
        barrier = multiprocessing.Barrier(4 + with_storage)
        out: Any = multiprocessing.Queue()
        work: list[tuple[Any, ...]] = [
            (consumer, run, barrier, count, out),
            (channel, run, barrier, count),
            (topic, run, barrier, count, arrangement),
            (producer, run, barrier, count, size, window, out),
        ]
        if with_storage:
            work.append((storage, run, barrier, count))
        processes = [
            multiprocessing.Process(target=target, args=arguments, daemon=True)
            for target, *arguments in work
        ]
        for process in processes:
            process.start()
        ends = {name: rest for name, *rest in (out.get(timeout=120), out.get(timeout=120))}
        for process in processes:
            process.join(30)
        return ends["consumer"][1] - ends["producer"][0], ends["producer"][2], ends["consumer"][2]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how many processes a topic should have.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--singles", type=int, default=2_000)
    parser.add_argument("--folder", default=".")
    given = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, kernel {platform.release()}, pyzmq "
        f"{zmq.__version__}, load {os.getloadavg()[0]:.1f}"
    )
    rates: dict[str, list[float]] = {name: [] for name in ARRANGEMENTS}
    waits: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ARRANGEMENTS}
    for number in range(given.rounds):
        order = ARRANGEMENTS[number % 4 :] + ARRANGEMENTS[: number % 4]
        for name in order:
            seconds, _, _ = measure(name, given.blocks, 208_000, 24, given.folder)
            rates[name].append(given.blocks * 1_000 / seconds / 1e6)
            _, acknowledged, consumed = measure(name, given.singles, 250, 1, given.folder)
            consumed.sort()
            waits[name].append(
                (
                    statistics.median(acknowledged),
                    statistics.median(consumed),
                    consumed[int(len(consumed) * 0.99)],
                )
            )
    print(
        "| arrangement | blocks of 1,000, million messages a second | acknowledged p50, ms | "
        "consumer p50, ms | consumer p99, ms |"
    )
    print("|---|---|---|---|---|")
    for name in ARRANGEMENTS:
        columns = [
            f"{statistics.median(row[at] for row in waits[name]) * 1e3:.2f}" for at in range(3)
        ]
        print(f"| {name} | {statistics.median(rates[name]):.2f} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
