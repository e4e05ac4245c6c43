"""The command `zsq forward` in a process of its own, for tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zsq
from zsq.transport.client.core.message import message_at

IDLE = "1s"  # longer than a broker needs to deliver what waits


def command(source: str, to: str, url: str, *more: str) -> list[str]:
    line = [sys.executable, "-P", "-m", "zsq", "forward", source, "--to", to, "--url", url]
    return [*line, *more]


def forward(source: str, to: str, url: str, *more: str, code: int = 0, idle: str = IDLE) -> str:
    """Run the command until nothing comes any more, and return what it said."""
    line = command(source, to, url, "--idle", idle, *more)
    done = subprocess.run(line, capture_output=True, timeout=100, check=False)
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert not done.stdout
    return said


@contextmanager
def forwarding(
    source: str, to: str, url: str, *more: str, log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command until the end of the context. It is killed then, if it runs."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command(source, to, url, *more),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


def wait_a_while(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the moment of a kill. The process must not end before."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        raise AssertionError(f"it ended with exit code {process.returncode}")


def stored(url: str, topic: str) -> list[zsq.StoredMessage]:
    """Return all messages of a topic or a part."""
    messages: list[zsq.StoredMessage] = []
    try:
        with zsq.Reader(topic, url=url) as reader:
            offset, head = reader.bounds()
            while offset < head:
                fetched = reader.read(offset)
                for block in fetched.blocks:
                    messages += [message_at(topic, block, i) for i in range(block.count)]
                offset = fetched.next_offset
    except zsq.NotFound:
        return []
    return messages


def bodies(url: str, topic: str) -> list[bytes]:
    return [message.body for message in stored(url, topic)]
