"""Damage in LMDB's own files. LMDB may crash (SIGBUS, SIGSEGV), so each start is a forked process.
After a crash there is another start.

There are at most five starts, because the supervisor would not make more. The product uses a
separate process with a new interpreter to examine an LMDB environment. These tests fork a process
instead, because a new interpreter would take fifty times as long.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from zsq.storage.directory.store import Store
from zsq.storage.errors import StorageError
from zsq.storage.state import state_check
from zsq.storage.state.state import StateBatch

from .damage_check import Expected, Seen, ViolationError, check, need, open_copy
from .damage_specimens import CHANNELS, EPOCH_NS, Specimen, abandon

STARTS_MAX: Final = 5
OK, AGAIN, VIOLATION, REFUSED = 0, 3, 7, 9
COMMITS: Final = 4  # LMDB uses pages again that were freed two commits before
DUE_MAX: Final = 1 << 40
UNKNOWN: Final = "an unknown number of"
GONE: Final = "is missing, with all delayed messages"


def forked(call: Callable[[], Any]) -> tuple[int, Any]:
    """Call a function in a forked process. Return its exit code, or the negative number of a
    signal, and the result, passed as JSON.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(reading)
            data = json.dumps(call()).encode()
            while data:
                data = data[os.write(writing, data) :]
            code = 0
        except BaseException as error:
            os.write(writing, json.dumps(f"{type(error).__name__}: {error}").encode()[:4000])
        finally:
            os._exit(code)
    os.close(writing)
    pieces = []
    while piece := os.read(reading, 1 << 16):
        pieces.append(piece)
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        return code, json.loads(b"".join(pieces) or b"null")
    except ValueError:
        return code, None


def _examine(path: str, timeout_s: float) -> state_check.Verdict:
    """Replacement for `state_check._examine`, by fork."""
    del timeout_s
    code, found = forked(lambda: state_check.findings(path))
    if code < 0:
        return state_check.Verdict(
            [f"{path}: LMDB crashed when it read this ({signal.Signals(-code).name})"],
            finished=True,
        )
    if code:
        return state_check.Verdict([f"{path} could not be checked: {found}"], finished=False)
    return state_check.Verdict([str(one) for one in found], finished=True)


@contextmanager
def forking() -> Iterator[None]:
    """Use the replacement in this process and in those that it forks."""
    with mock.patch.object(state_check, "_examine", _examine):
        yield


def start(specimen: Specimen, directory: str, want: Expected) -> tuple[int, str]:
    """Run the topic's process once: open, check, commit a few times, check again, and end in an
    orderly way or not. Return the exit code and the outcome as a word.
    """
    try:
        store = open_copy(specimen, directory)
    except StorageError as error:
        sys.stderr.write(f"{error!r}\n")
        return (REFUSED if want.may_refuse else AGAIN), ""
    try:
        check(specimen, store, want, Seen())
        _churn(store)
        _check_delayed(specimen, store)
    except StorageError as error:
        sys.stderr.write(f"{error!r}\n")
        store.keeper.distrust()  # `commits.py` does the same
        abandon(store)
        return AGAIN, ""
    store.close()
    return OK, "told" if store.report.alarms else "harmless"


def _churn(store: Store) -> None:
    """Make commits, so that LMDB uses the pages that it believes to be free."""
    table = store.state.load()
    for turn in range(COMMITS):
        batch = StateBatch()
        for name in CHANNELS:
            if name in table.channels:
                batch.channel_puts[name] = table.channels[name].changed(
                    {"filler": bytes(1500 * turn)}
                )
        store.state.commit(batch)


def _check_delayed(specimen: Specimen, store: Store) -> None:
    """Check that each delayed message is present or counted as lost, that no message is present
    twice, and that there are no other messages.
    """
    if store.delayed is None:
        need(
            not specimen.delayed or any(GONE in alarm for alarm in store.report.alarms),
            "the delayed messages are gone",
        )
        return
    rows = store.delayed.due(EPOCH_NS * 4, DUE_MAX, DUE_MAX)
    found: dict[str, bytes | None] = {}
    for row in rows:
        for index in range(row.block.count):
            key = row.key._replace(serial=row.key.serial + index).text()
            need(key not in found, f"the delayed message {key} is there twice")
            found[key] = row.block.body.value(index)
    for key, body in found.items():
        need(specimen.delayed.get(key) == body, f"the delayed message {key} is wrong")
    missing = specimen.delayed.keys() - found.keys()
    store.delayed.remove([row.key for row in rows], known=True)
    os.close(os.open(_emptied(store.directory), os.O_CREAT | os.O_WRONLY, 0o600))
    left, lost = store.delayed.summary.messages, store.delayed.summary.lost
    need(not left, f"{left} delayed messages are counted as waiting, and there is none")
    told = any(UNKNOWN in alarm for alarm in store.report.alarms)
    # Damage in a row may be noticed only when the row is read.
    need(told or len(missing) <= lost, f"{len(missing)} delayed messages are gone, {lost} are told")


def _emptied(directory: str) -> str:
    """Return the path of a file that a start makes after it has removed the delayed messages. If
    that start crashes later, the next one expects no delayed messages.
    """
    return f"{directory}.emptied"


def lives(specimen: Specimen, directory: str, want: Expected) -> str:
    """Start the topic's process until one start succeeds. Return the outcome as a word. Raise
    `ViolationError`.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_emptied(directory))
    codes: list[int] = []
    while len(codes) < STARTS_MAX:
        code, text = forked(lambda: _life(specimen, directory, want))
        if code == 0:
            code, text = text
        codes.append(code)
        if code in {OK, REFUSED}:
            break
        if code > 0 and code != AGAIN:
            raise ViolationError(f"{text} (starts: {codes})")
    if codes[-1] not in {OK, REFUSED}:
        raise ViolationError(f"it does not start: {codes}")
    names = os.listdir(directory)
    if codes[-1] == REFUSED:
        return "refused"
    aside = any(name.startswith(("state.bad", "delayed.bad")) for name in names)
    if any(code < 0 for code in codes):
        return "killed"
    return "rebuilt" if aside else "again" if len(codes) > 1 else str(text)


def _life(specimen: Specimen, directory: str, want: Expected) -> tuple[int, str]:
    # The file stays open until this process ends.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if os.path.exists(_emptied(directory)):
        specimen = replace(specimen, delayed={})
    try:
        return start(specimen, directory, want)
    except ViolationError as error:
        return VIOLATION, str(error)
