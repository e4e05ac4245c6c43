"""The base of all clients: it makes the drive of a client, one in each process.

A blocking client has a `Drive`, an asyncio client a `Turner`. This package calls both a drive: it
turns an engine. What a client does to its engine is written once, in the bases of the blocking and
the asyncio client. It either changes the engine under `drive.lock`, or lets the drive carry out
steps. `drive.carry_out` returns the result in a blocking client, and an awaitable in an asyncio
client. So does each method of these bases that returns what `carry_out` returns.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from ...system import after_fork, note_fork
from ...wire.address import DefaultTimeout
from ..link.engine import Engine
from .drive import Drive
from .program_end import ClientName, inherit, remember

_DriveT = TypeVar("_DriveT")

_clients: weakref.WeakSet[ClientBase[Any]] = weakref.WeakSet()
# This lock is necessary because several threads may use a client for the first time.
_making: threading.Lock = threading.Lock()


class ClientBase(Generic[_DriveT]):
    """A client with an engine of its own in each process."""

    _last_drive: _DriveT | None  # the drive made last, perhaps in the parent process
    _client_name: ClientName | None
    _timeout: float | None

    def __init__(self) -> None:
        """Finish the construction. All attributes are set, and the arguments are checked."""
        self._last_drive = None
        _clients.add(self)

    @property
    def _made(self) -> _DriveT | None:
        """The drive of this process, if there is one. Some servers fork without Python's hooks, so
        the process is checked.
        """
        drive: Any = self._last_drive
        if drive is not None and drive.pid != os.getpid():
            note_fork()
        return self._last_drive

    def _drive(self) -> _DriveT:
        """Return the drive. Make it at the first call in this process."""
        made = self._made
        return self._make() if made is None else made

    def _make(self) -> _DriveT:
        note_fork()
        with _making:
            made = self._made
            if made is not None:
                return made
            drive = self._new_drive(self._engine())
            drive.belong_to(self, self._client_name)
            self._last_drive = drive
            return cast("_DriveT", drive)

    def _engine(self) -> Engine:
        raise NotImplementedError

    def _new_drive(self, engine: Any) -> Any:
        raise NotImplementedError

    def _is_hasty(self) -> bool:
        """Return True if the user gave no time-out, see `Engine`."""
        return isinstance(self._timeout, DefaultTimeout)

    def _forked(self) -> None:
        """Forget, in a forked child, everything that belongs to the parent process.

        The drive of the parent is never touched and never collected.
        """
        if self._last_drive is not None:
            inherit(self._last_drive)
            self._last_drive = None


class BlockingClient(ClientBase[_DriveT]):
    """Base class of blocking clients. They are closed at the end of the program."""

    _keeper = ""  # the name of the keeper thread, see `Drive`

    def __init__(self) -> None:
        super().__init__()
        remember(self, self._client_name)

    def _new_drive(self, engine: Any) -> Any:
        return Drive(engine, keeper=self._keeper, hasty=self._is_hasty())

    def close(self, timeout: float | None = None) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _after_fork() -> None:
    global _making
    # If a thread of the parent held the old lock, no thread of the child can release it.
    _making = threading.Lock()
    for client in list(_clients):
        client._forked()


after_fork(_after_fork)
