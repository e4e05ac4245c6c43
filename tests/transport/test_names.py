"""Tests of the names of topics, channels and parts."""

from __future__ import annotations

import pytest

from zsq.transport.errors import UsageError
from zsq.transport.names import PARTS_MAX, base_of, check_name, part_name, part_of


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("clicks#0", ("clicks", 0)),
        ("clicks#255", ("clicks", 255)),
        ("a.b-c_d#17", ("a.b-c_d", 17)),
        (f"clicks#{PARTS_MAX}", None),
        ("clicks#01", None),
        ("clicks#-1", None),
        ("clicks#", None),
        ("#1", None),
        ("clicks", None),
        ("clicks#ephemeral", None),
        ("clicks#ephemeral#1", None),
        ("clicks#1#1", None),
        ("c" * 63 + "#1", None),
        ("c" * 62 + "#1", ("c" * 62, 1)),
        ("clicks#\u0661", None),
    ],
)
def test_names_of_parts(name: str, found: tuple[str, int] | None) -> None:
    assert part_of(name) == found
    assert base_of(name) == (name if found is None else found[0])
    if found is not None:
        assert part_name(*found) == name
        assert check_name(name) == name


@pytest.mark.parametrize("name", ["clicks#256", "clicks#01", "clicks#1#1", "c" * 63 + "#1"])
def test_other_names_with_numbers_are_not_legal(name: str) -> None:
    with pytest.raises(UsageError, match="E_BAD_NAME"):
        check_name(name)


def test_a_channel_has_no_parts() -> None:
    with pytest.raises(UsageError, match="E_BAD_NAME"):
        check_name("archive#1", "channel")


@pytest.mark.parametrize(
    ("what", "hint"), [("topic", True), ("channel", True), ("schedule", False)]
)
def test_only_topics_and_channels_are_told_of_names_in_memory(what: str, hint: bool) -> None:
    with pytest.raises(UsageError, match="is not legal: use 1 to 64 of the characters") as wrong:
        check_name("no name", what)
    assert ("#ephemeral" in wrong.value.text) == hint
