"""Tests of one link with a clock that the test controls: what it does when nothing arrives, and
when too much arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq
from support.fake_connection import FakeEngine, QuietPeer
from support.router import make_router

from zsq.actors.supervisor import run_directory as rundir
from zsq.transport.client.link.course import BACKOFF_MS_MAX, HANG_UP_MS, HANG_UPS_MAX
from zsq.transport.client.link.engine import Engine
from zsq.transport.client.link.link import ATTEMPT_NS, BYE_LINGER_MS, RECEIVE_MAX, Link
from zsq.transport.client.link.link_table import LINK_TABLE, LinkAction, LinkEvent, LinkState
from zsq.transport.client.link.timeouts import FAR_NS, MS, S
from zsq.transport.client.link.wait_report import PROBED_NS, WaitReport
from zsq.transport.client.link.watch import ASK_NS, BUSY_NS, MOVED_BYTES_MIN
from zsq.transport.wire import sockets
from zsq.transport.wire.address import Address, Target, parse, read_run_id
from zsq.transport.wire.addresses import Rotation
from zsq.transport.wire.codec import encode
from zsq.transport.wire.handshake import HUNG_UP
from zsq.transport.wire.protocol import Beat, Bye, Done, Lookup, Open, Stored


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    engine.end()


def begun(engine: Engine, address: Address, target: Target) -> Link:
    """Start a link. All links of an engine with the same address share its rotation."""
    rotation = next((link.rotation for link in engine.links), Rotation(address))
    link = Link(engine, rotation, target, QuietPeer())
    engine.add(link)
    link.start(0)
    return link


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_an_attempt_without_an_answer_ends_and_another_one_follows(
    kind: str, tmp_path: Path
) -> None:
    """A peer that accepts the connection and never answers may have forgotten it. ZeroMQ would wait
    for ever.
    """
    engine = Engine()
    silent = make_router(f"ipc://{tmp_path}/supervisor" if kind == "ipc" else "tcp://127.0.0.1:*")
    try:
        url = f"ipc://{tmp_path}" if kind == "ipc" else silent.getsockopt_string(zmq.LAST_ENDPOINT)
        link = begun(engine, parse(url), Target("topic", "t"))
        asking = LinkState.LOOKING if kind == "ipc" else LinkState.OPENING
        assert link.state is asking
        assert link.on_time(ATTEMPT_NS - 1) == ATTEMPT_NS
        assert link.state is asking
        again_ns = link.on_time(ATTEMPT_NS)
        assert (link.state, link.trouble.startswith("no answer within 10 s: ")) == (
            LinkState.WAITING,
            True,
        )
        assert again_ns <= ATTEMPT_NS + BACKOFF_MS_MAX * MS
        link.on_time(again_ns)
        assert link.state is asking
    finally:
        engine.stop()
        engine.events.close()
        silent.close(linger=0)


def test_one_turn_reads_a_bounded_number_of_messages(engine: FakeEngine, tmp_path: Path) -> None:
    """Each turn reads a limited number of messages, and the others are due at once."""
    link = begun(engine, parse(f"ipc://{tmp_path}"), Target("supervisor"))
    assert link.up
    engine.of(link).arrived.extend([Beat()] * (3 * RECEIVE_MAX))
    engine.due_ns = FAR_NS
    assert [link.receive(1) for _ in range(4)] == [RECEIVE_MAX, RECEIVE_MAX, RECEIVE_MAX, 0]
    assert engine.due_ns == 0


def test_a_goodbye_costs_no_pause_but_of_who_says_nothing_else(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """A peer that ends in an orderly way is soon back. But a peer that sends Bye directly after the
    link was opened would otherwise be contacted without end.
    """
    link = begun(engine, parse(f"ipc://{tmp_path}"), Target("supervisor"))
    engine.hear(link, 1 * MS, Bye())
    link.on_time(1 * MS)
    assert link.state is LinkState.WAITING
    again_ns = link.on_time(2 * MS)
    link.on_time(again_ns)
    assert link.up
    later_ns = again_ns + (BACKOFF_MS_MAX + 1) * MS
    engine.hear(link, later_ns, Bye())
    assert link.state is LinkState.WAITING
    link.on_time(later_ns)
    assert link.up


def test_an_answer_to_another_request_does_not_open_the_link(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """Only the answer to the present attempt says where the target is now."""
    link = begun(engine, parse(f"ipc://{tmp_path}"), Target("topic", "t"))
    request = engine.request_of(link)
    engine.hear(link, 1, Done(request - 1, {"topic": f"ipc://{tmp_path}/1", "uuid": "old"}))
    assert (link.state, link.opened) == (LinkState.LOOKING, {})
    engine.hear(link, 1, Done(request, {"topic": f"ipc://{tmp_path}/2", "uuid": "new"}))
    assert (link.up, link.opened["uuid"]) == (True, "new")
    assert engine.of(link).endpoint == f"ipc://{tmp_path}/2"


def test_a_link_that_ends_before_it_is_up_sends_nothing_more(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """A request to make a channel would otherwise arrive after its client was closed."""
    link = begun(engine, parse(f"ipc://{tmp_path}"), Target("channel", "t", "c"))
    assert link.state is LinkState.LOOKING
    link.stop(BYE_LINGER_MS)
    (connection,) = engine.connections
    assert connection.linger_ms == 0
    assert [type(word) for word in connection.sent] == [Lookup]


def opened_at(run_dir: str) -> dict[str, str]:
    """Return the answer of a gateway that names its run directory."""
    return {"uuid": "u", "run": run_dir, "run_id": read_run_id(run_dir)}


def goes_direct(engine: FakeEngine, link: Link, run_dir: str, now_ns: int = 1) -> None:
    engine.hear(link, now_ns, Done(engine.request_of(link), opened_at(run_dir)))


def test_a_link_that_goes_direct_says_goodbye_to_the_gateway(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = rundir.make(tmp_path)
    monkeypatch.setenv("ZSQ_TRANSPORT", "auto")
    link = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "t"))
    goes_direct(engine, link, run_dir)
    gateway, supervisor = engine.connections
    assert [type(word) for word in gateway.sent] == [Open, Bye]
    assert gateway.linger_ms == BYE_LINGER_MS, "the goodbye is still sent"
    assert [type(word) for word in supervisor.sent] == [Lookup]
    assert (link.state, link.address.url) == (LinkState.LOOKING, f"ipc://{run_dir}")


def test_a_run_directory_over_which_nothing_answers_is_tried_once(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were tried again, the link would alternate between the gateway and the run directory
    without end.
    """
    run_dir = rundir.make(tmp_path)
    monkeypatch.setenv("ZSQ_TRANSPORT", "auto")
    link = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "t"))
    goes_direct(engine, link, run_dir)
    again_ns = link.on_time(ATTEMPT_NS + 1)
    link.on_time(again_ns)
    assert (link.state, link.address.url) == (LinkState.OPENING, "tcp://127.0.0.1:1")
    goes_direct(engine, link, run_dir, again_ns)
    assert (link.up, link.address.url) == (True, "tcp://127.0.0.1:1")


