"""A hook between LMDB and the C library. It sees every call that changes a file before it is
carried out, and can make it fail.

LMDB is C code and does not write through `storage/files.py`. Its extension module finds `pwrite`,
`fdatasync` and similar functions in a table of addresses (the ELF global offset table). This module
finds that table in the dynamic section of the extension module, and replaces its entries by
functions of its own. This has the effect of an LD_PRELOAD library, but needs no compiler. The calls
of LMDB and those of `storage/files.py` are seen in one common order.

    with LmdbCalls(lambda call: 0):       # 0: do it; an errno: fail with it
        env = lmdb.open(...)

LMDB commits in this order (mdb.c, `mdb_txn_commit`): it writes dirty pages by pwrite, or by lseek
and writev, and calls fdatasync. Then it writes the older of the two meta pages through a second
descriptor, which was opened with O_DSYNC. That write is durable when it returns.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import lmdb.cpython

# DT_JMPREL, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ
_TABLE, _STRINGS, _SYMBOLS, _RELOCATIONS, _RELOCATIONS_BYTES = 23, 5, 6, 7, 8
_TABLE_BYTES = 2
_DYNAMIC, _LOAD = 2, 1
_SIZE = ctypes.c_ssize_t
_POINTER = ctypes.c_void_p
HOOKED: Final[dict[str, Any]] = {
    "pwrite": ctypes.CFUNCTYPE(
        _SIZE, ctypes.c_int, _POINTER, ctypes.c_size_t, ctypes.c_int64, use_errno=True
    ),
    "pwritev": ctypes.CFUNCTYPE(
        _SIZE, ctypes.c_int, _POINTER, ctypes.c_int, ctypes.c_int64, use_errno=True
    ),
    "write": ctypes.CFUNCTYPE(_SIZE, ctypes.c_int, _POINTER, ctypes.c_size_t, use_errno=True),
    "writev": ctypes.CFUNCTYPE(_SIZE, ctypes.c_int, _POINTER, ctypes.c_int, use_errno=True),
    "fdatasync": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, use_errno=True),
    "fsync": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, use_errno=True),
    "ftruncate": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int64, use_errno=True),
}


class LmdbCall(NamedTuple):
    """One call of LMDB. `kind` is write, sync or truncate. `durable`: the write goes through a
    descriptor with O_DSYNC. `position` is the position of a write, or the new size.
    """

    kind: str
    path: str
    position: int = 0
    data: bytes = b""
    durable: bool = False


Hook = Callable[[LmdbCall], int]
"""A function that decides about each call by its result. 0: the call is carried out. An errno: the
call fails with it and writes nothing. A negative number: a write stops after that many bytes (a
short write).
"""


class LmdbCalls:
    """The installed hook. There can be only one at a time in a process. If the hook raises an
    exception, the call fails with EIO, and the exception is kept in `error`.
    """

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.error: BaseException | None = None
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        # Keeps references to the functions whose addresses are in the table.
        self._kept: list[Any] = []
        self._before: dict[int, int] = {}

    def __enter__(self) -> Self:
        for name, address in table_entries(Path(lmdb.cpython.__file__)).items():
            if name in HOOKED:
                function = HOOKED[name](getattr(self, f"_{name}"))
                self._kept.append(function)
                self._before[address] = self._point(
                    address, ctypes.cast(function, _POINTER).value or 0
                )
        assert len(self._before) >= 3, "this build of LMDB reaches the C library in another way"
        return self

    def __exit__(self, *_: object) -> None:
        for address, value in self._before.items():
            self._point(address, value)
        self._before.clear()

    def _point(self, address: int, value: int) -> int:
        """Change the entries of the table. It is read-only after loading (RELRO), so it is made
        writable first.
        """
        page = address & -mmap.PAGESIZE
        size = ctypes.c_size_t(address + 8 - page)
        if self._libc.mprotect(_POINTER(page), size, mmap.PROT_READ | mmap.PROT_WRITE):
            raise OSError(ctypes.get_errno(), "mprotect")
        place = ctypes.c_uint64.from_address(address)
        before, place.value = place.value, value
        return int(before)

    # The functions that LMDB calls

    def _ask(self, call: LmdbCall) -> int:
        try:
            return self.hook(call)
        except BaseException as error:
            self.error = error
            return errno.EIO

    def _fails(self, code: int) -> int:
        ctypes.set_errno(code)
        return -1

    def _done(self, act: Callable[[], int | None]) -> int:
        try:
            return act() or 0
        except OSError as error:
            return self._fails(error.errno or errno.EIO)

    def _put(self, fd: int, position: int, data: bytes, *, moves: bool) -> int:
        call = LmdbCall(
            "write", path_of(fd), position, data, bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC)
        )
        answer = self._ask(call)
        if answer > 0:
            return self._fails(answer)
        taken = data[:-answer] if answer < 0 else data
        return self._done(lambda: os.write(fd, taken) if moves else os.pwrite(fd, taken, position))

    def _pwrite(self, fd: int, buffer: int, size: int, position: int) -> int:
        return self._put(fd, position, ctypes.string_at(buffer, size), moves=False)

    def _pwritev(self, fd: int, vector: int, count: int, position: int) -> int:
        return self._put(fd, position, b"".join(gathered(vector, count)), moves=False)

    def _write(self, fd: int, buffer: int, size: int) -> int:
        return self._put(
            fd, os.lseek(fd, 0, os.SEEK_CUR), ctypes.string_at(buffer, size), moves=True
        )

    def _writev(self, fd: int, vector: int, count: int) -> int:
        return self._put(
            fd, os.lseek(fd, 0, os.SEEK_CUR), b"".join(gathered(vector, count)), moves=True
        )

    def _fdatasync(self, fd: int) -> int:
        answer = self._ask(LmdbCall("sync", path_of(fd)))
        return self._fails(answer) if answer else self._done(lambda: os.fdatasync(fd))

    _fsync = _fdatasync

    def _ftruncate(self, fd: int, size: int) -> int:
        answer = self._ask(LmdbCall("truncate", path_of(fd), size))
        return self._fails(answer) if answer else self._done(lambda: os.ftruncate(fd, size))


def path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def gathered(vector: int, count: int) -> Iterator[bytes]:
    """Yield the pieces of a struct iovec[count]: pointer and length of each."""
    for start, size in struct.iter_unpack("=QQ", ctypes.string_at(vector, 16 * count)):
        yield ctypes.string_at(start, size)


def table_entries(module: Path) -> dict[str, int]:
    """Return a dict for a loaded module: name of a C function -> address of its table entry in this
    process. It supports 64-bit little-endian ELF (x86-64, aarch64).
    """
    path = str(module.resolve())
    image = Path(path).read_bytes()
    assert image[:6] == b"\x7fELF\x02\x01", f"{path}: not a 64-bit little-endian ELF file"
    assert sys.byteorder == "little"
    headers = [
        struct.unpack_from("<IIQQQQ", image, struct.unpack_from("<Q", image, 32)[0] + 56 * i)
        for i in range(struct.unpack_from("<H", image, 56)[0])
    ]

    def in_file(address: int) -> int:
        return next(
            int(address - h[3] + h[2])
            for h in headers
            if h[0] == _LOAD and h[3] <= address < h[3] + h[5]
        )

    _, _, start, _, _, size = next(h for h in headers if h[0] == _DYNAMIC)
    tags = dict(struct.iter_unpack("<QQ", image[start : start + size // 16 * 16]))
    symbols, strings = in_file(tags[_SYMBOLS]), in_file(tags[_STRINGS])
    base = loaded_at(path)
    found = {}
    for where, length in ((_TABLE, _TABLE_BYTES), (_RELOCATIONS, _RELOCATIONS_BYTES)):
        if where not in tags:
            continue
        begin = in_file(tags[where])
        for place, info, _ in struct.iter_unpack("<QQq", image[begin : begin + tags[length]]):
            if info >> 32:
                name = strings + struct.unpack_from("<I", image, symbols + 24 * (info >> 32))[0]
                found[image[name : image.index(b"\0", name)].decode().removesuffix("64")] = (
                    base + place
                )
    return found


def loaded_at(path: str) -> int:
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) >= 6 and fields[5] == path:
                return int(fields[0].partition("-")[0], 16) - int(fields[2], 16)
    raise AssertionError(f"{path} is not loaded")
