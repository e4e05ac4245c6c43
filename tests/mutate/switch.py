"""The switches in the product's code under test: one of them may be off, and each says once that it
was passed.

It is loaded by itself, in every process of a broker, before anything of the product; so it needs
nothing but the standard library. `ZSQ_SWITCH_OFF`: the number that is off. `ZSQ_SWITCH_SEEN`: a
file that takes the numbers passed, four bytes each.
"""

import os
import tempfile

active = int(os.environ.get("ZSQ_SWITCH_OFF", "-1"))
seen: set[int] = set()
in_pytest = False  # then `seen` is read by the plugin


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
    """A path where nobody else locks anything."""
    if not off(number):
        return path
    return os.path.join(tempfile.mkdtemp(prefix="zsq-unlocked-"), "lock")
