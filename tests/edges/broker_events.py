"""Programs that use a client all the time while something happens to the broker, and what comes.

`CLIENTS` are the programs. Each prints a line for what it does: `did NAME`, or `error CODE` for
each error that its client raises. After an error it goes on with the same client. `OUTCOMES` has
what comes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .outcomes import Outcome, drawn

HEAD: Final = """\
import asyncio, logging, os, sys, time
import zsq

logging.disable()
url, channel = sys.argv[1:]

def did(what):
    os.write(1, b"did %s\\n" % what)

def failed(error):
    os.write(1, b"error %s\\n" % error.code.encode())
    time.sleep(0.1)

"""

_PUBLISH: Final = """\
with zsq.Producer(url{linger}) as producer:
    number = 0
    while True:
        body = b"%s %d" % (channel.encode(), number)
        try:
            producer.publish("t", body)
            {flush}
            did(body.split()[1])
            number += 1
        except zsq.ZsqError as error:
            failed(error)
        time.sleep(0.02)
"""

CLIENTS: Final = {
    "`publish`": _PUBLISH.format(linger="", flush=""),
    "`publish` with `linger_ms`, `flush`": _PUBLISH.format(
        linger=", linger_ms=5", flush="producer.flush()"
    ),
    "`aio`, `publish`": """\
async def main():
    async with zsq.aio.Producer(url) as producer:
        number = 0
        while True:
            body = b"%s %d" % (channel.encode(), number)
            try:
                await producer.publish("t", body)
                did(body.split()[1])
                number += 1
            except zsq.ZsqError as error:
                failed(error)
            await asyncio.sleep(0.02)

asyncio.run(main())
""",
    "loop of a consumer": """\
with zsq.Consumer("t", channel, url=url) as consumer:
    while True:
        try:
            for message in consumer:
                did(message.body)
                message.finish()
        except zsq.ZsqError as error:
            failed(error)
""",
    "`run`": """\
with zsq.Consumer("t", channel, url=url) as consumer:
    while True:
        try:
            consumer.run(lambda message: did(message.body))
        except zsq.ZsqError as error:
            failed(error)
""",
    "`aio`, `run`": """\
async def handle(message):
    did(message.body)

async def main():
    async with zsq.aio.Consumer("t", channel, url=url) as consumer:
        while True:
            try:
                await consumer.run(handle)
            except zsq.ZsqError as error:
                failed(error)

asyncio.run(main())
""",
    "`Reader.read`": """\
with zsq.Reader("t", url=url) as reader:
    offset = 0
    while True:
        try:
            fetched = reader.read(offset)
            for block in fetched.blocks:
                for body in block.body.values():
                    did(body)
            offset = fetched.next_offset
        except zsq.ZsqError as error:
            failed(error)
        time.sleep(0.02)
""",
    "`Admin.stats`": """\
with zsq.Admin(url) as admin:
    while True:
        try:
            admin.stats("t")
            did(b"ask")
        except zsq.ZsqError as error:
            failed(error)
        time.sleep(0.02)
""",
}
PRODUCERS: Final = tuple(name for name in CLIENTS if "publish" in name)
CONSUMERS: Final = ("loop of a consumer", "`run`", "`aio`, `run`")


def client_program(name: str) -> str:
    return HEAD + CLIENTS[name]


class Cell(NamedTuple):
    """What comes. `code` is the code of the error that the client raises, or "" for none.

    - `always`: False if a client notices nothing that does not ask at that moment.
    - `goes_on`: The program then does its work again, without a new client.
    """

    code: str = ""
    always: bool = True
    goes_on: bool = True

    def outcome(self) -> Outcome:
        raises = f"{'raises' if self.always else 'may raise'} `{self.code}`" if self.code else ""
        if not self.goes_on:
            return Outcome(raises or "waits until it exists again")
        return Outcome(f"{raises}, then goes on" if raises else "goes on")


ON: Final = Cell()
GONE: Final = Cell("E_NOT_FOUND", goes_on=False)
NOTICED: Final = Cell("E_NOT_FOUND", always=False)
CLOSED: Final = Cell("E_CLOSED")
# The columns: a program of each kind does the same.
KINDS: Final = {
    "`publish`, with and without `linger_ms`, `aio`": PRODUCERS,
    "loop of a consumer": CONSUMERS[:1],
    "`run`, `aio`": CONSUMERS[1:],
    "`Reader`": ("`Reader.read`",),
    "`Admin`": ("`Admin.stats`",),
}
_ALL_GO_ON: Final = (ON, ON, ON, ON, ON)
OUTCOMES: Final = {
    "stops, and starts again": _ALL_GO_ON,
    "is killed, and starts again": _ALL_GO_ON,
    "is stopped for 3 s (SIGSTOP)": _ALL_GO_ON,
    "loses the process of the topic": _ALL_GO_ON,
    "loses the processes of the channels": _ALL_GO_ON,
    "loses the process of the gateway": _ALL_GO_ON,
    "deletes the topic": (GONE, GONE, Cell(goes_on=False), GONE, GONE),
    "deletes the topic, and creates it again": (NOTICED, NOTICED, ON, NOTICED, NOTICED),
    "deletes the channels": _ALL_GO_ON,
    "moves the channels back": _ALL_GO_ON,
    "empties the channels": _ALL_GO_ON,
    "pauses the channels, and unpauses them": _ALL_GO_ON,
    "sets `max_attempts` of the channels": _ALL_GO_ON,
    "closes the topic, and opens it": (CLOSED, CLOSED, ON, ON, ON),
}
EVENT_TABLE: Final = drawn(
    {
        event: dict(zip(KINDS, (cell.outcome() for cell in cells), strict=True))
        for event, cells in OUTCOMES.items()
    },
    "the broker",
)


def cells_of(event: str) -> dict[str, Cell]:
    """Return what each program does."""
    return {
        name: cell
        for names, cell in zip(KINDS.values(), OUTCOMES[event], strict=True)
        for name in names
    }