def test_links_of_one_client_go_direct_without_the_gateway_after_the_first(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = rundir.make(tmp_path)
    monkeypatch.setenv("ZSQ_TRANSPORT", "auto")
    first = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "t"))
    goes_direct(engine, first, run_dir)
    second = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "u"))
    assert (second.state, second.address.url) == (LinkState.LOOKING, f"ipc://{run_dir}")
    rundir.make(tmp_path)  # the broker was started again
    third = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "v"))
    assert (third.state, third.address.url) == (LinkState.OPENING, "tcp://127.0.0.1:1")


def test_the_answer_of_a_probed_port_is_looked_for_soon(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = SimpleNamespace(answer=None)
    monkeypatch.setattr(sockets, "Probe", lambda *_: probe)
    link = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "t"))
    report, now_ns = WaitReport(engine), engine.patience_ns + 1
    assert report.on_time(now_ns, [link]) == now_ns + PROBED_NS
    probe.answer = b""
    assert report.on_time(now_ns, [link]) == 10 * S


def test_a_link_that_is_hung_up_on_tries_again_soon_a_few_times_only(engine: FakeEngine) -> None:
    """A busy broker closes connections too, but a broker that refuses clients without keys always
    does.
    """
    link, now_ns = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "t")), 1
    for _ in range(HANG_UPS_MAX):
        engine.report(link, now_ns, HUNG_UP)
        assert link.again_ns == now_ns + HANG_UP_MS * MS
        now_ns = link.again_ns
        link.on_time(now_ns)
    engine.report(link, now_ns, HUNG_UP)
    assert link.again_ns != now_ns + HANG_UP_MS * MS


# The watch of a link that is up


def greeted(engine: FakeEngine, heartbeat_ms: int = 0) -> Link:
    """Return a link that is up over tcp since 1 s, and expects an answer."""
    link = begun(engine, parse("tcp://10.0.0.1:1"), Target("topic", "t"))
    link.heartbeat_ms, link.expects = heartbeat_ms, lambda: True
    engine.hear(link, 1 * S, Done(engine.request_of(link), {}))
    assert link.up
    return link


def beats(engine: FakeEngine, link: Link) -> int:
    return sum(isinstance(word, Beat) for word in engine.of(link).sent)


