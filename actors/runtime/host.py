"""A host: a process that runs actors. The supervisor starts it through the forkserver.

Most hosts run one actor, in their main thread. A *shared host* runs many quiet ones, each in a
thread of its own, so that an actor that starts, reads or syncs for long does not hold up its
neighbours. The threads share one ZeroMQ context, with its one thread for input and output. Measured
with 100 topics of two channels each: a process for each actor takes 2,500 MiB, and shared hosts
take a tenth of it.

Rejected: one loop for all actors of a host. It would save the threads' stacks, but a start that
reads a large log, or waits for its topic's answer, would stop the heartbeats of all neighbours.

The supervisor sends a `StartOrder` for each actor over the host's lifeline, and the host sends back
the key of each actor that has ended, as ENDED bytes. The end of the lifeline is the end of the
supervisor, and then the host ends too. If an actor fails, its host ends with all its actors, for
the state of a process with a failed actor is not known. The supervisor then starts them again.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing.reduction
import os
import pkgutil
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any, Final

from ...transport.memory import keep_memory, keep_one_heap
from ...transport.wire.sockets import ContextShare, make_context
from ..settings import options
from . import logs
from .actor import Actor
from .child import ChildSpec
from .process import die_with_parent, is_out_of_files, set_title

log = logging.getLogger("zsq")

ENDED: Final = 8
# A host sends this over the lifeline if it ends because it lacks descriptors. The attempt to
# receive a pidfd may consume its first byte.
NO_FILES_WORD: Final = b"F" * ENDED
StartOrder = tuple[str, ChildSpec, str]  # class, spec, level of the log


def host_main(
    descriptor: int,
    first: tuple[str, ChildSpec] | None,
    title: str,
    endpoint: str,
    forkserver_pid: int,
    log_level: str,
    log_format: str,
) -> None:
    """Set up a new process (title, parent's death, pidfd), then run the actor `first`.

    Without `first`, it is a shared host. `descriptor` is this end of its lifeline.
    """
    lifeline = Connection(descriptor)
    try:
        die_with_parent(forkserver_pid)
        # The supervisor stops its children, whatever a terminal or a service manager sends to all
        # processes. `kill -9` still works.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        set_title(title)
        keep_memory()
        logs.set_up(log_level, log_format, title)
        pidfd = os.pidfd_open(os.getpid())
        multiprocessing.reduction.send_handle(lifeline, pidfd, os.getppid())
        os.close(pidfd)
        if first is None:
            SharedHost(endpoint, lifeline).run()
        else:
            _actor(*first).run(endpoint, lifeline.fileno())
    except BaseException as error:
        _end_of_host(title, error, lifeline)


def _actor(class_name: str, spec: ChildSpec) -> Actor[Any]:
    made: Actor[Any] = pkgutil.resolve_name(class_name)(spec.key, spec.title, spec.start)
    return made


def _end_of_host(title: str, error: BaseException, lifeline: Connection) -> None:
    log.debug("%s ended by %r", title, error)
    if is_out_of_files(error):
        with contextlib.suppress(OSError):
            os.write(lifeline.fileno(), NO_FILES_WORD)
    os._exit(4)


class SharedHost:
    """The main thread of a shared host, which waits for actors to start."""

    def __init__(self, endpoint: str, lifeline: Connection) -> None:
        self._endpoint = endpoint
        self._lifeline = lifeline
        keep_one_heap()
        self._context = make_context(options.SHARED_HOST_SOCKETS)
        self._inside: set[str] = set()
        threading.stack_size(options.ACTOR_STACK_BYTES)

    def run(self) -> None:
        # Imported objects live as long as the process, so the collector need not look at them
        # again.
        gc.freeze()
        while True:
            try:
                class_name, spec, log_level = self._lifeline.recv()
            except (EOFError, OSError):
                os._exit(0)  # the supervisor is dead: answer nothing any more, and close nothing
            logging.getLogger().setLevel(log_level.upper())  # a reload reaches only actors
            work = threading.Thread(
                target=self._run, args=(class_name, spec), name=spec.title, daemon=True
            )
            try:
                work.start()
            except RuntimeError:
                log.error(
                    "this shared process ends, because the system starts no thread for %s; raise "
                    "the limit of tasks (TasksMax, ulimit -u)",
                    spec.title,
                )
                raise

    def _run(self, class_name: str, spec: ChildSpec) -> None:
        logs.name_thread(spec.title)
        try:
            share = ContextShare(self._context, self._inside)
            _actor(class_name, spec).run(self._endpoint, share=share)
        except BaseException as error:
            _end_of_host(spec.title, error, self._lifeline)
        self._inside.difference_update(spec.start.endpoints())
        os.write(self._lifeline.fileno(), spec.key.to_bytes(ENDED, "big"))
