"""Replaces the real clock, sockets, threads and randomness by those of the simulated world. The
replacements stay until this process ends.

`before_import` runs before any module of the product is imported, because modules keep objects that
they find at import: default arguments, names from `from` imports, and methods of ZeroMQ's binding.
`after_import` replaces names in the product's modules. The replacements of the first kind use the
real function while there is no world, so the process can still start others and read its clock.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import random
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import zmq
import zmq.backend

from . import sockets, threads
from .world import S, world_now

_real: Final[dict[str, Any]] = {}


def _patch(module: Any, name: str, make: Callable[[Any], Any]) -> None:
    real = _real[f"{module.__name__}.{name}"] = getattr(module, name)
    setattr(module, name, make(real))


def real(name: str) -> Any:
    """Return the real function behind a replacement, by module and name."""
    return _real[name]


def before_import() -> None:
    assert not [name for name in sys.modules if name.startswith("zsq.")], (
        "the product was imported before the patches"
    )
    _patch(
        time,
        "monotonic_ns",
        lambda real: lambda: w.monotonic_ns() if (w := world_now()) else real(),
    )
    _patch(
        time,
        "monotonic",
        lambda real: lambda: w.monotonic_ns() / S if (w := world_now()) else real(),
    )
    _patch(time, "time_ns", lambda real: lambda: w.time_ns() if (w := world_now()) else real())
    _patch(time, "time", lambda real: lambda: w.time_ns() / S if (w := world_now()) else real())
    for name in ("process_time_ns", "thread_time_ns"):
        _patch(time, name, lambda real: lambda: 0 if world_now() else real())
    _patch(time, "clock_gettime_ns", _boot_clock)
    _patch(time, "sleep", lambda real: _sleep)
    _patch(
        os,
        "urandom",
        lambda real: lambda size: random.randbytes(size) if world_now() else real(size),
    )
    _patch(os, "_exit", lambda real: lambda code: _exit(real, code))
    _patch(os, "close", lambda real: lambda fd: None if threads.is_fake(fd) else real(fd))
    _patch(
        os,
        "eventfd",
        lambda real: lambda *given: threads.eventfd(*given) if world_now() else real(*given),
    )
    _patch(
        os,
        "eventfd_write",
        lambda real: (
            lambda fd, value: (
                threads.eventfd_write(fd, value) if threads.is_fake(fd) else real(fd, value)
            )
        ),
    )
    _patch(
        os,
        "eventfd_read",
        lambda real: lambda fd: threads.eventfd_read(fd) if threads.is_fake(fd) else real(fd),
    )
    _patch(
        select,
        "epoll",
        lambda real: lambda *given: threads.SimEpoll(*given) if world_now() else real(*given),
    )
    _patch(
        select,
        "poll",
        lambda real: lambda *given: threads.SimPoll() if world_now() else real(*given),
    )
    _patch(random, "Random", lambda real: _seeded(real))
    _patch(zmq, "Context", lambda real: sockets.SimContext)
    _patch(zmq, "Frame", lambda real: sockets.Frame)
    _patch(zmq, "Poller", lambda real: sockets.SimPoller)
    _patch(zmq.backend, "Socket", lambda real: sockets.SimSocket)


def _seeded(real: Any) -> Any:
    """Make `random.Random()` without a seed take its seed from the simulated world instead of the
    operating system.
    """

    def make(*seed: Any) -> Any:
        return real(*(seed or (random.getrandbits(64),)))

    return make


def _boot_clock(real: Callable[[int], int]) -> Callable[[int], int]:
    def clock_gettime_ns(clock: int) -> int:
        world = world_now()
        return world.monotonic_ns() if world and clock == time.CLOCK_BOOTTIME else real(clock)

    return clock_gettime_ns


def _sleep(seconds: float) -> None:
    world = world_now()
    assert world is not None
    world.pause(int(seconds * S), int(seconds * S) + 50_000)


def _polled(real: Callable[[Any, int], Any], poller: Any, timeout_ms: int) -> Any:
    """Let an actor's poll take a little time, so that other processes can run."""
    world = world_now()
    if world is not None:
        world.pause(3_000, 40_000)
    return real(poller, timeout_ms)


def _exit(real: Callable[[int], None], code: int) -> None:
    world = world_now()
    if world is None or world.current is None:
        real(code)
        return
    world.current.process.kill(f"exits {code}")
    world.leave()


_SIGNAL: Final = SimpleNamespace(
    signal=lambda *_: None, getsignal=lambda *_: None, set_wakeup_fd=lambda *_, **__: -1,
    SIGINT=signal.SIGINT, SIGTERM=signal.SIGTERM, SIGHUP=signal.SIGHUP, SIG_IGN=signal.SIG_IGN, SIGKILL=signal.SIGKILL,
)  # fmt: skip


def after_import() -> None:
    """Replace names in the product's modules after they were imported."""
    for name in (
        "zsq.transport.client.blocking.client",
        "zsq.transport.client.blocking.consumer",
        "zsq.actors.supervisor.supervisor",
        "zsq.actors.supervisor.preload",
    ):
        importlib.import_module(name)
    care = importlib.import_module("zsq.transport.client.blocking.caretaker")
    care.caretaker.make_queue = threads.SimQueue
    care.caretaker.forget()
    _patch(secrets, "randbits", lambda real: lambda bits: random.getrandbits(bits))
    _patch(
        random.SystemRandom, "getrandbits", lambda real: lambda self, bits: random.getrandbits(bits)
    )
    _patch(secrets, "token_hex", lambda real: lambda size=16: random.randbytes(size).hex())
    _patch(logging, "shutdown", lambda real: lambda *_: None)
    _patch(gc, "freeze", lambda real: lambda: None)
    # The thread of the audit log is a real one, and would write into the data directory while the
    # simulated power is cut. The simulation does not test the audit log.
    audit = importlib.import_module("zsq.actors.security.audit").AuditLog
    _patch(audit, "open", lambda real: lambda self: None)
    _patch(audit, "close", lambda real: lambda self: None)
    _patch(audit, "settled", lambda real: lambda self, timeout_s: True)
    poller = importlib.import_module("zsq.actors.runtime.polling").Poller
    _patch(poller, "poll", lambda real: lambda self, timeout_ms: _polled(real, self, timeout_ms))
    for name, module in list(sys.modules.items()):
        if not name.startswith("zsq.") or module is None:
            continue
        if name.startswith(("zsq.transport.", "zsq.storage.")) and hasattr(module, "threading"):
            module.threading = threads.SimThreading  # type: ignore[attr-defined]
        if name in ("zsq.actors.runtime.actor", "zsq.actors.supervisor.supervisor"):
            module.signal = _SIGNAL  # type: ignore[attr-defined]
        if hasattr(module, "release_memory"):
            module.release_memory = lambda: None  # type: ignore[attr-defined]
        if hasattr(module, "keep_memory"):
            module.keep_memory = lambda: None  # type: ignore[attr-defined]
        if hasattr(module, "private_bytes"):
            module.private_bytes = lambda pid="self": 0  # type: ignore[attr-defined]
        if hasattr(module, "WorkerThread") and name != "zsq.actors.runtime.worker_thread":
            module.WorkerThread = threads.SimWorkerThread  # type: ignore[attr-defined]
