"""Tests of a second broker on a copy of a data directory, of a broker whose sockets are removed
while it runs, and of the sockets of killed processes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest
from support.broker import Broker, wait_for
from support.zsq_command import run

import zsq
from zsq.actors.supervisor import run_directory

UUID = "0123456789abcdef" * 2


def test_a_copy_of_a_running_broker_is_refused_until_the_original_ends(
    own_broker: Broker, tmp_path: Path
) -> None:
    with zsq.Producer(own_broker.ipc) as producer:
        producer.publish("t", b"x")
    shutil.copytree(
        own_broker.data_dir, tmp_path / "copy", ignore=shutil.ignore_patterns("run", "lock")
    )
    copy = Broker(tmp_path / "copy")
    try:
        copy.launch()
        assert copy.process is not None
        assert copy.process.wait(30) == 1
        assert own_broker.process is not None
        said = copy.log.read_text()
        assert (
            f"is a copy of one on which another broker runs (pid {own_broker.process.pid}, uuid "
            in said
        )
        assert "make the copy with `zsq backup`" in said
        own_broker.process.kill()  # the kernel then releases the claim on the broker's uuid
        own_broker.process.wait(40)
        copy.start()
    finally:
        copy.close()


def test_a_restored_backup_runs_beside_its_original(own_broker: Broker, tmp_path: Path) -> None:
    with zsq.Producer(own_broker.ipc) as producer:
        producer.publish("t", b"x")
    for line in (
        ["backup", own_broker.data_dir, tmp_path / "b"],
        ["restore", tmp_path / "b", tmp_path / "restored"],
    ):
        run(*line).check_returncode()
    with Broker(tmp_path / "restored") as restored:
        with zsq.Admin(restored.ipc) as theirs, zsq.Admin(own_broker.ipc) as ours:
            there, here = theirs.stats(), ours.stats()
        assert there["uuid"] != here["uuid"]
        assert [topic["uuid"] for topic in there["topics"]] == [
            topic["uuid"] for topic in here["topics"]
        ]


def test_an_abstract_socket_of_another_user_prevents_no_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(f"\0zsq-broker-{UUID}")
        squatter.listen()
        with pytest.raises(run_directory.TwinRuns):
            run_directory.claim(UUID)
        monkeypatch.setattr("os.geteuid", lambda: 54_321)
        run_directory.claim(UUID).close()
    assert "a second broker on a copy of it cannot be detected" in caplog.text


@pytest.mark.parametrize("what", ["folder", "socket", "replaced"])
def test_a_broker_whose_sockets_are_removed_says_so_and_ends(own_broker: Broker, what: str) -> None:
    with zsq.Producer(own_broker.ipc) as producer:
        producer.publish("t", b"x")
    run = own_broker.data_dir / "run"
    own_broker.actors()
    if what == "folder":
        shutil.rmtree(run)
    else:
        (run / "supervisor").unlink()
    if what == "replaced":
        (run / "supervisor").touch()
    assert own_broker.process is not None
    assert own_broker.process.wait(30) == 1
    end = "was replaced" if what == "replaced" else "was removed"
    assert (
        f"the socket {run}/supervisor {end}, so clients cannot connect: this broker stops"
        in own_broker.log.read_text()
    )
    own_broker.start()
    with zsq.Consumer("t", "c", url=own_broker.ipc, start="earliest") as consumer:
        message = consumer.receive(20)
        assert message is not None
        assert message.body == b"x"
    wait_for(lambda: own_broker.pids("topic"), 30, "the topic")


def test_a_data_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    one = Broker(tmp_path / "data")
    try:
        one.launch()
        assert one.process is not None
        assert one.process.wait(30) == 1
        said = one.log.read_text()
        assert (
            f"the data directory {tmp_path}/data has mode 0777, so that other users may change "
            f"it: chmod 700 {tmp_path}/data"
        ) in said
    finally:
        one.close()


def test_the_sockets_of_killed_processes_are_removed(own_broker: Broker) -> None:
    """Each new process binds new sockets. Without the removal, a broker whose processes are killed
    again and again would fill `run/`.
    """
    run = own_broker.data_dir / "run"
    with zsq.Admin(own_broker.ipc) as admin:
        admin.create_channel("t", "c")
        before = {path.name for path in run.iterdir()}
        pids = {row["name"]: row["pid"] for row in admin.stats()["processes"]}
        for title in ("topic t", "scan worker", "channel t/c"):
            # The supervisor kills the channel itself as soon as it knows that the topic is dead.
            with contextlib.suppress(ProcessLookupError):
                os.kill(
                    next(pid for name, pid in pids.items() if name.startswith(title)),
                    signal.SIGKILL,
                )

        # The topic's process has five sockets, of which four belong to storage. The channel and the
        # worker have one each.
        def replaced() -> bool:
            now = {path.name for path in run.iterdir()}
            return len(before - now) == 7 and len(now) == len(before)

        wait_for(replaced)
        wait_for(lambda: admin.stats("t")["health"] == "OK")
