"""Tests of free space: the reserve, the text of a refusal, and how long a shortage lasts."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from zsq.storage.errors import DiskFull
from zsq.storage.space import SPACE_CHECK_NS, UNTOLD_NS, Shortage, Space, sized

MIB = 1 << 20


class OneDisk:
    """A disk with the given number of free bytes."""

    def __init__(self, free: int | None) -> None:
        self.free = free

    def free_bytes(self, folder: str) -> int:
        if self.free is None:
            raise OSError(errno.EIO, "no answer")
        return self.free


def space(free: int | None, reserve: int = 3 * MIB) -> Space:
    disk: Any = OneDisk(free)
    return Space(disk, "/data/topics/1", reserve)


def test_a_refusal_names_the_directory_what_is_free_and_what_to_do() -> None:
    with pytest.raises(DiskFull) as refused:
        space(4 * MIB).take(2 * MIB, SPACE_CHECK_NS)
    assert str(refused.value) == (
        "2.0 MiB do not fit: /data/topics/1 is on a file system with 4.0 MiB free, and zsq "
        "keeps a reserve of 3.0 MiB."
        " Free space on this file system or enlarge it; publishing then resumes by itself"
    )
    assert refused.value.wanted_bytes == 2 * MIB


def test_a_write_that_the_system_refused_says_the_same() -> None:
    error = space(5 * MIB).refused(
        "no space to write to x", OSError(errno.ENOSPC, "No space left on device")
    )
    assert "no space to write to x" in str(error)
    assert "5.0 MiB free" in str(error)
    assert error.wanted_bytes == 0


def test_a_file_system_that_does_not_answer_refuses_nothing() -> None:
    space(None).take(2 * MIB, SPACE_CHECK_NS)
    assert space(None).room() is None
    assert "Free space" in str(space(None).refused("no space", OSError(errno.ENOSPC, "full")))


def test_a_shortage_ends_when_what_was_refused_would_fit() -> None:
    shortage = Shortage()
    shortage.refused(DiskFull("full", wanted_bytes=100), 3, 0)
    assert shortage.refused_count == 3
    shortage.stored()  # a smaller message was stored
    shortage.look(99, 1)
    assert shortage.text == "full"
    shortage.look(100, 2)
    assert shortage.text == ""
    assert shortage.refused_count == 3


def test_a_shortage_that_free_space_does_not_explain_ends_with_a_write_or_after_a_minute() -> None:
    shortage = Shortage()
    shortage.refused(DiskFull("quota"), 1, 0)
    shortage.look(1 << 40, UNTOLD_NS - 1)
    assert shortage.text == "quota"
    shortage.stored()
    assert shortage.text == ""
    shortage.refused(DiskFull("quota"), 1, 0)
    shortage.look(1 << 40, UNTOLD_NS)
    assert shortage.text == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (3 << 40, "3,072.0 GiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_each_size_is_shown_with_its_unit(count: int, text: str) -> None:
    assert sized(count) == text
