"""Test of a cluster with keys: the console may ask the other brokers if the access file permits it.

The brokers have one key pair. It is the key with which they ask each other.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.broker import Broker, wait_for
from support.cluster import Cluster, running
from support.keys import Keyring
from support.zsq_command import run_text

from zsq.actors.security.access import token_hash
from zsq.transport.wire.credentials import read_key_file

ADMIN = f"""
[users.admin]
curve = ["KEY admin"]
tokens = ["{token_hash("secret")}"]
admin = ["*"]
"""
BROKERS = """
[users.brokers]
curve = ["{key}"]
view = ["*"]
"""


def brokers_of(cluster: Cluster) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{cluster.brokers[0].http}/api/cluster"
    answer = httpx.get(url, headers={"authorization": "Bearer secret"}, timeout=20)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = json.loads(answer.text)["brokers"]
    return found


def test_the_console_asks_other_brokers_with_the_key_of_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Keyring(tmp_path, ["admin"])
    ring.allow(ADMIN)
    monkeypatch.setenv("ZSQ_KEY_FILE", str(ring.file("admin")))
    with running(tmp_path / "brokers", *ring.options()) as cluster:
        one, two = brokers_of(cluster)
        assert (one["role"], two["role"]) == ("primary", "refused")
        assert "public key" in two["why"]
        key = read_key_file(str(ring.server), ("public",))["public"]
        ring.allow(ADMIN + BROKERS.format(key=key))
        for broker in cluster.brokers:
            assert broker.process is not None
            broker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: brokers_of(cluster)[1]["role"] == "primary", what="the other broker")
        assert brokers_of(cluster)[1]["epoch"] == 1


def test_a_command_says_which_figures_need_another_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Keyring(tmp_path, ["admin", "viewer", "some"])
    ring.allow(
        ADMIN + '[users.viewer]\ncurve = ["KEY viewer"]\nview = ["*"]\n'
        '[users.some]\ncurve = ["KEY some"]\nview = ["t"]\n'
    )
    broker = Broker(tmp_path / "data", *ring.options())
    said: dict[str, tuple[str, str]] = {}
    try:
        broker.start()
        for user in ("some", "viewer", "admin"):
            monkeypatch.setenv("ZSQ_KEY_FILE", str(ring.file(user)))
            commands = (run_text("--url", broker.tcp, name) for name in ("stats", "cluster"))
            stats, cluster = (one.stderr for one in commands)
            said[user] = (stats, cluster)
    finally:
        broker.close()
    stats, cluster = said["some"]
    assert 'need the permission view = ["*"]' in stats
    assert 'not shown without the permission view = ["*"]' in cluster
    stats, cluster = said["viewer"]
    assert 'need the permission admin = ["*"]' in stats
    assert "permission" not in cluster
    assert "permission" not in "".join(said["admin"])
