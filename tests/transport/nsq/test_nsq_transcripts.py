"""Tests with transcripts of raw bytes: what an NSQ client sends, and exactly what nsqd 1.3 answers.
They cover each command and each error, and whether the connection stays open.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from support.nsq_client import ID, OK, OTHER, Client, failed, mpub, pub, said, sized

from zsq.transport.nsq.commands import Fins
from zsq.transport.nsq.limits import NsqLimits
from zsq.transport.nsq.parser import Parser
from zsq.transport.nsq.session import State

SMALL = NsqLimits(max_msg_size=100, max_body_size=200, max_rdy_count=50, max_req_timeout_ms=5000)
SUB = b"SUB t c\n"
BIG = struct.pack(">i", 101)
HUGE = struct.pack(">i", 201)
NOTHING = struct.pack(">i", 0)
BELOW = struct.pack(">i", -7)

# Name, what is sent, what is answered, and the calls of the backend.
GOOD: list[tuple[str, bytes, bytes, list[tuple[Any, ...]]]] = [
    ("NOP", b"NOP\n", b"", []),
    ("NOP with carriage return", b"NOP\r\n", b"", []),
    ("NOP with more", b"NOP x y\n", b"", []),
    ("IDENTIFY", b"IDENTIFY\n" + sized(b"{}"), OK, []),
    ("IDENTIFY twice", (b"IDENTIFY\n" + sized(b"{}")) * 2, OK + OK, []),
    ("PUB", pub(b"t", b"body"), OK, [("publish", "t", [b"body"], 0)]),
    ("PUB of all bytes", pub(b"t.-_9#ephemeral", bytes(range(100))), OK, [("publish", "t.-_9#ephemeral", [bytes(range(100))], 0)]),
    ("PUB of the largest", pub(b"t" * 64, b"x" * 100), OK, [("publish", "t" * 64, [b"x" * 100], 0)]),
    ("PUB PUB", pub(b"t", b"a") + pub(b"u", b"b"), OK + OK, [("publish", "t", [b"a"], 0), ("publish", "u", [b"b"], 0)]),
    ("MPUB", mpub(b"t", b"a", b"bc"), OK, [("publish", "t", [b"a", b"bc"], 0)]),
    ("MPUB of equal ones", mpub(b"t", b"a", b"b"), OK, [("publish", "t", [b"a", b"b"], 0)]),
    ("MPUB of one", mpub(b"t", b"a"), OK, [("publish", "t", [b"a"], 0)]),
    ("MPUB too short by its size", mpub(b"t", b"a", b"bc", size=3) + pub(b"t", b"z"), OK + OK,
     [("publish", "t", [b"a", b"bc"], 0), ("publish", "t", [b"z"], 0)]),
    ("MPUB too long by its size", mpub(b"t", b"a", b"bc", size=99), OK, [("publish", "t", [b"a", b"bc"], 0)]),
    ("DPUB", b"DPUB t 5000\n" + sized(b"b"), OK, [("publish", "t", [b"b"], 5000)]),
    ("DPUB at once", b"DPUB t 0\n" + sized(b"b"), OK, [("publish", "t", [b"b"], 0)]),
    ("DPUB of no digits", b"DPUB t \n" + sized(b"b"), OK, [("publish", "t", [b"b"], 0)]),
    ("SUB", SUB, OK, [("subscribe", "t", "c")]),
    ("SUB with more", b"SUB t c#ephemeral x\n", OK, [("subscribe", "t", "c#ephemeral")]),
    ("RDY", SUB + b"RDY 50\n", OK, [("subscribe", "t", "c"), ("ready", 50)]),
    ("RDY of none", SUB + b"RDY 0\n", OK, [("subscribe", "t", "c"), ("ready", 0)]),
    ("RDY without a number", SUB + b"RDY\n", OK, [("subscribe", "t", "c"), ("ready", 1)]),
    ("RDY of no digits", SUB + b"RDY \n", OK, [("subscribe", "t", "c"), ("ready", 0)]),
    ("RDY with zeros before", SUB + b"RDY " + b"0" * 30 + b"7\n", OK, [("subscribe", "t", "c"), ("ready", 7)]),
    ("FIN", SUB + b"FIN " + ID + b"\n", OK, [("subscribe", "t", "c"), ("finish", [ID])]),
    ("FIN with more", SUB + b"FIN " + ID + b" x\n", OK, [("subscribe", "t", "c"), ("finish", [ID])]),
    ("FINs", SUB + (b"FIN " + ID + b"\n") * 3, OK, [("subscribe", "t", "c"), ("finish", [ID, ID, ID])]),
    ("FINs with carriage return", SUB + (b"FIN " + ID + b"\r\n") * 2, OK,
     [("subscribe", "t", "c"), ("finish", [ID]), ("finish", [ID])]),
    ("REQ", SUB + b"REQ " + ID + b" 1500\n", OK, [("subscribe", "t", "c"), ("requeue", ID, 1500)]),
    ("REQ for too long", SUB + b"REQ " + ID + b" 99999999999999999999999\n", OK, [("subscribe", "t", "c"), ("requeue", ID, 5000)]),
    ("TOUCH", SUB + b"TOUCH " + ID + b"\n", OK, [("subscribe", "t", "c"), ("touch", ID)]),
    ("CLS", SUB + b"CLS\n", OK + said("CLOSE_WAIT"), [("subscribe", "t", "c"), ("leave",)]),
    ("answers after CLS", SUB + b"CLS\nRDY 5\nFIN " + ID + b"\nTOUCH " + ID + b"\nREQ " + ID + b" 0\n" + pub(b"t", b"x"),
     OK + said("CLOSE_WAIT") + OK,
     [("subscribe", "t", "c"), ("leave",), ("finish", [ID]), ("touch", ID), ("requeue", ID, 0), ("publish", "t", [b"x"], 0)]),
    ("a consumer publishes", SUB + pub(b"t", b"x"), OK + OK, [("subscribe", "t", "c"), ("publish", "t", [b"x"], 0)]),
    ("FIN of another's", SUB + b"FIN " + OTHER + b"\n", OK + failed(b"E_FIN_FAILED FIN " + OTHER + b" failed ID not in flight"),
     [("subscribe", "t", "c"), ("finish", [OTHER])]),
    ("FIN of two others and one", SUB + b"".join(b"FIN " + id + b"\n" for id in (OTHER, ID, b"\xff" * 16)),
     OK + failed(b"E_FIN_FAILED FIN " + OTHER + b" failed ID not in flight")
     + failed(b"E_FIN_FAILED FIN " + b"\xff" * 16 + b" failed ID not in flight"),
     [("subscribe", "t", "c"), ("finish", [OTHER, ID, b"\xff" * 16])]),
    ("REQ of another's", SUB + b"REQ " + OTHER + b" 0\n", OK + failed(b"E_REQ_FAILED REQ " + OTHER + b" failed ID not in flight"),
     [("subscribe", "t", "c"), ("requeue", OTHER, 0)]),
    ("TOUCH of another's", SUB + b"TOUCH " + OTHER + b"\n", OK + failed(b"E_TOUCH_FAILED TOUCH " + OTHER + b" failed ID not in flight"),
     [("subscribe", "t", "c"), ("touch", OTHER)]),
]  # fmt: skip

# Commands that end the connection: the state, what is sent, and the error that is answered before
# the end, or "" for none.
N, S, C = State.INIT, State.SUBSCRIBED, State.CLOSING
BEFORE = {N: b"", S: SUB, C: SUB + b"CLS\n"}
FATAL: list[tuple[State, bytes, bytes | str]] = [
    (N, b"\n", "E_INVALID invalid command "),
    (N, b"HELLO world\n", "E_INVALID invalid command HELLO"),
    (N, b"nop\n", "E_INVALID invalid command nop"),
    (N, b" NOP\n", "E_INVALID invalid command "),
    (N, b"\xff\x00\n", b"E_INVALID invalid command \xff\x00"),
    (N, b"x" * 16383 + b"\n", b"E_INVALID invalid command " + b"x" * 16383),
    (N, b"x" * 16384, ""),
    (N, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "E_INVALID invalid command GET"),
    # Not allowed in this state
    (S, b"IDENTIFY\n", "E_INVALID cannot IDENTIFY in current state"),
    (S, b"AUTH\n", "E_INVALID cannot AUTH in current state"),
    (S, SUB, "E_INVALID cannot SUB in current state"),
    (N, b"RDY 1\n", "E_INVALID cannot RDY in current state"),
    (N, b"FIN\n", "E_INVALID cannot FIN in current state"),
    (N, b"REQ\n", "E_INVALID cannot REQ in current state"),
    (N, b"TOUCH\n", "E_INVALID cannot TOUCH in current state"),
    (N, b"CLS\n", "E_INVALID cannot CLS in current state"),
    (C, b"CLS\n", "E_INVALID cannot CLS in current state"),
    (C, b"SUB t c\n", "E_INVALID cannot SUB in current state"),
    # Too few parameters
    (N, b"SUB t\n", "E_INVALID SUB insufficient number of parameters"),
    (N, b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
    (N, b"MPUB\n", "E_INVALID MPUB insufficient number of parameters"),
    (N, b"DPUB t\n", "E_INVALID DPUB insufficient number of parameters"),
    (S, b"FIN\n", "E_INVALID FIN insufficient number of params"),
    (S, b"REQ " + ID + b"\n", "E_INVALID REQ insufficient number of params"),
    (S, b"TOUCH\n", "E_INVALID TOUCH insufficient number of params"),
    (N, b"AUTH secret\n", "E_INVALID AUTH invalid number of parameters"),
    # Names
    (N, b"SUB  t\n", 'E_BAD_TOPIC SUB topic name "" is not valid'),
    (N, b"SUB t! c\n", 'E_BAD_TOPIC SUB topic name "t!" is not valid'),
    (N, b"SUB t \x00\n", 'E_BAD_CHANNEL SUB channel name "\\x00" is not valid'),
    (N, b"SUB t " + b"c" * 65 + b"\n", f'E_BAD_CHANNEL SUB channel name "{"c" * 65}" is not valid'),
    (N, b"PUB \n", 'E_BAD_TOPIC PUB topic name "" is not valid'),
    (N, b"PUB \xc3\xa9\xff\"\\\n", 'E_BAD_TOPIC PUB topic name "é\\xff\\"\\\\" is not valid'),
    (N, b"PUB ..\n", 'E_BAD_TOPIC PUB topic name ".." is not valid'),
    (N, b"PUB t#ephemera\n", 'E_BAD_TOPIC PUB topic name "t#ephemera" is not valid'),
    (N, b"MPUB t?\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t?" is not valid'),
    (N, b"DPUB t? 1\n", 'E_BAD_TOPIC DPUB topic name "t?" is not valid'),
    # Numbers
    (S, b"RDY 51\n", "E_INVALID RDY count 51 out of range 0-50"),
    (S, b"RDY -1\n", "E_INVALID RDY could not parse count -1"),
    (S, b"RDY 1_0\n", "E_INVALID RDY could not parse count 1_0"),
    (S, b"RDY " + b"9" * 5000 + b"\n", "E_INVALID RDY count 9223372036854775807 out of range 0-50"),
    (S, b"REQ " + ID + b" soon\n", "E_INVALID REQ could not parse timeout soon"),
    (S, b"REQ " + ID + b" -1\n", "E_INVALID REQ could not parse timeout -1"),
    (N, b"DPUB t 5001\n", "E_INVALID DPUB timeout 5001 out of range 0-5000"),
    (N, b"DPUB t 1.5\n", "E_INVALID DPUB could not parse timeout 1.5"),
    (S, b"FIN short\n", "E_INVALID invalid message ID"),
    (S, b"FIN  " + ID[:15] + b"\n", "E_INVALID invalid message ID"),
    (S, b"FIN " + ID + b"7\n", "E_INVALID invalid message ID"),
    (S, b"REQ x 0\n", "E_INVALID invalid message ID"),
    (S, b"TOUCH " + ID[1:] + b"\n", "E_INVALID invalid message ID"),
    # Sizes
    (N, b"IDENTIFY\n" + HUGE, "E_BAD_BODY IDENTIFY body too big 201 > 200"),
    (N, b"IDENTIFY\n" + NOTHING, "E_BAD_BODY IDENTIFY invalid body size 0"),
    (N, b"IDENTIFY\n" + BELOW, "E_BAD_BODY IDENTIFY invalid body size -7"),
    (N, b"AUTH\n" + HUGE, "E_BAD_BODY AUTH body too big 201 > 200"),
    (N, b"AUTH\n" + NOTHING, "E_BAD_BODY AUTH invalid body size 0"),
    (N, b"PUB t\n" + NOTHING, "E_BAD_MESSAGE PUB invalid message body size 0"),
    (N, b"PUB t\n" + BELOW, "E_BAD_MESSAGE PUB invalid message body size -7"),
    (N, b"PUB t\n" + BIG, "E_BAD_MESSAGE PUB message too big 101 > 100"),
    (N, pub(b"t", b"x" * 101), "E_BAD_MESSAGE PUB message too big 101 > 100"),
    (N, b"DPUB t 1\n" + NOTHING, "E_BAD_MESSAGE DPUB invalid message body size 0"),
    (N, b"DPUB t 1\n" + BIG, "E_BAD_MESSAGE DPUB message too big 101 > 100"),
    (N, b"MPUB t\n" + NOTHING, "E_BAD_BODY MPUB invalid body size 0"),
    (N, b"MPUB t\n" + HUGE, "E_BAD_BODY MPUB body too big 201 > 200"),
    (N, b"MPUB t\n" + sized(NOTHING), "E_BAD_BODY MPUB invalid message count 0"),
    (N, b"MPUB t\n" + sized(BELOW), "E_BAD_BODY MPUB invalid message count -7"),
    (N, b"MPUB t\n" + sized(struct.pack(">i", 40)), "E_BAD_BODY MPUB invalid message count 40"),
    (N, mpub(b"t", b"a", b""), "E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
    (N, mpub(b"t", b"", b""), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
    (N, mpub(b"t", b"a", b"x" * 101, size=50), "E_BAD_MESSAGE MPUB message too big 101 > 100"),
    (N, mpub(b"t", b"x" * 101, b"x" * 101, size=50), "E_BAD_MESSAGE MPUB message too big 101 > 100"),
    (N, mpub(b"t", b"x" * 96, b"x" * 98, size=50), "E_BAD_BODY MPUB body too big 206 > 200"),
    (N, mpub(b"t", b"x" * 96, b"x" * 96, size=50), "E_BAD_BODY MPUB body too big 204 > 200"),
    (N, b"AUTH\n" + sized(b"secret"), "E_AUTH_DISABLED AUTH disabled"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "back", "calls"), [row[1:] for row in GOOD], ids=[row[0] for row in GOOD]
)
@pytest.mark.parametrize("piece", [1 << 20, 1, 7])
def test_each_good_transcript_is_answered_and_leaves_the_connection_open(
    sent: bytes, back: bytes, calls: list[tuple[Any, ...]], piece: int
) -> None:
    client = Client(SMALL)
    for at in range(0, len(sent), piece):
        client.send(sent[at : at + piece])
    assert bytes(client.out) == back
    assert joined(client.calls) == joined(calls)
    assert not client.closed
    assert client.session.reading


def joined(calls: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Join consecutive finishes into one. Their number depends on how the bytes were cut."""
    found: list[tuple[Any, ...]] = []
    for call in calls:
        if call[0] == "finish" and found and found[-1][0] == "finish":
            found[-1] = ("finish", found[-1][1] + call[1])
        else:
            found.append(call)
    return found


