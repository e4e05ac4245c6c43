"""Tests of the pytest plugin, in sessions of their own: what its fixtures give and clean up."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

import zsq
from zsq.testing import LocalBroker, Namespace

pytest_plugins = ("pytester",)

CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def zsq_serve_options():
    return ("--max-msg-size", "1000")
"""
SESSION = """
import os
import pytest
import zsq

seen = []

def test_a_namespace(zsq_namespace, zsq_broker):
    print("pid:", zsq_broker.pid)
    zsq_namespace.publish("orders", b"one")
    assert os.environ["ZSQ_URL"] == zsq_broker.url == zsq_namespace.url
    with zsq.Producer() as producer:
        producer.publish(zsq_namespace.topic("orders"), b"two")
    zsq_namespace.consumer("orders", "billing").receive(30)
    zsq_namespace.assert_published("orders", count=2)
    seen.append((zsq_broker.pid, zsq_namespace.topic("orders")))

def test_the_next_namespace(zsq_namespace, zsq_broker):
    [(pid, topic)] = seen
    assert zsq_broker.pid == pid
    assert topic != zsq_namespace.topic("orders")
    assert zsq_namespace.messages("orders") == []
    assert topic not in zsq_namespace.admin().topics()

def test_an_option_of_the_session(zsq_namespace):
    with pytest.raises(zsq.UsageError, match="E_TOO_BIG"):
        zsq_namespace.publish("t", b"x" * 1001)

@pytest.mark.parametrize("number", [1, 2])
def test_a_broker_in_memory(zsq_memory, number):
    with zsq.Producer() as producer:
        assert producer.publish("t", b"x").offset == 0

def test_without_a_fixture():
    assert "ZSQ_URL" not in os.environ
"""


def wait_gone(pid: int) -> None:
    """Wait until this process has ended. It waits for an event, and not for a fixed time."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([pidfd], [], [], 60)[0], f"process {pid} lives on"
    finally:
        os.close(pidfd)


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("ZSQ_URL", raising=False)
    return pytester


def test_each_test_has_its_topics_at_one_broker(session: pytest.Pytester) -> None:
    session.makeconftest(CONFTEST)
    session.makepyfile(SESSION)
    result = session.runpytest_subprocess("-s", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=6)
    found = re.search(r"pid: (\d+)", result.stdout.str())
    assert found is not None
    wait_gone(int(found[1]))


@pytest.mark.slow
def test_each_worker_of_xdist_has_its_broker(session: pytest.Pytester) -> None:
    session.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_it(zsq_namespace, zsq_broker, number, worker_id):
            zsq_namespace.publish("t", b"x")
            zsq_namespace.assert_published("t", count=1)
            assert worker_id in str(zsq_broker.folder)
        """
    )
    result = session.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4)


def test_the_plugin_imports_nothing_before_a_fixture_is_used() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import zsq.apps.testing.plugin; "
        "print(sorted(name for name in set(sys.modules) - before))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert eval(said) == [
        "zsq",
        "zsq.apps",
        "zsq.apps.testing",
        "zsq.apps.testing.plugin",
    ]


@pytest.mark.slow
def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import os, sys; from zsq.testing import LocalBroker; "
        "print(LocalBroker(sys.argv[1]).start().pid, flush=True); os._exit(0)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=200,
    ).stdout
    wait_gone(int(said))


@pytest.mark.slow
def test_a_broker_starts_again_with_its_messages(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        with broker.producer() as producer:
            producer.publish("t", b"kept")
        broker.stop()
        assert broker.pid is None
        broker.start()
        with broker.reader("t") as reader:
            assert reader.message(0).body == b"kept"


@pytest.mark.slow
def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, "--no-such-option")
    with pytest.raises(zsq.testing.StartFailed, match="no-such-option"):
        broker.start()
    assert broker.pid is None


@pytest.mark.slow
def test_variables_of_the_session_do_not_reach_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zsq.toml").write_text("max-msg-size = 10\n")
    monkeypatch.setenv("ZSQ_CONFIG", str(tmp_path / "zsq.toml"))
    with LocalBroker(tmp_path) as broker, Namespace(broker) as space:
        space.publish("t", b"x" * 100)
