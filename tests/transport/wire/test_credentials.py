"""Tests of key files, of the errors after a failed handshake, and that no text contains a
secret.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.broker import wait_for
from support.fake_connection import FakeEngine, QuietPeer
from support.router import make_router

from zsq.transport.client.blocking.client import Admin
from zsq.transport.client.core.requester import RequestEngine
from zsq.transport.client.link.connection import LinkConnection
from zsq.transport.client.link.link import Link
from zsq.transport.errors import E_BAD_KEY, E_FORBIDDEN, UsageError, options_as_flags
from zsq.transport.wire.address import Target, parse
from zsq.transport.wire.addresses import Rotation
from zsq.transport.wire.credentials import Credentials, is_key, load, read_key_file, resolve
from zsq.transport.wire.handshake import HUNG_UP, OTHER_MECHANISM, UNKNOWN_KEY, suspicion, verdict
from zsq.transport.wire.protocol import Done

PUBLIC, SECRET = (key.decode() for key in zmq.curve_keypair())
SERVER, OTHER_SECRET = (key.decode() for key in zmq.curve_keypair())
KEYS = Credentials(PUBLIC, SECRET, SERVER, "my.key")


def written(folder: Path, mode: int = 0o600, **keys: object) -> str:
    file = folder / "client.key"
    file.write_text("".join(f"{name} = {value!r}\n" for name, value in keys.items()))
    file.chmod(mode)
    return str(file)


@pytest.fixture
def good(tmp_path: Path) -> str:
    return written(tmp_path, public=PUBLIC, secret=SECRET, server=SERVER)


def test_a_key_file_is_read_where_it_is_needed(good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = parse("tcp://h:1", good).credentials
    assert found == Credentials(PUBLIC, SECRET, SERVER, good)
    assert parse("tcp://h:1", Path(good)).credentials == found
    assert parse("tcp://h:1").credentials is None
    monkeypatch.setenv("ZSQ_KEY_FILE", good)
    assert parse("tcp://h:1").credentials == found
    assert parse("tcp://h:1", "").credentials is None
    assert parse("tcp://h:1", KEYS).credentials is KEYS
    assert parse("ipc:///run", "/not/looked/for").credentials is None


def test_keys_travel_by_pickle_and_show_in_no_text() -> None:
    assert pickle.loads(pickle.dumps(KEYS)) == KEYS
    for shown in (repr(KEYS), str(KEYS), repr(parse("tcp://h:1", KEYS))):
        assert SECRET not in shown


@pytest.mark.parametrize(
    ("keys", "mode", "said"),
    [
        ({"public": PUBLIC, "secret": SECRET}, 0o600, "server's key file"),
        ({"public": PUBLIC, "server": SERVER}, 0o600, "no `secret`"),
        ({"public": PUBLIC, "secret": SECRET, "server": "short"}, 0o600, "as `server`"),
        ({"public": PUBLIC, "secret": SECRET, "server": 3}, 0o600, "as `server`"),
        ({"public": PUBLIC, "secret": OTHER_SECRET, "server": SERVER}, 0o600, "does not belong"),
        ({"public": PUBLIC, "secret": SECRET, "server": SERVER}, 0o604, "chmod 600"),
        ({"public": PUBLIC, "secret": SECRET, "server": SERVER}, 0o602, "chmod 600"),
    ],
)
def test_a_wrong_key_file_is_refused_without_showing_its_secret(
    tmp_path: Path, keys: dict[str, object], mode: int, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        load(written(tmp_path, mode, **keys))
    assert caught.value.code == E_BAD_KEY
    assert not any(secret in str(caught.value) for secret in (SECRET, OTHER_SECRET))


def test_a_file_that_is_no_key_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load(str(tmp_path / "missing"))
    for content in (b"\xff\xfe", b"public", b"[" * 5_000):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(UsageError, match="not a key file"):
            resolve(tmp_path / "bad")
    with pytest.raises(UsageError, match="not a key file"):
        Admin("tcp://h:1", key_file=tmp_path / "bad")


def test_a_public_key_is_read_from_any_file(good: str, tmp_path: Path) -> None:
    Path(good).chmod(0o644)
    assert read_key_file(good, ("public",)) == {"public": PUBLIC}


def test_only_forty_characters_of_the_key_alphabet_are_a_key() -> None:
    assert is_key(PUBLIC)
    for text in ("", PUBLIC[:-1], PUBLIC + "0", PUBLIC[:-1] + '"', "#" * 40, "é" * 40):
        assert not is_key(text)


def test_a_failed_handshake_is_explained_by_its_cause() -> None:
    plain, keyed = parse("tcp://h:1"), parse("tcp://h:1", KEYS)
    assert verdict(HUNG_UP, plain) is None
    assert "key_file=" in suspicion(plain)
    with options_as_flags():
        assert "--key-file" in suspicion(plain)
    assert "key_file=" in suspicion(plain)
    assert "my.key" in suspicion(keyed)
    for events, address, code, said in (
        (UNKNOWN_KEY, keyed, E_FORBIDDEN, PUBLIC),
        (OTHER_MECHANISM | HUNG_UP, plain, E_BAD_KEY, "requires a key"),
        (OTHER_MECHANISM, keyed, E_BAD_KEY, "does not encrypt"),
    ):
        found = verdict(events, address)
        assert found is not None
        assert found.code == code
        assert said in found.text
        assert SECRET not in found.text


@pytest.fixture
def plain() -> Iterator[str]:
    """Return the address of a broker without keys. A client with keys must not send it anything."""
    socket = make_router("tcp://127.0.0.1:*")
    yield socket.getsockopt_string(zmq.LAST_ENDPOINT)
    socket.close(linger=0)


def test_nothing_is_said_to_a_broker_that_does_not_encrypt(plain: str) -> None:
    with (
        Admin(plain, key_file=KEYS, timeout=20) as admin,
        pytest.raises(UsageError, match="does not encrypt"),
    ):
        admin.topics()


class EarlyReport(LinkConnection):
    """A connection whose monitor has reported something before it is watched."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._early = 0
        wait_for(self._reports, 30, "a report")

    def _reports(self) -> bool:
        self._early |= super().read_events()
        return self._early != 0

    def read_events(self) -> int:
        early, self._early = self._early, 0
        return early | super().read_events()


def test_a_handshake_that_fails_before_the_monitor_is_read_is_noticed(
    plain: str,
) -> None:
    """A broker on this machine can end the handshake before `connect` returns, and ZeroMQ reports
    that only once. In an earlier version the report was lost, and the client waited for its
    time-out.
    """
    engine = RequestEngine(parse(plain, KEYS), Target("supervisor"))
    engine.connect = EarlyReport
    engine.link.start(0)
    engine.turn([])
    assert engine.link.refusal is not None
    assert engine.link.refusal.code == E_BAD_KEY
    engine.stop()
    engine.events.close()


def test_a_known_client_waits_where_a_new_client_is_refused() -> None:
    """Clients must survive while their broker is being reconfigured."""
    for known in (False, True):
        engine = FakeEngine()
        link = Link(engine, Rotation(parse("tcp://127.0.0.1:1")), Target("supervisor"), QuietPeer())
        link.start(0)
        if known:
            engine.hear(link, 1, Done(engine.request_of(link), {}))
        engine.report(link, 1, OTHER_MECHANISM)
        assert link.waiting == known
        assert "requires a key" in link.trouble
        link.stop()
        engine.end()
