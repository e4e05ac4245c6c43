"""Check of an LMDB environment, in a separate process.

The check needs its own process because a flipped bit may kill LMDB (SIGBUS, SIGSEGV, an abort).

    python -m zsq.storage.state.state_check DIR

The process does three checks. First it compares every row of DIR/data.mdb with its checksum (all
rows of ZSQ have the same envelope, see `state_rows.py`). For a state store, it also compares all
counts and sums. Then it checks LMDB's pages (`lmdb_pages.py`). Then it commits to a copy, so that
LMDB uses the pages that it considers free. It prints the defects as JSON, a list of sentences. The
exit code is 0 if the list is empty. It changes nothing in DIR.

The copy is next to DIR. The caller removes it, even if the process was killed. The commit is left
out if the disk has no space for a copy, or if the environment is larger than TRIAL_BYTES_MAX.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from ..environment import DATA_NAME, Environment
from ..errors import Damaged, DiskFull, ForeignDirectory, StorageError
from ..files import Files
from ..lmdb_pages import wrong_pages
from ..rows import META, rows_of, unwrap
from .state import StateStore
from .state_rows import SMALL_RANGES, unwrap_meta

COPY_SUFFIX: Final = ".check"
COPY_BYTES: Final = 4 * 1024 * 1024
TRIAL_BYTES_MAX: Final = 256 * 1024 * 1024
CHECK_S: Final = 60.0  # the limit for a small environment; a large one gets more time
CHECK_S_MAX: Final = 90.0  # the limit during a start, because a start must end in time
CHECK_BYTES_S: Final = 20_000_000  # the speed of a slow disk, with two reads of each row
_FINDINGS_MAX: Final = 100
_TRIAL_COMMITS: Final = 4  # LMDB uses pages again two commits after they were freed
_TRIAL_ROWS_MAX: Final = 1_000
_TRIAL_KEY: Final = b"~trial%d"
_TRIAL_BYTES: Final = 3_000


class Verdict(NamedTuple):
    """The result of a check.

    `finished` is True if the check ended, or if the damage killed its process. It is False if the
    check took too long or could not run. Then nothing is known. `note` says which part of the check
    was left out.
    """

    findings: list[str]
    finished: bool
    note: str = ""


def check_environment(path: str, timeout_s: float = CHECK_S) -> list[str]:
    """Return the defects of the environment in the folder `path` as sentences.

    No process may have it open for writing.
    """
    return examine(path, timeout_s, math.inf).findings


def examine(path: str, timeout_s: float = CHECK_S, timeout_s_max: float = CHECK_S_MAX) -> Verdict:
    """Check the environment in a separate process.

    `timeout_s` is the limit for a small environment. It grows with the size, up to `timeout_s_max`.
    """
    size = _size(path)
    try:
        verdict = _examine(
            path, max(timeout_s, min(timeout_s + size / CHECK_BYTES_S, timeout_s_max))
        )
    finally:
        remove_copy(Files(), path)
    if size > TRIAL_BYTES_MAX:
        note = (
            f"{path}: no commit was tried on a copy, because it is {size} bytes; the limit is "
            f"{TRIAL_BYTES_MAX}"
        )
        return verdict._replace(note=note)
    return verdict


def remove_copy(files: Files, path: str) -> None:
    """Remove the copy that a killed process has left. Errors are ignored."""
    with contextlib.suppress(OSError):
        if files.exists(path.rstrip("/") + COPY_SUFFIX):
            files.remove_tree(path.rstrip("/") + COPY_SUFFIX)


def _size(path: str) -> int:
    try:
        return Files().size_of(f"{path}/{DATA_NAME}")
    except OSError:
        return 0


def _examine(path: str, timeout_s: float) -> Verdict:
    command = [sys.executable, "-m", __spec__.name if __spec__ is not None else __name__, path]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Verdict(
            [f"{path} could not be checked within {round(timeout_s, 1):g} s"], finished=False
        )
    except OSError as error:
        return Verdict([f"{path} could not be checked: {error}"], finished=False)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        # Another process sends these signals. All other signals come from the damage.
        finished = -done.returncode not in {
            signal.SIGKILL,
            signal.SIGTERM,
            signal.SIGINT,
        }
        return Verdict([f"{path}: LMDB crashed when it read this ({name})"], finished)
    try:
        defects = json.loads(done.stdout)
    except ValueError:
        return Verdict(
            [f"{path} could not be checked: {done.stderr.decode(errors='replace')[-500:]}"],
            finished=False,
        )
    return Verdict([str(sentence) for sentence in defects], finished=True)


def findings(path: str) -> list[str]:
    """Run the check in this process. It may kill the process."""
    if not Files().exists(f"{path}/{DATA_NAME}"):
        return [f"{path} has no {DATA_NAME}"]
    defects = _read(path) or wrong_pages(Files(), f"{path}/{DATA_NAME}")
    return defects if defects or _size(path) > TRIAL_BYTES_MAX else _write_to_a_copy(path)


def _read(path: str) -> list[str]:
    defects: list[str] = []
    try:
        with contextlib.closing(Environment(path, readonly=True)) as env, env.reading() as txn:
            entries = 0
            for key, value in rows_of(txn, b""):
                entries += 1
                with _noting(defects):
                    unwrap(key, value)
                if len(defects) >= _FINDINGS_MAX:
                    return defects
            if entries != txn.stat()["entries"]:
                defects.append(
                    f"{path}: {entries} rows can be read, but {txn.stat()['entries']} are recorded"
                )
            is_state = _is_state(txn)
    except StorageError as error:
        return [*defects, str(error)]
    if is_state and not defects:
        with contextlib.closing(StateStore(path, readonly=True)) as store:
            defects += store.walk()
    return defects


def _is_state(txn: Any) -> bool:
    try:
        return {"rows", "sum", "applied"} <= unwrap_meta(txn.get(META)).keys()
    except (Damaged, ForeignDirectory, ValueError, KeyError, TypeError):
        return False


def _write_to_a_copy(path: str) -> list[str]:
    files = Files()
    copy = path.rstrip("/") + COPY_SUFFIX
    remove_copy(files, path)
    try:
        files.make_folder(copy)
        _copy(files, f"{path}/{DATA_NAME}", f"{copy}/{DATA_NAME}")
        return [sentence.replace(copy, path) for sentence in _trial(copy)]
    except OSError:
        return []
    finally:
        remove_copy(files, path)


def _copy(files: Files, source: str, target: str) -> None:
    reading, writing = files.open_read(source), files.open_new(target)
    try:
        for position in range(0, files.size(reading), COPY_BYTES):
            files.writev(writing, [files.pread(reading, COPY_BYTES, position)], position)
    finally:
        files.close(reading)
        files.close(writing)


def _trial(path: str) -> list[str]:
    """Commit to the copy, then read all rows again.

    The commits delete rows and write them again, and add other rows and remove them. So LMDB uses
    all its lists of free pages.
    """
    defects: list[str] = []
    try:
        with contextlib.closing(Environment(path, sync=False)) as env:
            for turn in range(_TRIAL_COMMITS):
                env.write(partial(_churn, turn))
    except DiskFull:
        return []  # as if the disk had had no space for the copy
    except StorageError as error:
        defects.append(f"{path}: a commit to a copy fails: {str(error).removeprefix(f'{path}: ')}")
    return defects or _read(path)


def _churn(turn: int, txn: Any) -> None:
    for begin, end in SMALL_RANGES:
        old = [
            (key, value)
            for _, (key, value) in zip(
                range(_TRIAL_ROWS_MAX), rows_of(txn, begin, end), strict=False
            )
        ]
        for key, _ in old:
            txn.delete(key)
        for key, value in old:
            txn.put(key, value)
    for number in range(_TRIAL_ROWS_MAX):
        key = _TRIAL_KEY % number
        if turn % 2:
            txn.delete(key)
        else:
            txn.put(key, bytes(_TRIAL_BYTES))


@contextlib.contextmanager
def _noting(defects: list[str]) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        defects.append(str(error))


def main(arguments: list[str]) -> int:
    defects = findings(arguments[0])
    sys.stdout.write(json.dumps(defects))
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
