"""Tests of SIGHUP on a real broker: options that may change take effect in all its processes, other
changes are reported by name, and a wrong configuration changes nothing.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker import Broker, free_port, kill, wait_for
from support.receivers import Hook

import zsq


class Reloaded:
    """A broker with a configuration file, and what its log says after each SIGHUP."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "zsq.toml"
        self.file.write_text('[alarm]\nhold = "1h"')  # no alarm is raised while this holds
        options = ("--config", str(self.file), "--keep-chunks", "7", "--own-process", "always")
        self.broker = Broker(folder / "data", *options).start()

    def log(self) -> str:
        return self.broker.log.read_text()

    def __call__(self, text: str, *until: str) -> str:
        """Write the file and reload. Return the new part of the log once it contains each text of
        `until`.
        """
        assert self.broker.process is not None
        self.file.write_text(text)
        begin = len(self.log())
        self.broker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: all(one in self.log()[begin:] for one in until), what=str(until))
        return self.log()[begin:]


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reloaded]:
    found = Reloaded(tmp_path_factory.mktemp("reload"))
    try:
        yield found
    finally:
        found.broker.close()


def kept(broker: Broker, topic: str) -> dict[str, object]:
    with zsq.Admin(broker.ipc) as admin:
        found: dict[str, object] = admin.stats(topic)["topics"][0]["settings"]
    return found


def test_all_processes_take_the_level_and_those_started_later(reloaded: Reloaded) -> None:
    with zsq.Admin(reloaded.broker.ipc) as admin:
        admin.create_channel("levels", "c")
        everybody = {actor["name"] for actor in admin.stats()["processes"]} - {
            "supervisor",
            "forkserver",
        }
        assert len(everybody) == 5
        reloaded(
            'log-level = "debug"',
            *(f"DEBUG [{name}] {name} has the new settings" for name in everybody),
        )
        admin.create_topic("later")
        assert " INFO [topic later]" in reloaded.log()
        reloaded('log-level = "error"', "--log-level changed")
        admin.create_topic("latest")
        assert " INFO [topic latest]" not in reloaded.log()
        assert "DEBUG" not in reloaded.log().rpartition("reloaded")[2]


def test_a_reload_changes_the_retention_of_topics_without_own_settings(reloaded: Reloaded) -> None:
    broker = reloaded.broker
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic("plain")
        admin.create_topic("own", keep_bytes=5_000_000)
        said = reloaded(
            'keep-bytes = "3MB"\nkeep-time = "1h"\nkeep-chunks = 3',
            "configuration reloaded: --keep-bytes, --keep-time",
        )
        assert "keep-chunks" not in said  # a flag goes before the file
        wait_for(lambda: kept(broker, "plain")["keep_bytes"] == 3_000_000, what="the bound")
        wait_for(lambda: kept(broker, "own")["keep_time_s"] == 3600, what="the other bound")
        assert kept(broker, "own")["keep_bytes"] == 5_000_000
        admin.create_topic("new")
        assert kept(broker, "new")["keep_bytes"] == 3_000_000


def test_a_wrong_configuration_changes_nothing_and_says_why(reloaded: Reloaded) -> None:
    with zsq.Admin(reloaded.broker.ipc) as admin:
        admin.create_topic("same")
    reloaded('keep-bytes = "4MB"', "reloaded: ")
    wait_for(lambda: kept(reloaded.broker, "same")["keep_bytes"] == 4_000_000, what="the bound")
    said = reloaded('keep-bytes = "5MB"\nnode-id = "x"', "not reloaded")
    assert (
        f"configuration not reloaded, no option changed: {reloaded.file}: node-id: 'x' is not "
        "allowed"
    ) in said
    assert kept(reloaded.broker, "same")["keep_bytes"] == 4_000_000
    said = reloaded(
        'keep-bytes = "6MB"\nnode-id = 9\nno-listen = true',
        "--node-id keeps its old value until the broker is restarted",
        "--no-listen keeps",
    )
    wait_for(lambda: kept(reloaded.broker, "same")["keep_bytes"] == 6_000_000, what="the bound")
    with zsq.Admin(reloaded.broker.tcp) as admin:
        assert admin.stats()["node"] == 0


