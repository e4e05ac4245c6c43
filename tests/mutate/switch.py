"""The switches in the product's code under test. One of them may be off, and each reports once that
it was executed.

Every process of a broker loads this module before any module of the product. So it uses only the
standard library. `ZSQ_SWITCH_OFF` is the number of the switch that is off. `ZSQ_SWITCH_SEEN` is a
file to which the numbers of the executed switches are written, four bytes each.
"""

import os
import tempfile

active = int(os.environ.get("ZSQ_SWITCH_OFF", "-1"))
seen: set[int] = set()
in_pytest = False  # if True, the plugin reads `seen`


def _forked() -> None:
    global in_pytest
    in_pytest = False


os.register_at_fork(after_in_child=_forked)


def _note(number: int) -> None:
    seen.add(number)
    path = os.environ.get("ZSQ_SWITCH_SEEN", "")
    if path and not in_pytest:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(fd, number.to_bytes(4, "little"))
        os.close(fd)


def off(number: int) -> bool:
    if number not in seen:
        _note(number)
    return number == active


def false(number: int, found: object) -> object:
    if number not in seen:
        _note(number)
    return False if number == active else found


def true(number: int, found: object) -> object:
    if number not in seen:
        _note(number)
    return True if number == active else found


def elsewhere(number: int, path: str) -> str:
    """Return a path on which no other process takes a lock."""
    if not off(number):
        return path
    return os.path.join(tempfile.mkdtemp(prefix="zsq-unlocked-"), "lock")
