"""A disk whose n-th call fails, whether the call goes through `storage/files.py` or is made by
LMDB.

All calls have numbers in the order in which they are made. A plan names the number of one call, an
errno, and a mode:

    once     that call does nothing and fails
    sticky   that call and each later call that can have this error fail, until `lift`
    late     that call does its work and fails nevertheless (a rename whose journal was not written)
    half     a write: half of the bytes are written, and the call fails
    short    a write: half of the bytes are written, and the call returns that number

The bytes that a failed sync covered never reach the disk, whatever is synced later. `FaultyFiles`
does that for the log. For LMDB's files, this module keeps a model of what is certainly on disk. It
finds a file by its inode, because its folder may be renamed while the file is open.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from support.faulty_files import FaultyFiles, FaultyNode
from support.lmdb_calls import LmdbCall

WRITES: Final = frozenset({"writev", "lmdb_write", "lmdb_meta"})
SYNCS: Final = frozenset({"sync", "sync_folder", "lmdb_sync"})
NAMES: Final = frozenset({"open_new", "make_folder", "rename", "remove", "note"})
CHANGES: Final = WRITES | SYNCS | NAMES | {"truncate", "lock", "lmdb_truncate"}
OPENS: Final = frozenset(
    {
        "open_new",
        "open_append",
        "open_read",
        "sync_folder",
        "list",
        "lock",
        "lock_folder",
        "note",
        "read_note",
    }
)
LOOKS: Final = frozenset({"pread", "size", "size_of", "exists", "free_bytes", "total_bytes"})
SEAM: Final = (
    "open_new", "open_append", "open_read", "writev", "pread", "sync", "sync_folder", "truncate", "size", "size_of", "rename", "remove",
    "list", "exists", "make_folder", "lock", "lock_folder", "note", "read_note", "free_bytes", "total_bytes",
)  # fmt: skip

HITS: Final[dict[int, frozenset[str]]] = {
    errno.EIO: CHANGES | OPENS | LOOKS,
    errno.ENOSPC: CHANGES - {"lock"},
    errno.EDQUOT: CHANGES - {"lock"},
    errno.EROFS: CHANGES - SYNCS,
    errno.EMFILE: OPENS,
    errno.EINTR: WRITES | SYNCS | {"truncate", "open_new", "open_append", "open_read"},
}
"""For each error, the calls that can fail with it. (Python repeats an interrupted call. So EINTR
comes only from LMDB's calls, or from a signal handler that raises.)
"""


FULL: Final = frozenset({"writev", "open_new", "make_folder", "note", "lmdb_write", "lmdb_meta"})
STICKY: Final = HITS | {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EINTR: frozenset(SEAM) & HITS[errno.EINTR],
}
"""The calls that continue to fail in the mode "sticky". On a full disk, files can still be cut,
removed and synced. EINTR is missing, because LMDB repeats an interrupted call for ever.
"""


class Fault(NamedTuple):
    """A planned failure. `at`: the number of the call, counted from 1."""

    at: int
    code: int
    mode: str

    def __str__(self) -> str:
        return f"{errno.errorcode[self.code]} {self.mode} at call {self.at}"


@dataclass(slots=True)
class Image:
    """A file of LMDB: the content that is certainly on disk, and what was written since."""

    certain: bytearray
    pending: list[tuple[int, bytes]] = field(default_factory=list)

    def put(self, position: int, data: bytes) -> None:
        self.certain.extend(bytes(max(0, position + len(data) - len(self.certain))))
        self.certain[position : position + len(data)] = data


class FailingFiles(FaultyFiles):
    """Files whose calls are counted and fail as planned. `trace`: the kinds of all calls since
    `arm`. `met`: the kind of the call that failed first, or empty. `hits`: how many calls failed.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.trace: list[str] = []
        self.met = ""
        self.hits = 0
        self.lose_lmdb = False
        """If True, what LMDB did not sync is lost at a crash."""
        self._fault: Fault | None = None
        self._armed = False
        self._images: dict[int, Image] = {}

    def arm(self, fault: Fault | None) -> None:
        """Number the calls from now on, and let them fail as planned."""
        self._fault, self._armed = fault, True
        self.trace, self.met, self.hits = [], "", 0

    def lift(self) -> None:
        """End the failures."""
        self._armed = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count calls in this context, and let them succeed."""
        armed, self._armed = self._armed, False
        try:
            yield
        finally:
            self._armed = armed

    @property
    def code(self) -> int:
        """Return the planned errno."""
        return 0 if self._fault is None else self._fault.code

    @property
    def mode(self) -> str:
        return "" if self._fault is None else self._fault.mode

    @property
    def goes_on(self) -> bool:
        """Return True for half of the plans, and always the same answer for one plan. A life uses
        it to choose between two ways to continue.
        """
        return self._fault is None or self._fault.at % 2 == 0

    @property
    def reads_work(self) -> bool:
        """Return True if reads succeed while the failure lasts."""
        fault = self._fault
        return (
            fault is None
            or fault.mode != "sticky"
            or not STICKY[fault.code] & {"open_read", "pread"}
        )

    def meet(self, kind: str) -> Fault | None:
        """Count this call. Return the fault that it must have, or None."""
        if not self._armed:
            return None
        self.trace.append(kind)
        fault = self._fault
        if fault is None:
            return None
        number = len(self.trace)
        if number == fault.at or (
            number > fault.at and fault.mode == "sticky" and kind in STICKY[fault.code]
        ):
            self.met = self.met or kind
            self.hits += 1
            return fault
        return None

    def faulty(
        self,
        kind: str,
        call: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        """Carry out one call of `storage/files.py`, with its fault."""
        fault = self.meet(kind)
        if fault is None:
            return call(*arguments, **keywords)
        failure = OSError(fault.code, f"{os.strerror(fault.code)}, by plan: {fault}, a {kind}")
        following = self._calls.get(kind, 0) + 1
        if kind == "writev" and fault.mode in {"half", "short"}:
            self.short[following] = sum(map(len, arguments[1])) // 2
            if fault.mode == "short":
                return call(*arguments)
            try:
                call(*arguments)
            except OSError:
                raise failure from None
        if kind == "sync" and fault.mode != "late":
            self.fail["sync"] = {following: fault.code}
            return call(*arguments)
        if fault.mode == "late":
            found = call(*arguments, **keywords)
            if kind in {"open_new", "open_append", "open_read", "lock", "lock_folder"}:
                self.close(found)
        raise failure

    # LMDB

    def lmdb(self, call: LmdbCall) -> int:
        """Hook for `LmdbCalls`. Return 0 for success, an errno for a failure, or the negative
        number of bytes that a write is to accept.
        """
        if not call.path.startswith(self.root + "/"):
            return 0
        image = self._image(call.path)
        fault = self.meet("lmdb_meta" if call.durable else f"lmdb_{call.kind}")
        if call.kind == "sync":
            if fault is None or fault.mode == "late":
                for position, data in image.pending:
                    image.put(position, data)
            image.pending.clear()
        elif call.kind == "write":
            self._note_write(call, image, fault)
        if fault is not None and fault.mode == "short" and call.kind == "write":
            return -max(len(call.data) // 2, 1)
        return 0 if fault is None else fault.code

    def _note_write(self, call: LmdbCall, image: Image, fault: Fault | None) -> None:
        taken = len(call.data)
        if fault is not None:
            taken = {"late": taken, "half": taken // 2, "short": max(taken // 2, 1)}.get(
                fault.mode, 0
            )
        data = call.data[:taken]
        if fault is not None and fault.mode in {"late", "half"}:
            fd = os.open(call.path, os.O_WRONLY)
            os.pwrite(fd, data, call.position)
            os.close(fd)
        if call.durable:
            image.put(call.position, data)
        elif data:
            image.pending.append((call.position, data))

    def _image(self, path: str) -> Image:
        inode = os.stat(path).st_ino
        if inode not in self._images:
            self._images[inode] = Image(bytearray(self._whole(path)))
        return self._images[inode]

    def _strangers(self, path: str, node: FaultyNode) -> dict[int, dict[str, bytes]]:
        found = super()._strangers(path, node)
        if self.lose_lmdb:
            for name in found[id(node)]:
                image = self._images.get(os.stat(f"{path}/{name}").st_ino)
                if image is not None:
                    found[id(node)][name] = bytes(image.certain)
        return found

    def reset(self) -> None:
        super().reset()
        self._images = {}


def _faulty(kind: str) -> Callable[..., Any]:
    below = getattr(FaultyFiles, kind)

    def method(self: FailingFiles, *arguments: Any, **keywords: Any) -> Any:
        return self.faulty(
            kind, lambda *given, **named: below(self, *given, **named), arguments, keywords
        )

    method.__name__ = kind
    return method


for _kind in SEAM:
    setattr(FailingFiles, _kind, _faulty(_kind))
