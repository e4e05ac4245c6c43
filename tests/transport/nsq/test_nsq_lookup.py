"""Tests of nsqlookupd's protocol as a node uses it: exact bytes, limits, times, and its HTTP
answers.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.transport.nsq.lookup import (
    ANSWER_MAX,
    ANSWER_NS,
    NAMES_MAX,
    PING_NS,
    UNANSWERED_MAX,
    LookupFailed,
    LookupSession,
    Node,
    by_topic,
    parse_channels,
    registrations,
)

NODE = Node("node.example.org", "node", 4150, 4151, "1.3.0-zsq", "eu", "b")
PEER = b'{"broadcast_address": "lookup", "http_port": 4161, "tcp_port": 4160, "version": "1.3.0"}'


def answer(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def identified(now_ns: int = 0) -> LookupSession:
    session = LookupSession(NODE, now_ns)
    session.take_out()
    session.receive(answer(PEER), now_ns)
    return session


def test_registration_begins_only_after_identify_is_answered() -> None:
    session = LookupSession(NODE, 0)
    session.want(frozenset({("t", "")}), 0)
    out = session.take_out()
    assert out.startswith(b"  V1IDENTIFY\n")
    size, body = int.from_bytes(out[13:17], "big"), out[17:]
    assert size == len(body)
    assert json.loads(body) == {
        "broadcast_address": "node.example.org",
        "hostname": "node",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0-zsq",
        "topology_region": "eu",
        "topology_zone": "b",
    }
    assert not session.identified
    session.receive(answer(PEER)[:30], 0)
    assert session.take_out() == b""  # nothing is sent before nsqlookupd has answered IDENTIFY
    session.receive(answer(PEER)[30:], 0)
    assert session.identified
    assert session.peer_port == 4161
    assert session.take_out() == b"REGISTER t\n"
    assert not session.settled
    session.receive(answer(b"OK"), 0)
    assert session.settled


def test_an_old_lookupd_says_only_ok() -> None:
    session = LookupSession(NODE, 0)
    session.receive(answer(b"OK"), 0)
    assert session.identified
    assert (session.peer_host, session.peer_port) == ("", 0)


def test_only_the_difference_is_registered_and_unregistered() -> None:
    session = identified()
    session.want(registrations({"b": ["y", "x"], "a": []}), 0)
    assert session.take_out() == b"REGISTER a\nREGISTER b\nREGISTER b x\nREGISTER b y\n"
    session.want(registrations({"a": ["z"]}), 0)
    assert session.take_out() == b"UNREGISTER b y\nUNREGISTER b x\nUNREGISTER b\nREGISTER a z\n"
    session.want(registrations({"a": ["z"]}), 0)
    assert session.take_out() == b""
    session.receive(answer(b"OK") * 8, 0)
    assert session.settled
    assert session.registered == 2


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({}, {}),
        ({"a": ["x"], "b#ephemeral": []}, {"a": {"x"}, "b#ephemeral": set()}),
        ({"a#0": ["x"], "a#11": ["x", "y"], "b": []}, {"a": {"x", "y"}, "b": set()}),
    ],
)
def test_the_parts_of_a_topic_are_one_topic_to_nsqs_tools(
    names: dict[str, list[str]], found: dict[str, set[str]]
) -> None:
    assert by_topic(names) == found


def test_topics_that_come_and_go_while_replies_are_missing_are_not_sent() -> None:
    session = identified()
    session.want(registrations({f"t{number:04}": [] for number in range(1000)}), 0)
    assert session.take_out().count(b"\n") == UNANSWERED_MAX
    session.want(frozenset(), 0)
    assert session.take_out() == b""
    session.receive(answer(b"OK") * 10, 0)
    assert session.take_out().count(b"\n") == 10
    session.receive(answer(b"OK") * UNANSWERED_MAX, 0)
    assert session.take_out().count(b"UNREGISTER") == UNANSWERED_MAX - 10
    session.receive(answer(b"OK") * (UNANSWERED_MAX - 10), 0)
    assert session.settled
    assert session.registered == 0


@given(
    steps=st.lists(
        st.dictionaries(
            st.sampled_from("abc"), st.lists(st.sampled_from("xyz"), max_size=3), max_size=3
        ),
        max_size=6,
    )
)
def test_a_lookupd_always_ends_with_what_is_wanted(steps: list[dict[str, list[str]]]) -> None:
    """The test applies the commands as nsqlookupd does: a channel registers its topic too, and a
    topic that is removed removes its channels.
    """
    session, here = identified(), set[tuple[str, str]]()
    for step in [*steps, steps[-1] if steps else {}]:
        session.want(registrations(step), 0)
        for line in session.take_out().decode().splitlines():
            command, topic, *channel = line.split(" ")
            if command == "REGISTER":
                here |= {(topic, ""), (topic, "".join(channel))}
            elif channel:
                here.discard((topic, channel[0]))
            else:
                here = {one for one in here if one[0] != topic}
            session.receive(answer(b"OK"), 0)
        assert here == registrations(step)
        assert session.settled


def test_a_ping_is_sent_at_each_interval() -> None:
    session = identified()
    assert session.on_time(0) == PING_NS
    assert session.on_time(PING_NS - 1) == PING_NS
    assert session.take_out() == b""
    assert session.on_time(PING_NS) == PING_NS + ANSWER_NS
    assert session.take_out() == b"PING\n"
    session.receive(answer(b"OK"), PING_NS + 5)
    assert session.on_time(PING_NS + 5) == 2 * PING_NS


def test_a_lookupd_that_does_not_answer_is_given_up() -> None:
    session = LookupSession(NODE, 100)
    assert session.on_time(100) == 100 + ANSWER_NS
    with pytest.raises(LookupFailed, match="did not answer within 5 s"):
        session.on_time(100 + ANSWER_NS)
    session = identified()
    session.want(registrations({"a": [], "b": []}), 1000)
    session.receive(answer(b"OK"), 2000)  # each answer restarts the time limit
    session.on_time(1999 + ANSWER_NS)
    with pytest.raises(LookupFailed, match="did not answer"):
        session.on_time(2000 + ANSWER_NS)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (answer(b"E_BAD_TOPIC REGISTER topic name 't' is not valid"), r"refused t c: .E_BAD_TOPIC"),
        (answer(b"NO"), "replied 'NO' instead of OK"),
        (answer(b"OK") * 2, "an unexpected reply: 'OK'"),
        ((ANSWER_MAX + 1).to_bytes(4, "big"), "its reply has 65537 bytes; the limit is 65536"),
        (b"HTTP/1.1 400", r"its reply has \d+ bytes; the limit is 65536"),
        (b"\xff\xff\xff\xff", "its reply has 4294967295 bytes; the limit is 65536"),
    ],
)
def test_each_wrong_answer_of_a_lookupd_is_an_error(data: bytes, text: str) -> None:
    session = identified()
    session.want(frozenset({("t", "c")}), 0)
    with pytest.raises(LookupFailed, match=text):
        session.receive(data, 0)
    assert session.refused == (("t", "c") if b"E_" in data else None)


def test_a_refused_identify_or_a_wrong_reply_ends_the_connection() -> None:
    session = LookupSession(NODE, 0)
    with pytest.raises(
        LookupFailed, match="refused this node: 'E_BAD_BODY IDENTIFY missing fields'"
    ):
        session.receive(answer(b"E_BAD_BODY IDENTIFY missing fields"), 0)
    for data in (b"[]", b"{", b"[" * 60_000):
        with pytest.raises(LookupFailed):
            LookupSession(NODE, 0).receive(answer(data), 0)


@given(data=st.binary(max_size=300))
def test_garbage_fails_or_waits(data: bytes) -> None:
    session = LookupSession(NODE, 0)
    try:
        session.receive(data, 0)
    except LookupFailed:
        return
    assert len(session._buffer) <= len(data)


def test_a_channel_list_keeps_only_valid_durable_names() -> None:
    body = json.dumps(
        {"channels": ["b", "a", "b", "tail#ephemeral", "bad name", 5, None, "x" * 65, "two\nlines"]}
    ).encode()
    assert parse_channels(body) == ["a", "b"]
    assert parse_channels(b'{"channels": []}') == []
    assert (
        len(
            parse_channels(
                json.dumps({"channels": [f"c{number}" for number in range(NAMES_MAX + 5)]}).encode()
            )
        )
        == NAMES_MAX
    )
    for wrong in (b"", b"[]", b"{}", b'{"channels": {"a": 1}}', b"[" * 100_000):
        with pytest.raises(LookupFailed):
            parse_channels(wrong)