@pytest.mark.parametrize(("state", "sent", "text"), FATAL, ids=[repr(row[1][:60]) for row in FATAL])
@pytest.mark.parametrize("piece", [1 << 20, 1])
def test_each_fatal_command_is_answered_and_ends_the_connection(
    state: State, sent: bytes, text: bytes | str, piece: int
) -> None:
    client = Client(SMALL)
    client.send(BEFORE[state])
    assert client.session.state is state
    client.out.clear()
    for at in range(0, len(sent), piece):
        client.send(sent[at : at + piece])
    assert bytes(client.out) == (failed(text) if text else b"")
    assert client.closed
    assert client.send(b"NOP\n" + pub(b"t", b"x")) == b""
    assert not [call for call in client.calls if call[0] == "publish"]
    assert not client.session.reading


def test_a_client_without_heartbeats_cannot_subscribe() -> None:
    client = Client(SMALL)
    assert client.send(b"IDENTIFY\n" + sized(b'{"heartbeat_interval":-1}')) == OK
    assert client.send(b"SUB\n") == failed("E_INVALID cannot SUB with heartbeats disabled")
    assert client.closed


# Commands that a client leaves unfinished when it closes its sending side.
CUT: list[tuple[bytes, str]] = [
    (b"", ""),
    (b"NOP\n", ""),
    (b"PUB t", ""),
    (b"PUB t\n", "E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n\0\0\0", "E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n\0\0\0\2x", "E_BAD_MESSAGE PUB failed to read message body"),
    (b"DPUB t 1\n\0\0\0", "E_BAD_MESSAGE DPUB failed to read message body size"),
    (b"DPUB t 1\n\0\0\0\2x", "E_BAD_MESSAGE DPUB failed to read message body"),
    (b"IDENTIFY\n\0", "E_BAD_BODY IDENTIFY failed to read body size"),
    (b"IDENTIFY\n\0\0\0\2{", "E_BAD_BODY IDENTIFY failed to read body"),
    (b"AUTH\n", "E_BAD_BODY AUTH failed to read body size"),
    (b"AUTH\n\0\0\0\2{", "E_BAD_BODY AUTH failed to read body"),
    (b"MPUB t\n\0", "E_BAD_BODY MPUB failed to read body size"),
    (b"MPUB t\n\0\0\0\x64\0", "E_BAD_BODY MPUB failed to read message count"),
    (mpub(b"t", b"abc", b"d")[:-5], "E_BAD_MESSAGE MPUB failed to read message(1) body size"),
    (mpub(b"t", b"abc", b"d")[:-2], "E_BAD_MESSAGE MPUB failed to read message(1) body size"),
    (mpub(b"t", b"abc", b"d")[:-1], "E_BAD_MESSAGE MPUB failed to read message body"),
    (mpub(b"t", b"abc", b"d")[:-6], "E_BAD_MESSAGE MPUB failed to read message body"),
]


