"""Servers that hold a client as a global of a module, and their ends.

`SERVERS` are the ways to start an application of a few lines, and what comes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .outcomes import COMPLETE, CUT, Outcome, drawn
from .programs import LINGER_MS

LOOK: Final = "/look"  # nothing is published for a request of this path
# One application for WSGI and ASGI: it publishes the path of each request, and returns its pid.
APPLICATION: Final = """\
import os
import zsq

producer = zsq.Producer({url!r}, linger_ms={linger_ms})

def publish(path):
    if path != {look!r}:
        producer.publish("served", path.encode())

def wsgi(environ, start_response):
    publish(environ["PATH_INFO"])
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]

async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({{"type": "lifespan.startup.complete"}})
        await receive()
        {close}
        await send({{"type": "lifespan.shutdown.complete"}})
        return
    publish(scope["path"])
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": b"%d" % os.getpid()}})
"""

# A gevent program: cooperative sockets, locks and threads.
GEVENT: Final = """\
from gevent import monkey
monkey.patch_all()
import gevent, signal, sys, time
import zsq

producer = zsq.Producer({url!r}, linger_ms={linger_ms})
turns = []

def turn():
    while True:
        turns.append(1)
        gevent.sleep(0.01)

gevent.spawn(turn)
with zsq.Consumer("nothing", "c", url={url!r}) as consumer:
    assert consumer.receive(0.5) is None
assert len(turns) > 5, "the others waited too"

def work(number):
    producer.publish({name!r}, b"%d" % number)
    gevent.sleep(0)

gevent.joinall([gevent.spawn(work, number) for number in range(10)], raise_error=True)
{ending}
"""
GEVENT_ENDS: Final = {
    "returns": "pass",
    "raises": "gevent.joinall([gevent.spawn(lambda: 1 / 0)], raise_error=True)",
    "`sys.exit(3)`": "gevent.joinall([gevent.spawn(sys.exit, 3)], raise_error=True)",
    "Ctrl-C": "signal.raise_signal(signal.SIGINT)\ngevent.sleep(60)",
}
GEVENT_CODES: Final = {"returns": 0, "raises": 1, "`sys.exit(3)`": 3, "Ctrl-C": 130}

SIGTERM: Final = "SIGTERM"
CTRL_C: Final = "Ctrl-C"
WORKER_ENDS: Final = "a worker ends"  # gunicorn's `max_requests`, uvicorn's `--reload`


class Server(NamedTuple):
    """`command` follows `python -m`. `ends` has the exit codes of the endings that there are.

    `closes`: the application closes its client in the lifespan.
    """

    command: tuple[str, ...]
    outcomes: dict[str, Outcome | None]
    closes: bool = False


def _cells(sigterm: str, ctrl_c: str, worker_ends: str = "") -> dict[str, Outcome | None]:
    names = {SIGTERM: sigterm, CTRL_C: ctrl_c, WORKER_ENDS: worker_ends}
    return {ending: Outcome(what) if what else None for ending, what in names.items()}


_GUNICORN: Final = ("gunicorn", "--bind", "127.0.0.1:0", "application:wsgi")
_UVICORN: Final = ("uvicorn", "--port", "0", "--app-dir", ".", "application:asgi")
_ALL: Final = _cells(COMPLETE, COMPLETE, COMPLETE)
_RELOAD: Final = (*_UVICORN, "--reload")
_WORKERS: Final = (*_UVICORN, "--workers", "2")
SERVERS: Final = {
    "gunicorn": Server(_GUNICORN, _ALL),
    "gunicorn, `--preload`": Server((*_GUNICORN, "--preload"), _ALL),
    "gunicorn, 4 threads": Server((*_GUNICORN, "--threads", "4"), _ALL),
    "gunicorn, gevent": Server((*_GUNICORN, "--worker-class", "gevent"), _ALL),
    "uvicorn": Server(_UVICORN, _cells(CUT, COMPLETE)),
    "uvicorn, 2 workers": Server(_WORKERS, _cells(CUT, CUT)),
    "uvicorn, `--reload`": Server(_RELOAD, _cells(CUT, CUT, CUT)),
    "uvicorn, closed in its lifespan": Server(_UVICORN, _cells(COMPLETE, COMPLETE), True),
    "uvicorn, 2 workers, closed in its lifespan": Server(
        _WORKERS, _cells(COMPLETE, COMPLETE), True
    ),
    "uvicorn, `--reload`, closed in its lifespan": Server(_RELOAD, _ALL, True),
}
SERVER_TABLE: Final = drawn(
    {
        name: {ending: cell or Outcome("") for ending, cell in server.outcomes.items()}
        for name, server in SERVERS.items()
    },
    "the client is a global in",
)


def application(url: str, *, closes: bool) -> str:
    close = "producer.close()" if closes else "pass"
    return APPLICATION.format(url=url, linger_ms=LINGER_MS, close=close, look=LOOK)


def gevent_program(url: str, name: str, ending: str) -> str:
    return GEVENT.format(url=url, linger_ms=LINGER_MS, name=name, ending=GEVENT_ENDS[ending])