def test_thresholds_hold_at_once_and_other_receivers_hear_of_what_is_raised(
    reloaded: Reloaded,
) -> None:
    with zsq.Admin(reloaded.broker.ipc) as admin, zsq.Producer(reloaded.broker.ipc) as producer:
        admin.create_channel("rising", "c")
        producer.publish_many("rising", [b"x"] * 20)
        reloaded(
            "[alarm]\ndepth = 10\nhold = 0", "alarm raised: rising/c: depth 20 (alarm above 10)"
        )
        with Hook() as hook, Hook() as other:
            reloaded(
                f'[alarm]\ndepth = 10\nhold = 0\nwebhook = "{hook.url}"', "--alarm-webhook changed"
            )
            assert "raised: rising/c: depth 20" in hook.got.get(timeout=20)[1]["text"]
            reloaded(
                f'[alarm]\ndepth = 10\nhold = 0\nwebhook = ["{other.url}"]',
                "--alarm-webhook changed",
            )
            assert "raised: rising/c" in other.got.get(timeout=20)[1]["text"]
            assert len(admin.stats()["alarm_receivers"]) == 1
            wait_for(
                lambda: len(reloaded.broker.pids("alarm_teller")) == 1, what="the end of the first"
            )
            [teller] = reloaded.broker.pids("alarm_teller")
            reloaded(
                f'[alarm]\ndepth = 30\nhold = 0\nwebhook = ["{other.url}"]',
                "alarm cleared: rising/c",
            )
            assert "cleared: rising/c" in other.got.get(timeout=20)[1]["text"]
            # The receivers are the same, so no process was started for the change.
            assert reloaded.broker.pids("alarm_teller") == [teller]
            kill(teller)
            wait_for(
                lambda: reloaded.broker.pids("alarm_teller") not in ([], [teller]),
                what="its successor",
            )
            wait_for(lambda: admin.stats()["alarm_receivers"], what="its first pulse")
            reloaded(
                f'[alarm]\ndepth = 10\nhold = 0\nwebhook = ["{other.url}"]',
                "alarm raised: rising/c",
            )
            assert "raised: rising/c" in other.got.get(timeout=20)[1]["text"]
    reloaded("", "alarm cleared: rising/c")


def in_a_terminal(tmp_path: Path, before: str = "pass") -> tuple[subprocess.Popen[bytes], int]:
    """Start a broker in a terminal of its own. Return its process and our end of the terminal.
    `before` is Python code to run in the process first.
    """
    ours, theirs = pty.openpty()
    line = [
        sys.executable,
        "-m",
        "zsq",
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--no-nsq",
        "--no-http",
    ]
    line += ["--listen", f"127.0.0.1:{free_port()}"]
    log = tmp_path / "log"
    take = (
        "import fcntl, os, signal, sys, termios; os.setsid(); fcntl.ioctl(0, "
        f"termios.TIOCSCTTY, 0); {before}"
    )
    take += "; os.execv(sys.argv[1], sys.argv[1:])"
    with log.open("wb") as out:
        broker = subprocess.Popen(
            [sys.executable, "-c", take, *line], stdin=theirs, stdout=out, stderr=out
        )
    os.close(theirs)
    return broker, ours


def test_a_terminal_that_is_closed_ends_the_broker_it_was_started_in(tmp_path: Path) -> None:
    broker, terminal = in_a_terminal(tmp_path)
    log = tmp_path / "log"
    try:
        wait_for(lambda: " ready: " in log.read_text() or broker.poll() is not None, what="ready")
        broker.send_signal(signal.SIGHUP)
        wait_for(lambda: "reloaded: no option changed" in log.read_text(), what="a reload")
        os.close(terminal)
        assert broker.wait(90) == 0
    finally:
        broker.kill()
        broker.wait(40)


def test_a_broker_under_nohup_reloads_and_outlives_its_terminal(tmp_path: Path) -> None:
    broker, terminal = in_a_terminal(tmp_path, "signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    log = tmp_path / "log"
    url = f"ipc://{tmp_path}/data/run"
    reloaded = "reloaded: no option changed"
    try:
        wait_for(lambda: " ready: " in log.read_text() or broker.poll() is not None, what="ready")
        with zsq.Admin(url) as admin:
            before = {one["name"]: one["pid"] for one in admin.stats()["processes"]}
        broker.send_signal(signal.SIGHUP)
        wait_for(lambda: reloaded in log.read_text(), what="a reload")
        os.close(terminal)
        wait_for(
            lambda: log.read_text().count(reloaded) == 2 or broker.poll() is not None,
            what="another reload",
        )
        assert broker.poll() is None
        os.killpg(broker.pid, signal.SIGHUP)  # a shell that ends sends this to all its processes
        wait_for(
            lambda: log.read_text().count(reloaded) == 3 or broker.poll() is not None,
            what="a third reload",
        )
        with zsq.Admin(url) as admin:
            assert {one["name"]: one["pid"] for one in admin.stats()["processes"]} == before
        broker.terminate()
        assert broker.wait(30) == 0
    finally:
        broker.kill()
        broker.wait(40)


def test_a_broker_under_nohup_takes_new_rules_on_sighup(tmp_path: Path) -> None:
    rules = tmp_path / "access.toml"
    rules.write_text('[anonymous]\npublish = ["t"]\n')
    broker = Broker(tmp_path / "data", "--access", str(rules))
    # Child processes inherit signals that are ignored.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        broker.launch()
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        broker.wait_ready()
        with zsq.Producer(broker.tcp) as producer:
            producer.publish("t", b"one")
            rules.write_text("[anonymous]\npublish = []\n")
            assert broker.process is not None
            broker.process.send_signal(signal.SIGHUP)
            broker.wait_said("the new settings are in force at all gateways")
            with pytest.raises(zsq.Refused, match="E_FORBIDDEN"):
                producer.publish("t", b"two")
    finally:
        broker.close()