def test_a_late_answer_is_asked_for_and_a_busy_broker_is_known_by_its_heartbeats(
    engine: FakeEngine,
) -> None:
    link = greeted(engine)
    link.send([b"", encode(Beat())], 1 * S)  # anything that has no answer
    assert link.on_time(1 * S) == 1 * S + ASK_NS
    link.on_time(1 * S + ASK_NS)
    assert beats(engine, link) == 2
    assert link.late_since(2 * S) == FAR_NS
    assert link.why() == "no answer yet"
    engine.hear(link, 1 * S + ASK_NS + 1, Beat())
    assert "it answers heartbeats" in link.why()
    assert link.late_since(1 * S + BUSY_NS) == 1 * S
    engine.hear(link, 12 * S, Stored(((0, 0),)))
    link.expects = lambda: False
    link.on_time(12 * S)
    assert (link.why(), link.late_since(60 * S)) == ("", FAR_NS)


def test_a_link_looks_for_an_answer_only_if_one_is_due(engine: FakeEngine) -> None:
    """Hundreds of consumers that confirm nothing would else wake half a second after each send."""
    link = greeted(engine)
    link.expects = lambda: False
    engine.due_ns = FAR_NS
    link.send([b"", encode(Beat())], 2 * S)
    assert engine.due_ns == FAR_NS
    link.beat(3 * S)
    assert engine.due_ns == 3 * S + ASK_NS, "a heartbeat is always answered"
    engine.due_ns = FAR_NS
    link.expects = lambda: True
    link.send([b"", encode(Beat())], 4 * S)
    assert engine.due_ns == 4 * S + ASK_NS


def test_heartbeats_are_counted_from_the_greeting_of_a_link_that_sends_nothing_more(
    engine: FakeEngine,
) -> None:
    """What waits for an answer may wait for credit, so nothing follows the greeting. A connection
    that is dead then is found out as soon as any other one, and the peer is not kept waiting.
    """
    link = Link(engine, Rotation(parse("tcp://10.0.0.1:1")), Target("topic", "t"), QuietPeer())
    engine.add(link)
    link.start(1 * S)
    engine.hear(link, 2 * S, Done(engine.request_of(link), {}))
    link.expects = lambda: True
    assert link.on_time(2 * S) == 2 * S + ASK_NS
    link.heartbeat_ms, link.expects = 1_600, lambda: False
    assert link.on_time(2 * S) == 1 * S + 1_600 * MS


def test_a_link_on_which_no_byte_moves_is_silent_and_a_large_frame_is_a_sign_of_life(
    engine: FakeEngine,
) -> None:
    link = greeted(engine)
    engine.of(link).moved = 1
    link.send([b"", encode(Beat())], 1 * S)
    link.on_time(1 * S)
    link.on_time(1 * S + ASK_NS)
    assert link.silent_since(1 * S + 2 * ASK_NS) == 0
    link.on_time(1 * S + 2 * ASK_NS)
    assert link.is_silent
    assert link.silent_since(1 * S + 2 * ASK_NS) == 1 * S + ASK_NS
    engine.of(link).moved = 1 + MOVED_BYTES_MIN
    assert link.silent_since(1 * S + 2 * ASK_NS) == 0
    assert not link.is_silent
    assert link.heard_ns == 1 * S + 2 * ASK_NS, "a request that follows does not open it again"


def test_two_heartbeats_without_a_sign_of_life_end_the_link(engine: FakeEngine) -> None:
    link = greeted(engine, heartbeat_ms=1_000)
    link.expects = lambda: False
    assert link.on_time(1 * S) == 2 * S
    assert beats(engine, link) == 1, "the last message was sent an interval ago"
    link.on_time(2 * S)
    assert beats(engine, link) == 2
    engine.of(link).moved = MOVED_BYTES_MIN
    link.on_time(3 * S + 1)
    assert link.up, "a large frame moves"
    link.on_time(5 * S + 2)
    assert link.waiting
    assert link.trouble == "nothing arrived for 2000 ms, two heartbeats"


def test_frames_that_the_pipe_does_not_take_are_offered_again(engine: FakeEngine) -> None:
    link = greeted(engine)
    engine.of(link).is_full = True
    engine.due_ns = FAR_NS
    link.send([b"", encode(Beat())], 1 * S)
    assert engine.due_ns <= 1 * S + 10 * MS


# The table


def test_each_state_can_end_and_each_action_is_used() -> None:
    assert set(LINK_TABLE) == set(LinkState)
    for state, row in LINK_TABLE.items():
        assert {LinkEvent.DIED, LinkEvent.REFUSE, LinkEvent.STOP} <= row.keys()
        tells = [LinkAction.TELL_LOST in row[LinkEvent.DIED].actions]
        assert tells == [state in (LinkState.GREETING, LinkState.UP)]
    used = {action for row in LINK_TABLE.values() for to in row.values() for action in to.actions}
    assert used == set(LinkAction)
