"""Tests of how `zsq broker` finds the broker that a user names."""

from __future__ import annotations

from typing import Any, cast

import pytest

from zsq.apps.cli.manage.broker import broker_row
from zsq.transport.errors import ZsqError


def report(*brokers: tuple[str, bool, tuple[str, ...]]) -> Any:
    rows = [
        {"number": number, "uuid": uuid, "gone": gone, "addresses": list(addresses)}
        for number, (uuid, gone, addresses) in enumerate(brokers)
    ]
    return cast("Any", {"brokers": rows})


BROKERS = report(
    ("a1" * 16, False, ("tcp://a:1",)),
    ("b2" * 16, True, ("tcp://b:1",)),
    ("c3" * 16, True, ("tcp://c:1", "tcp://a:1")),
    ("d4" * 16, False, ("tcp://b:1",)),
    ("d5" * 16, False, ("tcp://d:1", "tcp://b:1")),
    ("d4d5" * 8, False, ("tcp://e:1",)),
)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("0", 0), ("1", 1), ("b2b2", 1), ("tcp://a:1", 0), ("a:1", 0), ("c:1", 2), ("d4d4", 3),
        ("d:1", 4), ("d4d5", 5),
    ],
)  # fmt: skip
def test_a_broker_has_three_names_and_its_address_may_be_used_again(name: str, number: int) -> None:
    assert broker_row(BROKERS, name)["number"] == number


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("b:1", "E_BAD_ARGUMENT", r"may be several brokers, give a number: 3 \(.*\), 4 \("),
        ("6", "E_NOT_FOUND", "the cluster has no broker '6', but 0 "),
        ("d4", "E_NOT_FOUND", "no broker 'd4'"),  # too short to be meant
        ("", "E_NOT_FOUND", "no broker ''"),
    ],
)
def test_a_name_that_means_no_broker_or_several_is_refused(name: str, code: str, text: str) -> None:
    with pytest.raises(ZsqError, match=text) as caught:
        broker_row(BROKERS, name)
    assert caught.value.code == code
