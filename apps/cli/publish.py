"""zsq pub: a message a line, from a file or standard input.

What has arrived is sent at once, in blocks of at most `--batch` messages: a fast file goes in full blocks, a slow pipe
(`tail -f log | zsq pub t`) line by line without waiting for a block to fill. At most `RECEIPTS_MAX` blocks are unanswered,
so memory does not depend on the input.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, Final

import click

from ...transport.errors import E_TOO_BIG, UsageError
from .options import BLOCK_COUNT_MAX, MESSAGE_BYTES_MAX, stop_signals, with_broker
from .output import json_option, tell
from .progress import bar
from .quantities import Seconds

if TYPE_CHECKING:
    from ...transport.client import Receipt

READ_BYTES: Final = 1 << 20
POLL_S: Final = 0.2
RECEIPTS_MAX: Final = 64


def lines(descriptor: int, stopped: Callable[[], bool] = lambda: False) -> Iterator[list[bytes]]:
    """Lists of whole lines as they arrive, without their newlines; a last line needs none. Ends soon after `stopped()`.

    `UsageError` E_TOO_BIG where a line is longer than a message may be.
    """
    rest = b""
    while not stopped():
        if not select.select([descriptor], (), (), POLL_S)[0]:
            continue  # so that a signal is noticed while nothing is typed
        found = os.read(descriptor, READ_BYTES)
        if not found:
            break
        *whole, rest = (rest + found).split(b"\n")
        if len(rest) > MESSAGE_BYTES_MAX:
            raise UsageError(E_TOO_BIG, f"a line is over the limit of {MESSAGE_BYTES_MAX} bytes a message")
        if whole:
            yield whole
    if rest:
        yield [rest]


@click.command()
@click.argument("topic")
@click.option("--file", "source", type=click.File("rb"), default="-", metavar="FILE", help="Where the lines are; default: standard input.")
@click.option("--batch", type=click.IntRange(1, BLOCK_COUNT_MAX), default=1000, show_default=True, help="Most messages in one block.")
@click.option("--delay", type=Seconds(), default=0, metavar="TIME", help="Not before so long from now, as 90s, 10m, 7d; at most 366d.")
@click.option("--key", metavar="KEY", help="Of all of them: messages of one key stay in order in an ordered channel.")
@click.option("--tag", metavar="TAG", help="Of all of them: a channel with tags takes only its own.")
@click.option("--channel", metavar="CHANNEL", help="For this channel of the topic only; for all others they are finished.")
@json_option
@with_broker
def pub(
    topic: str, source: IO[bytes], batch: int, delay: float, key: str | None, tag: str | None, channel: str | None, as_json: bool,
    url: str, timeout: float,
) -> None:  # fmt: skip
    """Publish each line as a message to TOPIC; done when all of them are durable.

    With --delay they wait in the broker, durable as well; see `zsq delayed`.
    """
    from ...transport.addressing import CHANNEL_HEADER
    from ...transport.client import Producer
    from ...transport.lane import as_attributes, as_delay_ms
    from ...transport.names import check_name

    check_name(topic)
    as_delay_ms(delay)
    headers = None if channel is None else {CHANNEL_HEADER: check_name(channel, "channel")}
    as_attributes(key, tag, headers)
    attributes: dict[str, Any] = {"keys": key, "tags": tag, "headers": headers}
    stored = 0
    start = time.monotonic()
    receipts: deque[Receipt] = deque()
    try:
        with stop_signals() as stopping, _bar(source) as advance, Producer(url, timeout=timeout) as producer:
            try:
                for found in lines(source.fileno(), stopping.is_set):
                    for first in range(0, len(found), batch):
                        bodies = found[first : first + batch]
                        more = {name: [value] * len(bodies) for name, value in attributes.items() if value is not None}
                        receipts.append(producer.publish_many(topic, bodies, delay=delay, wait=False, **more))
                        while len(receipts) > RECEIPTS_MAX or (receipts and receipts[0].done):
                            stored += _settle(receipts, timeout)
                        advance(sum(map(len, bodies)) + len(bodies))
            finally:  # what was sent before a line that cannot be is stored, and counted
                while receipts:
                    stored += _settle(receipts, timeout)
            if stopping.is_set():
                raise KeyboardInterrupt
    finally:
        elapsed = max(time.monotonic() - start, 1e-9)
        how = f"wait in {topic} until they are due" if delay else f"stored in {topic}"
        if as_json:
            tell({"topic": topic, "messages": stored, "seconds": round(elapsed, 3)})
        elif stored or sys.exception() is None:  # before an error it says how far it came, if it came anywhere
            click.echo(f"{stored:,} messages {how}, {elapsed:.2f} s, {stored / elapsed:,.0f} a second", err=True)


def _settle(receipts: deque[Receipt], timeout: float) -> int:
    receipts[0].wait(timeout)
    count: int = receipts.popleft().count
    return count


@contextlib.contextmanager
def _bar(source: IO[bytes]) -> Iterator[Callable[[int], None]]:
    """None where lines are typed in by hand."""
    if source.isatty():
        yield lambda size: None
        return
    total = None
    with contextlib.suppress(OSError, ValueError):
        found = os.fstat(source.fileno())
        total = found.st_size if stat.S_ISREG(found.st_mode) else None
    with bar("publishing", total) as advance:
        yield advance
