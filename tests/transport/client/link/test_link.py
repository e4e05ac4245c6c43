"""Tests of one link with a clock that the test controls: what it does when nothing arrives, and
when too much arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from zsq.actors.supervisor import run_directory as rundir
from zsq.transport.client.link import link as link_module
from zsq.transport.client.link.link import (
    ATTEMPT_NS,
    BACKOFF_MS_MAX,
    FAR_NS,
    HANG_UP_MS,
    HANG_UPS_MAX,
    MS,
    PROBED_NS,
    RECEIVE_MAX,
    Engine,
    Link,
)
from zsq.transport.client.link.link_table import LinkState
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.errors import ZsqError
from zsq.transport.wire import sockets
from zsq.transport.wire.address import Address, Target, parse, read_run_id
from zsq.transport.wire.addresses import Rotation
from zsq.transport.wire.codec import decode, encode
from zsq.transport.wire.protocol import Beat, Bye, Done, Lookup, Wire


class _Quiet:
    """A peer that sends nothing on its own."""

    def greeting(self) -> Wire | None:
        return None

    def on_word(self, *_: object) -> Reaction:
        return Reaction.NOTHING

    def on_up(self, now_ns: int) -> None: ...

    def on_received(self, now_ns: int) -> None: ...

    def on_lost(self) -> None: ...

    def on_refused(self, error: ZsqError) -> None: ...


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.stop()
    made.events.close()


def begun(engine: Engine, address: Address, target: Target) -> Link:
    """Start a link. All links of an engine with the same address share its rotation."""
    rotation = next((one.rotation for one in engine.links), Rotation(address))
    made = Link(engine, rotation, target, _Quiet())
    engine.add(made)
    made.start(0)
    return made


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_an_attempt_without_an_answer_ends_and_another_one_follows(
    kind: str, engine: Engine, tmp_path: Path
) -> None:
    """A peer that accepts the connection and never answers may have forgotten it. ZeroMQ would wait
    for ever.
    """
    silent = sockets.make_router(
        f"ipc://{tmp_path}/supervisor" if kind == "ipc" else "tcp://127.0.0.1:*"
    )
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
        silent.close(linger=0)


def test_one_turn_reads_a_bounded_number_of_messages(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn reads a limited number of messages, and the others are due at once."""
    link = begun(engine, parse(f"ipc://{tmp_path}"), Target("supervisor"))
    assert link.up
    beat = [zmq.Frame(part) for part in (b"", encode(Beat()))]
    words = iter([beat] * (3 * RECEIVE_MAX))
    monkeypatch.setattr(sockets, "readable", lambda _: True)
    monkeypatch.setattr(sockets, "recv_frames", lambda _: next(words, None))
    engine.due_ns = FAR_NS
    assert [link.receive(1) for _ in range(4)] == [RECEIVE_MAX, RECEIVE_MAX, RECEIVE_MAX, 0]
    assert engine.due_ns == 0


def hears(monkeypatch: pytest.MonkeyPatch, link: Link, now_ns: int, *words: Wire) -> None:
    left = [[zmq.Frame(part) for part in (b"", encode(message))] for message in words]
    monkeypatch.setattr(sockets, "readable", lambda _: bool(left))
    monkeypatch.setattr(sockets, "recv_frames", lambda _: left.pop(0))
    link.receive(now_ns)


