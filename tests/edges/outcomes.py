"""The outcome of each program and ending: the tables of docs/edges.md. The tests compare them."""

from __future__ import annotations

from typing import Final, NamedTuple

from .programs import AIO_HOLDINGS, AT_ONCE, CONSUMING, CONSUMING_ENDINGS, ENDINGS, HOLDINGS, OTHERS

COMPLETE: Final = "complete"
WARNS: Final = "complete, warns"
DRAINS: Final = "drains"
CUT: Final = "cut off"


class Outcome(NamedTuple):
    """The outcome, and the exit code, or None if it says nothing about the client."""

    what: str
    code: int | None = None

    def __str__(self) -> str:
        return self.what if self.code is None else f"{self.what}, {self.code}"


KILLED: Final = "SIGTERM, SIGHUP, SIGKILL, `os._exit`"
COLUMNS: Final = (*(ending for ending in ENDINGS if ending not in AT_ONCE), KILLED)


def _row(*codes: int | None, dropped: str = WARNS) -> dict[str, Outcome]:
    """Return the outcomes of a row. `codes`: the exit codes of the endings without a kill."""
    cells = [Outcome(COMPLETE, code) for code in codes]
    return dict(zip(COLUMNS, [*cells, Outcome(dropped), Outcome(CUT)], strict=True))


# The exit codes are those of the process that has the client. A pool of processes has none for
# each of them, so it is that of the program. In a thread, an error or `sys.exit` ends the thread.
HELD: Final = {
    "global of a module": _row(0, 1, 3, 130),
    "local of a function": _row(0, 1, 3, 130),
    "attribute in a cycle": _row(0, 1, 3, 130),
    "`with` block": _row(0, 1, 3, 130, dropped=COMPLETE),
    "`with` in a dropped generator": _row(0, 1, 3, 130, dropped=COMPLETE),
    "thread": _row(0, 0, 0, 130),
    "thread pool": _row(0, 1, 3, 130),
    "`multiprocessing`, fork": _row(0, 1, 3, 1),
    "`multiprocessing`, spawn": _row(0, 1, 3, 1),
    "`ProcessPoolExecutor`, fork": _row(0, 1, 3, 130),
    "`os.fork`": _row(0, 1, 3, 130),
    "cell of a notebook that ran twice": _row(0, 1, 3, 130),
    "asyncio, local of a coroutine": _row(0, 1, 3, 130),
    "asyncio, global of a module": _row(0, 1, 3, 130),
    "asyncio, `async with` block": _row(0, 1, 3, 130, dropped=COMPLETE),
    "asyncio, cancelled task": _row(0, 1, 3, 130),
    "asyncio, `asyncio.timeout` that ends": _row(0, 1, 3, 130),
    # Whether Ctrl-C or the group's own cancellation wins depends on the version of Python.
    "asyncio, `TaskGroup` with a task that fails": _row(0, 1, 3, None),
}

_LOOP: Final = dict(
    zip(
        CONSUMING_ENDINGS,
        (Outcome(COMPLETE, 0), Outcome(COMPLETE, 130), *[Outcome(CUT)] * 3),
        strict=True,
    )
)
_RUN: Final = dict(
    zip(
        CONSUMING_ENDINGS,
        (*[Outcome(DRAINS, 0)] * 3, *[Outcome(CUT)] * 2),
        strict=True,
    )
)
CONSUMED: Final = {way: _LOOP if way.endswith("loop") else _RUN for way in CONSUMING}

OTHER_COLUMNS: Final = ("returns", "raises", "Ctrl-C", "dropped")
OTHER: Final = {
    client: {
        "returns": Outcome(COMPLETE, 0),
        "raises": Outcome(COMPLETE, 1),
        "Ctrl-C": Outcome(COMPLETE, 130),
        "dropped": Outcome(WARNS),
    }
    for client in OTHERS
}


def of_held(holding: str, ending: str) -> Outcome:
    return HELD[holding][KILLED if ending in AT_ONCE else ending]


def drawn(rows: dict[str, dict[str, Outcome]], what: str) -> str:
    """Return a table of the page. `what`: the heading of its first column. Programs with the same
    outcomes share a row.
    """
    columns = list(next(iter(rows.values())))
    names: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows.items():
        names.setdefault(tuple(map(str, cells.values())), []).append(name)
    lines = [["; ".join(shared), *cells] for cells, shared in names.items()]
    head, *body = (f"| {' | '.join(line)} |\n" for line in [[what, *columns], *lines])
    return "".join([head, f"|{'---|' * (len(columns) + 1)}\n", *body])


TABLES: Final = (
    drawn(HELD, "the client is held by"),
    drawn(CONSUMED, "the consumer runs"),
    drawn(OTHER, "client"),
)
assert HELD.keys() == HOLDINGS.keys() | AIO_HOLDINGS.keys(), "a row is missing"