@pytest.mark.parametrize(("sent", "text"), CUT, ids=[repr(row[0]) for row in CUT])
def test_the_end_of_what_a_client_sends(sent: bytes, text: str) -> None:
    client = Client(SMALL)
    client.send(sent)
    client.session.on_eof()
    assert bytes(client.out) == (failed(text) if text else b"")
    assert client.closed


@pytest.mark.parametrize("magic", [b"  V1", b"GET ", b"\0\0\0\0", b"  v2"])
def test_another_protocol_is_refused(magic: bytes) -> None:
    client = Client(SMALL, magic=False)
    assert client.send(magic[:3]) == b""
    assert client.send(magic[3:] + b"NOP\n") == failed("E_BAD_PROTOCOL")
    assert client.closed


def test_commands_may_come_with_the_magic() -> None:
    client = Client(SMALL, magic=False)
    assert client.send(b" ") + client.send(b" V2" + pub(b"t", b"x")) == OK


def test_a_client_that_leaves_within_the_magic_is_closed_silently() -> None:
    client = Client(SMALL, magic=False)
    client.send(b"  V")
    client.session.on_eof()
    assert (bytes(client.out), client.closed) == (b"", True)


@pytest.mark.parametrize(
    ("sent", "back"),
    [
        (pub(b"t", b"x"), "E_PUB_FAILED PUB failed topic is full"),
        (mpub(b"t", b"x"), "E_MPUB_FAILED MPUB failed topic is full"),
        (b"DPUB t 1\n" + sized(b"x"), "E_DPUB_FAILED DPUB failed topic is full"),
    ],
)
def test_a_failed_publish_is_answered_and_ends_the_connection(sent: bytes, back: str) -> None:
    client = Client(SMALL)
    client.why["publish"] = "topic is full"
    assert client.send(sent, pub(b"t", b"behind")) == failed(back)
    assert client.closed
    assert len(client.calls) == 1


def test_a_failed_subscription_is_answered_and_ends_the_connection() -> None:
    client = Client(SMALL)
    client.why["subscribe"] = "consumers for t:c exceeds limit of 1"
    assert client.send(SUB) == failed(
        "E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1"
    )
    assert client.closed


def test_a_command_refused_later_is_answered_and_the_connection_lives() -> None:
    client = Client(SMALL)
    client.send(SUB)
    for what in ("FIN", "REQ", "TOUCH"):
        client.session.on_refused(what, ID)
    texts = [
        f"E_{what}_FAILED {what} {ID.decode()} failed ID not in flight"
        for what in ("FIN", "REQ", "TOUCH")
    ]
    assert bytes(client.out) == OK + b"".join(map(failed, texts))
    assert not client.closed


def test_a_run_of_fins_is_one_command_up_to_what_is_not_one() -> None:
    fin = b"FIN " + ID + b"\n"
    commands = list(
        Parser(SMALL).feed(
            fin * 100 + b"RDY 1\n" + fin * 3 + b"FIN " + ID + b" x\n" + fin + b"FIN "
        )
    )
    assert [len(command.ids) if isinstance(command, Fins) else 0 for command in commands] == [
        100,
        0,
        3,
        1,
        1,
    ]