def test_a_goodbye_costs_no_pause_but_of_who_says_nothing_else(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that ends in an orderly way is soon back. But a peer that sends Bye directly after the
    link was opened would otherwise be contacted without end.
    """
    link = begun(engine, parse(f"ipc://{tmp_path}"), Target("supervisor"))
    hears(monkeypatch, link, 1 * MS, Bye())
    link.on_time(1 * MS)
    assert link.state is LinkState.WAITING
    again_ns = link.on_time(2 * MS)
    link.on_time(again_ns)
    assert link.up
    later_ns = again_ns + (BACKOFF_MS_MAX + 1) * MS
    hears(monkeypatch, link, later_ns, Bye())
    assert link.state is LinkState.WAITING
    link.on_time(later_ns)
    assert link.up


def test_an_answer_to_another_request_does_not_open_the_link(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the answer to the present attempt says where the target is now."""
    link = begun(engine, parse(f"ipc://{tmp_path}"), Target("topic", "t"))
    request = link._request
    hears(monkeypatch, link, 1, Done(request - 1, {"topic": f"ipc://{tmp_path}/1", "uuid": "old"}))
    assert (link.state, link.opened) == (LinkState.LOOKING, {})
    hears(monkeypatch, link, 1, Done(request, {"topic": f"ipc://{tmp_path}/2", "uuid": "new"}))
    assert (link.up, link.opened["uuid"]) == (True, "new")


def test_a_link_that_ends_before_it_is_up_sends_nothing_more(
    engine: Engine, tmp_path: Path
) -> None:
    """A request to make a channel would otherwise arrive after its client was closed."""
    link = begun(engine, parse(f"ipc://{tmp_path}"), Target("channel", "t", "c"))
    assert link.state is LinkState.LOOKING
    link.stop(link_module.BYE_LINGER_MS)
    late = sockets.make_router(f"ipc://{tmp_path}/supervisor")
    try:
        assert not late.poll(2 * link_module.BYE_LINGER_MS)
    finally:
        late.close(linger=0)


def told_of(run_dir: str) -> dict[str, str]:
    return {"uuid": "u", "run": run_dir, "run_id": read_run_id(run_dir)}


def test_a_link_that_goes_direct_says_goodbye_to_the_gateway(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = rundir.make(tmp_path)
    monkeypatch.setenv("ZSQ_TRANSPORT", "auto")
    link = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "t"))
    sent: list[bytes] = []
    monkeypatch.setattr(
        sockets,
        "send_frames",
        lambda _, frames: not sent.append(bytes(frames[-1])),  # type: ignore[func-returns-value]
    )
    hears(monkeypatch, link, 1, Done(link._request, told_of(run_dir)))
    assert [type(decode(message)) for message in sent] == [Bye, Lookup]
    assert (link.state, link.address.url) == (LinkState.LOOKING, f"ipc://{run_dir}")


def test_a_run_directory_over_which_nothing_answers_is_tried_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were tried again, the link would alternate between the gateway and the run directory
    without end.
    """
    run_dir = rundir.make(tmp_path)
    monkeypatch.setenv("ZSQ_TRANSPORT", "auto")
    link = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "t"))
    hears(monkeypatch, link, 1, Done(link._request, told_of(run_dir)))
    again_ns = link.on_time(ATTEMPT_NS + 1)
    link.on_time(again_ns)
    assert (link.state, link.address.url) == (LinkState.OPENING, "tcp://127.0.0.1:1")
    hears(monkeypatch, link, again_ns, Done(link._request, told_of(run_dir)))
    assert (link.up, link.address.url) == (True, "tcp://127.0.0.1:1")


def test_links_of_one_client_go_direct_without_the_gateway_after_the_first(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = rundir.make(tmp_path)
    monkeypatch.setenv("ZSQ_TRANSPORT", "auto")
    first = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "t"))
    hears(monkeypatch, first, 1, Done(first._request, told_of(run_dir)))
    second = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "u"))
    assert (second.state, second.address.url) == (LinkState.LOOKING, f"ipc://{run_dir}")
    rundir.make(tmp_path)  # the broker was started again
    third = begun(engine, parse("tcp://127.0.0.1:1"), Target("topic", "v"))
    assert (third.state, third.address.url) == (LinkState.OPENING, "tcp://127.0.0.1:1")


def test_the_answer_of_a_probed_port_is_looked_for_soon(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = begun(engine, parse(f"ipc://{tmp_path}"), Target("topic", "t"))
    link.wanted_ns = 0
    monkeypatch.setattr(engine, "_ask_what_answers", lambda *_: None)
    monkeypatch.setattr(engine, "_tell", lambda *_: None)
    later_ns = engine._look_after(1)
    assert later_ns > 1 + PROBED_NS
    probe = SimpleNamespace(answer=None)
    monkeypatch.setattr(engine, "_probe", probe)
    assert engine._look_after(1) == 1 + PROBED_NS
    probe.answer = b""
    assert engine._look_after(1) == later_ns


def test_a_link_that_is_hung_up_on_tries_again_soon_a_few_times_only(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy broker closes connections too, but a broker that refuses clients without keys always
    does.
    """
    monkeypatch.setattr(link_module, "verdict", lambda *_: None)
    link = begun(engine, parse(f"ipc://{tmp_path}"), Target("topic", "t"))
    for _ in range(HANG_UPS_MAX):
        link._shut_out(1, 0)
        assert link._again_ns == 1 + HANG_UP_MS * MS
    link._shut_out(1, 0)
    assert link._again_ns != 1 + HANG_UP_MS * MS
