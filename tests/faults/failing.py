"""A disk whose n-th call fails, whatever kind of call that is: of the seam, or one that LMDB makes
past it.

All calls are numbered together, in the order in which they come. A plan names one of them, what it
says (an errno) and how:

    once     that call does nothing and fails
    sticky   it does, and from then on each call that such an error can come from, until `lift`
    late     it does its work, and fails all the same (a rename whose journal could not be written)
    half     a write: half of its bytes arrive, and it fails
    short    a write: half of its bytes arrive, and it says so

What a failed sync has covered never reaches the disk, whatever is synced later: of the log, as
`FaultyFiles` does it, and of LMDB's file as well, for which a model of what is certain is kept here
by inode (its folder is renamed while it is open).
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

MODES: Final = ("once", "sticky", "late", "half", "short")
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
"""Which calls may say what. (Python begins an interrupted call again, so EINTR comes from LMDB's
only, or from a handler that raises.)
"""


FULL: Final = frozenset({"writev", "open_new", "make_folder", "note", "lmdb_write", "lmdb_meta"})
STICKY: Final = HITS | {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EINTR: frozenset(SEAM) & HITS[errno.EINTR],
}
"""Which go on saying it: a disk that is full lets files be cut, removed and synced; what was
interrupted LMDB begins again, for ever.
"""


class Fault(NamedTuple):
    """`at`: the number of the call, from 1."""

    at: int
    code: int
    mode: str

    def __str__(self) -> str:
        return f"{errno.errorcode[self.code]} {self.mode} at call {self.at}"


@dataclass(slots=True)
class Image:
    """A file of LMDB's: what is certainly on disk, and what was written since."""

    certain: bytearray
    pending: list[tuple[int, bytes]] = field(default_factory=list)

    def put(self, position: int, data: bytes) -> None:
        self.certain.extend(bytes(max(0, position + len(data) - len(self.certain))))
        self.certain[position : position + len(data)] = data


class FailingFiles(FaultyFiles):
    """`trace`: the kinds of all calls since `arm`. `met`: the kind of the call that failed first;
    empty: none did. `hits`: how many did.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.trace: list[str] = []
        self.met = ""
        self.hits = 0
        self.lose_lmdb = False
        """What LMDB did not sync is lost at a crash."""
        self._fault: Fault | None = None
        self._armed = False
        self._images: dict[int, Image] = {}

    def arm(self, fault: Fault | None) -> None:
        """Number the calls from here on, and fail as planned."""
        self._fault, self._armed = fault, True
        self.trace, self.met, self.hits = [], "", 0

    def lift(self) -> None:
        """The trouble is over."""
        self._armed = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Calls in here are not counted, and do not fail."""
        armed, self._armed = self._armed, False
        try:
            yield
        finally:
            self._armed = armed

    @property
    def code(self) -> int:
        """What is said by plan."""
        return 0 if self._fault is None else self._fault.code

    @property
    def mode(self) -> str:
        return "" if self._fault is None else self._fault.mode

    @property
    def goes_on(self) -> bool:
        """For a choice that shall be the same each time, and fall both ways."""
        return self._fault is None or self._fault.at % 2 == 0

    @property
    def reads_work(self) -> bool:
        """While it still fails."""
        fault = self._fault
        return (
            fault is None
            or fault.mode != "sticky"
            or not STICKY[fault.code] & {"open_read", "pread"}
        )

    def meet(self, kind: str) -> Fault | None:
        """The fault that this call is to have."""
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
        """One call of the seam."""
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
        """For `LmdbCalls`: 0, an errno, or below 0 how many bytes a write takes."""
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
