"""Programs whose handler does something unusual with one of its messages, and what comes.

Each row of `HANDLERS` runs with several prefetches and concurrencies, in threads and in asyncio:
the outcome is the same for all of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .outcomes import Outcome, drawn

COUNT: Final = 12
BAD: Final = 3
LEASE_S: Final = 1.0
MAX_ATTEMPTS: Final = 2
HEARTBEAT_MS: Final = 1_000
READIES: Final = (1, 8, None, 2_500)
CONCURRENCIES: Final = (1, 8)

PROGRAM: Final = """\
import asyncio, ctypes, os, signal, sys, threading, time
import zsq

def begin(message):
    os.write(1, b"%d\\n" % message.offset)
    return message.offset == {bad}

{handler}

client = zsq.{module}Consumer(
    {topic!r}, {channel!r}, url={url!r}, ready={ready}, heartbeat_ms={heartbeat_ms},
    message_timeout={lease_s},
)
{run}
"""


class Handler(NamedTuple):
    """`threads` and `asyncio` are what the handler does, or "" if there is no such thing.

    - `is_always`: It does so with each message, and not only with the bad one.
    - `runs`: How often the handler begins the bad message, or each if `is_always`.
    - `is_dead`: Whether these messages become dead letters.
    - `others`: How often the handler begins each other message, at most.
    - `starts_again`: The program ends, and is started again.
    - `timeouts`: How many leases end, in each channel.
    """

    threads: str
    asyncio: str
    runs: int
    is_dead: bool = False
    is_always: bool = False
    runs_max: int = 0
    others_max: int = 1
    starts_again: bool = False
    options: str = ""  # of `run`
    timeouts: int = 0
    concurrencies: tuple[int, ...] = CONCURRENCIES


HANDLERS: Final = {
    "takes 1 ms": Handler("time.sleep(0.001)", "await asyncio.sleep(0.001)", 1, is_always=True),
    "takes 0.3 s": Handler("time.sleep(0.3)", "await asyncio.sleep(0.3)", 1, is_always=True),
    "takes longer than its lease": Handler(
        f"time.sleep({2.5 * LEASE_S})", f"await asyncio.sleep({2.5 * LEASE_S})", 1
    ),
    "blocks the event loop for longer than its lease and two heartbeats": Handler(
        "", f"time.sleep({3.5 * LEASE_S})", 1
    ),
    "holds the GIL for longer than its lease and two heartbeats": Handler(
        f"ctypes.PyDLL(None).usleep({int(3_500_000 * LEASE_S)})",
        f"ctypes.PyDLL(None).usleep({int(3_500_000 * LEASE_S)})",
        1,
    ),
    "takes longer than `max_extension`": Handler(
        f"time.sleep({4 * LEASE_S})",
        f"await asyncio.sleep({4 * LEASE_S})",
        MAX_ATTEMPTS,
        is_dead=True,
        options=f", max_extension={LEASE_S}",
        timeouts=MAX_ATTEMPTS,
    ),
    "never ends": Handler(
        "threading.Event().wait()",
        "await asyncio.Event().wait()",
        MAX_ATTEMPTS,
        is_dead=True,
        options=f", max_extension={LEASE_S}",
        timeouts=MAX_ATTEMPTS,
        concurrencies=(8,),  # a single thread would wait for ever
    ),
    "raises for one message": Handler(
        "raise ValueError('bad')", "raise ValueError('bad')", MAX_ATTEMPTS, is_dead=True
    ),
    "raises always": Handler(
        "raise ValueError('bad')",
        "raise ValueError('bad')",
        MAX_ATTEMPTS,
        is_dead=True,
        is_always=True,
        options=", backoff=False",
    ),
    "is cancelled by something else": Handler(
        "", "raise asyncio.CancelledError", MAX_ATTEMPTS, is_dead=True
    ),
    "calls `sys.exit`": Handler("sys.exit(1)", "sys.exit(1)", MAX_ATTEMPTS, is_dead=True),
    "ends its process": Handler(
        "os._exit(1)",
        "os._exit(1)",
        MAX_ATTEMPTS,
        is_dead=True,
        runs_max=MAX_ATTEMPTS + 4,
        others_max=MAX_ATTEMPTS + 5,
        starts_again=True,
    ),
}


def handler_program(
    url: str,
    topic: str,
    channel: str,
    handler: str,
    ready: int | None,
    concurrency: int,
    *,
    is_async: bool,
) -> str:
    row = HANDLERS[handler]
    does = row.asyncio if is_async else row.threads
    head = "async def handle(message):\n" if is_async else "def handle(message):\n"
    body = f"    begin(message)\n    {does}\n"
    if not row.is_always:
        body = f"    if begin(message):\n        {does}\n"
    run = f"client.run(handle, concurrency={concurrency}{row.options})"
    return PROGRAM.format(
        bad=BAD,
        handler=head + body,
        module="aio." if is_async else "",
        topic=topic,
        channel=channel,
        url=url,
        ready=ready,
        heartbeat_ms=HEARTBEAT_MS,
        lease_s=LEASE_S,
        run=f"asyncio.run({run})" if is_async else run,
    )


def _cells(handler: Handler) -> dict[str, Outcome]:
    """Return the row of the page."""
    times = "once" if handler.runs == 1 else f"{handler.runs} times (`max_attempts`)"
    if handler.runs_max:
        times += ", and a few more"
    end = "then a dead letter" if handler.is_dead else "then finished"
    others = "the same" if handler.is_always else "once, then finished"
    if handler.others_max > 1:
        others = "once or more, then finished"
    kinds = " and ".join(name for name in ("threads", "asyncio") if getattr(handler, name))
    return {
        "in": Outcome(kinds),
        "the message runs": Outcome(f"{times}, {end}"),
        "other messages run": Outcome(others),
    }


HANDLER_TABLE: Final = drawn(
    {name: _cells(handler) for name, handler in HANDLERS.items()}, "a handler that"
)
