"""Tests of records: they are what `dataclass(frozen=True, slots=True)` would make, but later."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from dataclasses import asdict, field, fields, replace
from typing import ClassVar
from unittest.mock import ANY

import pytest

from zsq.transport.records import Record, record


@record
class Point(Record):
    """A record with all kinds of fields."""

    kind: ClassVar[str] = "point"
    x: int
    y: int = 2
    names: list[str] = field(default_factory=list, repr=False)


@record(kw_only=True)
class Named(Point):
    """A record with more fields, which only keywords can set, and another default."""

    title: str
    y: int = 7

    def __post_init__(self) -> None:
        if not self.title:
            raise ValueError("no title")


@record
class Bare(Record):
    """A record without fields."""


def test_a_record_has_the_fields_and_defaults_of_its_class() -> None:
    assert [one.name for one in fields(Named)] == ["x", "y", "names", "title"]
    point = Point(1)
    assert (point.x, point.y, point.names, point.kind) == (1, 2, [], "point")
    assert point.names is not Point(1).names
    assert asdict(Named(1, title="t")) == {"x": 1, "y": 7, "names": [], "title": "t"}
    assert Bare() == Bare()
    match point:
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_an_argument_that_is_missing_or_unknown_is_refused() -> None:
    for wrong in ({}, {"x": 1, "z": 2}):
        with pytest.raises(TypeError):
            Point(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no title"):
        Named(1, title="")


def test_records_are_equal_if_their_class_and_fields_are() -> None:
    assert Point(1, 2) == Point(1) != Point(2)
    assert Point(1, 7) != Named(1, title="t")
    assert Point(1) == ANY
    assert replace(Point(1), y=3) == Point(1, 3)
    assert {hash(Bare()), hash(Bare())} == {hash(Bare())}
    assert repr(Named(1, title="t")) == "Named(x=1, y=7, title='t')"


def test_a_record_has_slots_and_can_be_pickled() -> None:
    point = Named(1, title="t", names=["n"])
    assert not hasattr(point, "__dict__")
    assert pickle.loads(pickle.dumps(point)) == point


def test_no_message_and_no_request_is_made_before_it_is_used() -> None:
    """Each of these two hundred classes would take half a millisecond of each start."""
    program = """
from zsq.transport.wire import admin_codec, codec
from zsq.transport.wire.admin_requests import REQUESTS
from zsq.transport.wire.protocol import WORDS
kinds = [*WORDS.values(), *(row.kind for row in REQUESTS)]
print([kind for kind in kinds if isinstance(kind.__dict__["__dataclass_fields__"], dict)])
"""
    line = [sys.executable, "-c", program]
    assert subprocess.run(line, capture_output=True, check=True).stdout == b"[]\n"


def test_the_first_use_of_a_record_after_ctrl_c_leaves_the_exit_code_of_ctrl_c() -> None:
    program = """
import atexit
from zsq.transport.wire.protocol import Fin
atexit.register(lambda: Fin(1, 2, ()))
raise KeyboardInterrupt
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == -signal.SIGINT
