"""Tests of an NSQ client's session: its state table, the order of answers, which commands wait for
others, heartbeats, and limits.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nsq_client import BEAT, ID, MS, OK, OTHER, Client, failed, mpub, pub, said, sized

from zsq.transport.nsq.limits import NsqLimits
from zsq.transport.nsq.reply_queue import PENDING_BYTES_MAX, PENDING_MAX
from zsq.transport.nsq.session import (
    COMMANDS,
    NEVER,
    SESSION_TABLE,
    TOPICS_COUNTED_MAX,
    Consumption,
    State,
)

AUTH_LIMITS = NsqLimits(auth_required=True)
SUB = b"SUB t c\n"
CLS = SUB + b"CLS\n"
FIN_FAILED = failed(b"E_FIN_FAILED FIN " + OTHER + b" failed ID not in flight")
SECRET = b"AUTH\n" + sized(b"secret")

# A well-formed example of each command, and the bytes that bring a client into each state in which
# it may send anything.
SAMPLES: dict[bytes, bytes] = {
    b"IDENTIFY": b"IDENTIFY\n" + sized(b"{}"),
    b"AUTH": SECRET,
    b"SUB": SUB,
    b"PUB": pub(b"t", b"x"),
    b"MPUB": mpub(b"t", b"x", b"y"),
    b"DPUB": b"DPUB t 5\n" + sized(b"x"),
    b"RDY": b"RDY 5\n",
    b"FIN": b"FIN " + ID + b"\n",
    b"REQ": b"REQ " + ID + b" 0\n",
    b"TOUCH": b"TOUCH " + ID + b"\n",
    b"CLS": b"CLS\n",
    b"NOP": b"NOP\n",
}
WAYS = {State.INIT: b"", State.SUBSCRIBED: SECRET + SUB, State.CLOSING: SECRET + CLS}
TLS = b"IDENTIFY\n" + sized(b'{"tls_v1":true,"feature_negotiation":true}')


# The table


def test_the_table_knows_all_commands() -> None:
    assert set(SAMPLES) == COMMANDS
    assert set(SESSION_TABLE) == set(State)


@pytest.mark.parametrize("state", WAYS)
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_each_command_in_each_state_does_what_the_table_says(state: State, name: bytes) -> None:
    client = Client(AUTH_LIMITS)
    client.send(WAYS[state])
    if state is State.INIT and name not in {b"AUTH", b"IDENTIFY"}:
        client.send(SECRET)
    assert client.session.state is state
    back = client.send(SAMPLES[name])
    step = SESSION_TABLE[state].get(name)
    if step is not None:
        assert (client.session.state, client.closed) == (step.after or state, False)
    else:
        assert back == failed(b"E_INVALID cannot " + name + b" in current state")
        assert (client.session.state, client.closed) == (State.ENDED, True)


@pytest.mark.parametrize("name", [*sorted(SAMPLES), b"WHAT"])
def test_only_identify_is_allowed_before_tls_if_tls_is_required(name: bytes) -> None:
    client = Client(NsqLimits(tls_required=True, tls_v1=True))
    session = client.session
    assert session.state is State.PLAIN
    if name in SESSION_TABLE[State.PLAIN]:
        client.send(TLS)
        assert client.session.state is State.INIT
    else:
        assert client.send(SAMPLES.get(name, name + b"\n")) == failed(
            b"E_INVALID cannot " + name + b" in current state (TLS required)"
        )
        assert client.closed


# The order of answers


def test_answers_come_in_the_order_of_the_commands() -> None:
    client = Client(late="publish")
    assert client.send(pub(b"t", b"1"), mpub(b"t", b"2"), pub(b"t", b"3")) == b""
    assert client.tell("publish", 1) == b""
    assert client.tell("publish", 1) == b""
    assert client.tell("publish", 0) == OK * 3


def test_replies_wait_for_the_replies_to_earlier_commands() -> None:
    client = Client(late="publish")
    client.send(SUB, pub(b"t", b"x"))
    assert client.send(b"FIN " + OTHER + b"\nCLS\n") == b""
    assert client.calls[-1] == ("leave",)
    assert client.tell("publish") == OK + FIN_FAILED + said("CLOSE_WAIT")


def test_messages_and_heartbeats_do_not_wait() -> None:
    client = Client(late="publish")
    client.send(SUB, pub(b"t", b"x"))
    client.session.on_messages(b"frames", 2)
    assert client.at(30_000) == BEAT
    assert bytes(client.out) == OK + b"frames" + BEAT
    assert client.session.consumption.messages == 2


def test_a_fatal_error_waits_for_the_replies_to_earlier_publishes() -> None:
    client = Client(late="publish")
    assert client.send(pub(b"t", b"1"), pub(b"t", b"2"), b"RDY 1\n", pub(b"t", b"3")) == b""
    assert not client.session.reading
    assert client.tell("publish", 1) == b""
    assert client.tell("publish") == OK * 2 + failed("E_INVALID cannot RDY in current state")
    assert client.closed
    assert len(client.calls) == 2


def test_a_failed_publish_is_the_last_answer() -> None:
    client = Client(late="publish")
    client.send(pub(b"t", b"1"), pub(b"t", b"2"), pub(b"t", b"3"))
    assert client.tell("publish", 1, "no room") == b""
    assert client.send(pub(b"t", b"4")) == b""
    assert client.tell("publish", 1) == b""
    assert client.tell("publish") == OK + failed("E_PUB_FAILED PUB failed no room")
    assert client.closed
    assert len(client.calls) == 3


def test_nothing_is_carried_out_behind_a_publish_that_failed_at_once() -> None:
    client = Client(late="publish")
    client.send(pub(b"t", b"1"))
    client.late, client.why["publish"] = [], "no room"
    assert client.send(pub(b"t", b"2"), pub(b"t", b"3")) == b""
    assert len(client.calls) == 2
    assert client.tell("publish") == OK + failed("E_PUB_FAILED PUB failed no room")


def test_a_publish_that_waits_for_its_permission_is_dropped_when_an_earlier_one_fails() -> None:
    client = Client(AUTH_LIMITS, late="publish")
    client.send(SECRET, pub(b"t", b"1"), pub(b"t", b"2"))
    client.late.append("permitted")
    client.send(pub(b"t", b"3"))
    client.tell("publish", 1, "no room")
    published = [call for call in client.calls if call[0] == "publish"]
    client.tell("permitted")
    assert [call for call in client.calls if call[0] == "publish"] == published
    assert client.tell("publish") == OK + failed("E_PUB_FAILED PUB failed no room")
    assert client.closed


def test_an_answer_that_comes_twice_or_too_late_changes_nothing() -> None:
    client = Client(late="publish")
    client.send(pub(b"t", b"1"), pub(b"t", b"2"))
    twice, late = client.waiting["publish"]
    twice("")
    twice("")
    assert bytes(client.out) == OK
    client.session.on_closed()
    late("")
    late("no room")
    client.session.on_refused("FIN", ID)
    client.session.on_eof()
    assert client.session.on_time(1 << 60) == NEVER
    assert (bytes(client.out), client.session.pending, client.closed) == (OK, 0, False)


@given(
    st.lists(st.sampled_from("pmdfc"), min_size=1, max_size=30), st.randoms(use_true_random=False)
)
def test_replies_are_in_the_order_of_their_commands_whatever_comes_first(
    commands: list[str], random: random.Random
) -> None:
    sent = {
        "p": SAMPLES[b"PUB"],
        "m": SAMPLES[b"MPUB"],
        "d": SAMPLES[b"DPUB"],
        "f": b"FIN " + OTHER + b"\n",
        "c": b"TOUCH " + OTHER + b"\n",
    }
    back = {
        "f": FIN_FAILED,
        "c": failed(b"E_TOUCH_FAILED TOUCH " + OTHER + b" failed ID not in flight"),
    }
    client = Client(late="publish")
    client.send(SUB)
    for command in commands:
        client.send(sent[command])
        if client.waiting.get("publish") and random.random() < 0.4:
            client.tell("publish", random.randrange(len(client.waiting["publish"])))
    while client.waiting.get("publish"):
        client.tell("publish", random.randrange(len(client.waiting["publish"])))
    assert bytes(client.out) == OK + b"".join(back.get(command, OK) for command in commands)
    assert client.session.pending == 0


# What waits


def test_no_command_after_a_sub_is_carried_out_before_its_reply() -> None:
    client = Client(late="subscribe")
    assert client.send(SUB, b"RDY 5\n", pub(b"t", b"x")) == b""
    assert client.calls == [("subscribe", "t", "c")]
    assert not client.session.reading
    assert client.send(b"NOP\n") == b""
    assert client.tell("subscribe") == OK + OK
    assert client.calls == [("subscribe", "t", "c"), ("ready", 5), ("publish", "t", [b"x"], 0)]
    assert client.session.reading


def test_a_subscription_that_is_refused_later() -> None:
    client = Client(late="subscribe")
    client.send(SUB, b"RDY 5\n")
    assert client.tell("subscribe", why="no") == failed("E_SUB_FAILED SUB failed no")
    assert (client.closed, client.calls) == (True, [("subscribe", "t", "c")])


def test_a_client_that_leaves_during_its_sub_gets_no_reply() -> None:
    client = Client(late="subscribe")
    client.send(SUB)
    client.session.on_closed()
    assert client.tell("subscribe") == b""
    assert client.session.state is State.ENDED


# Time


def timed(body: bytes = b"{}") -> Client:
    client = Client()
    client.send(b"IDENTIFY\n" + sized(body))
    client.out.clear()
    return client


def test_heartbeats_come_each_interval() -> None:
    client = timed(b'{"heartbeat_interval":5000}')
    assert client.session.on_time(0) == 1000 * MS  # the client may still ask for a shorter interval
    client.send(SUB)
    client.out.clear()
    assert client.session.on_time(4999 * MS) == 5000 * MS
    assert client.at(5000) == BEAT
    assert client.session.on_time(5000 * MS) == 10_000 * MS
    client.send(b"NOP\n", now_ms=5001)
    assert client.at(10_100) == BEAT
    # This is the time by which the client must have sent something.
    assert client.session.on_time(10_100 * MS) == 15_001 * MS
    client.send(b"NOP\n", now_ms=10_101)
    assert client.session.on_time(10_101 * MS) == 15_100 * MS


def test_before_identify_heartbeats_come_at_the_default_interval() -> None:
    client = Client()
    assert client.at(29_999) == b""
    assert client.at(30_000) == BEAT


def test_a_client_silent_for_two_intervals_is_disconnected() -> None:
    client = timed(b'{"heartbeat_interval":1000}')
    client.send(b"NOP\n", now_ms=500)
    client.send(b"PUB t\n\0\0\0\6unfin", now_ms=2000)
    client.out.clear()
    assert client.at(2499) == BEAT
    assert client.session.on_time(2500 * MS) == NEVER
    assert client.closed
    assert bytes(client.out) == BEAT


def test_a_client_that_waits_for_a_reply_does_not_count_as_silent() -> None:
    client = Client(late="publish subscribe")
    client.send(b'IDENTIFY\n\0\0\0\x1b{"heartbeat_interval":1000}', pub(b"t", b"x"))
    for now_ms in range(0, 20_000, 500):
        client.at(now_ms)
    client.tell("publish")
    client.send(SUB, now_ms=19_600)
    for now_ms in range(20_000, 40_000, 500):
        client.at(now_ms)
    assert not client.closed
    client.tell("subscribe")
    client.at(41_499)
    assert not client.closed
    client.at(41_500)
    assert client.closed


def test_a_client_that_is_not_read_from_does_not_count_as_silent() -> None:
    client = timed(b'{"heartbeat_interval":1000}')
    for now_ms in range(0, 20_000, 500):
        client.session.on_time(now_ms * MS, reading=False)
    client.at(21_499)
    assert not client.closed
    client.at(21_500)
    assert client.closed


def test_a_client_without_heartbeats_is_not_disconnected() -> None:
    client = timed(b'{"heartbeat_interval":-1}')
    assert client.at(10**9) == b""
    assert not client.closed


def test_a_magic_that_does_not_come() -> None:
    client = Client(magic=False)
    client.send(b"  V")
    assert client.at(59_999) == b""
    assert not client.closed
    assert client.at(60_000) == b""
    assert client.closed


# Bounds


def test_too_many_answers_stop_the_reading() -> None:
    client = Client(late="publish")
    client.send(pub(b"t", b"x") * PENDING_MAX)
    assert client.session.reading
    client.send(pub(b"t", b"x") * 50)
    assert (client.session.reading, client.session.pending) == (False, PENDING_MAX + 1)
    assert client.tell("publish") == OK
    # The session has taken the next command in its place.
    assert (client.session.reading, client.session.pending) == (
        False,
        PENDING_MAX + 1,
    )
    for _ in range(50):
        client.tell("publish")
    assert (client.session.reading, client.session.pending) == (True, PENDING_MAX - 1)
    while client.waiting["publish"]:
        client.tell("publish")
    assert bytes(client.out) == OK * (PENDING_MAX + 50)


def test_too_many_bytes_stop_the_reading() -> None:
    client = Client(late="publish")
    size = 1 << 20
    many = PENDING_BYTES_MAX // size
    client.send(pub(b"t", b"x" * size) * (many + 3))
    assert (client.session.reading, client.session.pending) == (False, many + 1)
    # This is not the answer to the oldest command. So nothing can be sent yet, but there is room
    # for more commands.
    client.tell("publish", 4)
    assert client.session.pending == many + 2
    for _ in range(many + 2):
        client.tell("publish")
    assert bytes(client.out) == OK * (many + 3)


def test_an_answer_that_comes_twice_makes_no_room() -> None:
    client = Client(late="publish")
    body = b"x" * (1 << 20)
    client.send(pub(b"t", body))
    twice = client.waiting["publish"].pop()
    for _ in range(5):
        twice("")
    client.send(pub(b"t", body) * 20)
    assert client.session.pending == PENDING_BYTES_MAX // len(body) + 1


def test_errors_behind_a_publish_are_bounded_too() -> None:
    client = Client(late="publish")
    client.send(SUB, pub(b"t", b"x"), (b"FIN " + OTHER + b"\nNOP\n") * 3000)
    assert client.session.pending == PENDING_MAX + 1
    assert client.tell("publish") == OK + FIN_FAILED * PENDING_MAX + FIN_FAILED * (
        3000 - PENDING_MAX
    )


def test_topics_are_counted_up_to_a_limit() -> None:
    client = Client()
    for i in range(TOPICS_COUNTED_MAX + 5):
        client.send(mpub(b"t%d" % i, b"a", b"b"))
    client.send(pub(b"t1", b"c"))
    assert len(client.session.published) == TOPICS_COUNTED_MAX
    assert client.session.published["t1"] == 3


def test_a_session_counts_finishes_and_requeues_that_succeed() -> None:
    client = Client()
    client.send(
        SUB,
        b"RDY 7\n",
        (b"FIN " + ID + b"\n") * 3,
        b"FIN " + OTHER + b"\n",
        b"REQ " + ID + b" 0\nREQ " + OTHER + b" 0\n",
    )
    assert client.session.consumption == Consumption("t", "c", 7, finishes=3, requeues=1)
    client.send(b"CLS\n")
    assert client.session.consumption.ready == 0


# When the client has closed its sending side


def test_commands_sent_before_the_end_are_carried_out_and_answered() -> None:
    client = Client(late="publish subscribe")
    client.send(SUB, pub(b"t", b"x"), b"PUB t\n\0\0\0\6unfin")
    client.session.on_eof()
    assert client.tell("subscribe") == OK
    assert not client.closed
    assert client.tell("publish") == OK + failed("E_BAD_MESSAGE PUB failed to read message body")
    assert client.closed


calls_at_the_end: list[Callable[[Client], object]] = [
    lambda client: client.session.on_eof(),
    lambda client: client.session.on_time(NEVER),
    lambda client: client.session.receive(b"WHAT\n", 0),
]


@pytest.mark.parametrize("call", calls_at_the_end)
def test_a_session_that_ended_closes_its_connection_once(call: Callable[[Client], object]) -> None:
    client = Client()
    call(client)
    assert client.closed
    for again in calls_at_the_end:
        again(client)  # the fake backend would refuse to be closed a second time
    assert client.session.state is State.ENDED
