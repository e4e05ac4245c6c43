"""Tests of lists of addresses: how they are read, and the turn among them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from zsq.transport.errors import E_BAD_ARGUMENT, E_FENCED, E_STANDBY, Refused, UsageError
from zsq.transport.wire import addresses
from zsq.transport.wire.addresses import ADDRESSES_MAX, REACHED_MAX, Rotation, Url, parse_all

A, B, C = "tcp://a:4153", "tcp://b:4153", "ipc:///data/run"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    addresses._reached.clear()
    yield
    addresses._reached.clear()


def urls(given: Url) -> list[str]:
    return [one.url for one in parse_all(given).each]


@pytest.mark.parametrize(
    "given",
    [f"{A},{B},{C}", f" {A} , {B},{C}/", [A, B, C], (A, B, C), [f"{A},{B}", C]],
)
def test_a_list_is_read_from_a_string_or_from_several(given: Url) -> None:
    assert urls(given) == [A, B, C]


def test_a_list_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZSQ_URL", f"{A},{B}")
    assert urls(None) == urls("") == [A, B]
    monkeypatch.delenv("ZSQ_URL")
    assert urls(None) == ["tcp://127.0.0.1:4153"]


def test_what_a_list_is_read_to_can_be_read_again() -> None:
    assert parse_all(parse_all([A, C, B]).url) == parse_all([A, C, B])


def test_a_path_may_contain_a_comma() -> None:
    assert urls("ipc:///a,b/run") == ["ipc:///a,b/run"]
    assert urls(f"ipc:///a,b/run,{A}") == ["ipc:///a,b/run", A]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (f"{A},", "has an empty address"),
        (f",{A}", "has an empty address"),
        (f"{A},,{B}", "has an empty address"),
        ([A, ""], "has an empty address"),
        (f"{A},{B},{A}", f"has the address {A} twice"),
        (f"{C},{C}/", f"has the address {C} twice"),
        (f"{A},b:4153", "'b:4153' is not the address of a broker"),
        (f"{A},s3://bucket/x", "'s3://bucket/x' is not the address of a broker"),
        (f"{A} {B}", "is not the address of a broker"),
        ("tcp://::1:4153", "write an address of IPv6 in brackets"),
        ("tcp://[]:4153", "'tcp://[]:4153' is not the address of a broker"),
        ([], f"a client can have 1 to {ADDRESSES_MAX} addresses, not 0"),
        ([f"tcp://a:{n}" for n in range(1, ADDRESSES_MAX + 2)], f"not {ADDRESSES_MAX + 1}"),
        ([A, 7], "an address must be a string, not int"),
        (7, "url must be a string or a list of strings, not int"),
    ],
)
def test_a_bad_list_is_refused(given: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_all(given)
    assert caught.value.code == E_BAD_ARGUMENT
    assert text in caught.value.text


def rotation(*given: str) -> Rotation:
    return Rotation(parse_all(list(given)))


def test_the_turn_goes_through_the_list_and_begins_again() -> None:
    turn = rotation(A, B, C)
    seen = []
    for _ in range(4):
        seen.append(turn.present.url)
        turn.failed(turn.present, "no answer")
    assert seen == [A, B, C, A]


def test_one_address_stays() -> None:
    turn = rotation(A)
    turn.failed(turn.present, "no answer")
    assert turn.present.url == A
    assert turn.why() == ""


def test_links_that_fail_at_the_same_address_go_on_by_one() -> None:
    turn = rotation(A, B, C)
    first = turn.present
    turn.failed(first, "no answer")
    turn.failed(first, "no answer")
    assert turn.present.url == B


def test_the_address_that_was_reached_stays_and_new_clients_begin_there() -> None:
    turn = rotation(A, B)
    turn.failed(turn.present, "no answer")
    turn.reached(turn.present)
    assert turn.present.url == B
    assert turn.why() == ""
    assert rotation(A, B).present.url == B
    assert rotation(B, A).present.url == B
    assert rotation(A, C).present.url == A, "another list begins at its first address"


def test_a_bounded_number_of_lists_is_remembered() -> None:
    for port in range(1, REACHED_MAX + 20):
        turn = rotation(A, f"tcp://b:{port}")
        turn.reached(turn.each[1])
    assert len(addresses._reached) == REACHED_MAX


def test_the_reasons_name_all_addresses() -> None:
    turn = rotation(A, B)
    turn.failed(turn.each[0], f"nothing listens at {A}")
    assert turn.why() == f"nothing listens at {A}; {B}: no answer"
    turn.failed(turn.each[1], "E_STANDBY a standby", Refused(E_STANDBY, "a standby"))
    assert turn.why() == f"nothing listens at {A}; {B}: E_STANDBY a standby"


def test_a_refusal_is_the_reason_only_if_every_address_refused() -> None:
    turn = rotation(A, B)
    turn.failed(turn.each[0], "E_FENCED old", Refused(E_FENCED, "old"))
    assert turn.refusal() is None
    turn.failed(turn.each[1], "E_STANDBY new", Refused(E_STANDBY, "new"))
    found = turn.refusal()
    assert found is not None
    assert (found.code, found.text) == (E_STANDBY, f"{A}: E_FENCED old; {B}: E_STANDBY new")
    turn.failed(turn.each[1], "the connection was lost")
    assert turn.refusal() is None


def test_a_client_gives_up_soon_only_if_nothing_listens_at_any_local_address() -> None:
    here = ("tcp://127.0.0.1:1", "ipc:///none/run")
    turn = rotation(*here)
    turn.failed(turn.each[0], "nothing listens", unheard=True)
    assert not turn.deserted
    turn.failed(turn.each[1], "nothing listens", unheard=True)
    assert turn.deserted
    far = rotation(here[0], A)
    for one in far.each:
        far.failed(one, "nothing listens", unheard=True)
    assert not far.deserted, "the other machine may be starting"
