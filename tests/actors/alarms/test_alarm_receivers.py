"""Tests of the receivers of alarms: what each is sent, and how each failure is reported without
secrets.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.broker import free_port, kill, wait_for
from support.receivers import Hook, Trickler

from zsq.actors.alarms import alarm_receivers
from zsq.actors.alarms.alarm_receivers import Command, Deadline, NotSent, Webhook, receivers
from zsq.actors.settings.options import AlarmOptions

EVENT = {
    "event": "raised",
    "topic": "clicks",
    "channel": "c",
    "text": "raised: clicks/c: depth 20 (alarm above 10)",
}


def message(*events: dict[str, str]) -> dict[str, Any]:
    text = "\n".join(event["text"] for event in events)
    return {
        "text": text,
        "events": list(events),
        "missed": 0,
        "broker": {"host": "here", "data_dir": "/data"},
    }


def told(receiver: Any, what: dict[str, Any]) -> str:
    """Send the event to the receiver. Return "", or the reason why that failed."""
    try:
        receiver.tell(what)
    except NotSent as error:
        return str(error)
    return ""


# Webhook


def test_a_webhook_gets_json_and_the_token() -> None:
    with Hook() as hook:
        receiver = Webhook(hook.url, "s3cret")
        assert receiver.name == f"webhook {hook.url.removesuffix('/secret-path')}"
        assert told(receiver, message(EVENT)) == ""
        headers, found = hook.got.get(timeout=10)
    assert found == message(EVENT)
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("status", [404, 500])
def test_a_webhook_that_refuses_is_an_error_without_the_secret(status: int) -> None:
    with Hook(failures=1, status=status) as hook:
        why = told(Webhook(hook.url, "s3cret"), message(EVENT))
        assert str(status) in why
        assert "secret" not in why
        assert "s3cret" not in why


def test_a_redirect_is_not_followed() -> None:
    with Hook() as other, Hook(failures=1, status=302, location=other.url) as hook:
        assert "302" in told(Webhook(hook.url, ""), message(EVENT))
        assert other.tries == 0


def test_a_refused_connection_is_reported() -> None:
    assert "refused" in told(Webhook(f"http://127.0.0.1:{free_port()}/secret", ""), message(EVENT))


def test_a_webhook_that_hangs_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_receivers, "TIMEOUT_S", 0.2)
    begun = time.monotonic()
    with Hook(hangs=True) as hook:
        assert "timed out" in told(Webhook(hook.url, ""), message(EVENT))
    assert time.monotonic() - begun < 10


TLS_RECORD = b"\x16\x03\x03\x40\x00"  # the header of a TLS record of 16 KiB


@pytest.mark.parametrize(
    ("scheme", "first"), [("http", b"HTTP/1.1 200 OK\r\nX: "), ("https", TLS_RECORD)]
)
def test_a_webhook_that_trickles_is_cut_off(
    scheme: str, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm_receivers, "TRY_S", 0.5)
    with Trickler(first, b"x") as server:
        within(
            lambda: told(Webhook(f"{scheme}://{server.address}/x", ""), message(EVENT)),
            "took longer than 0.5 s: the connection was closed",
        )


def test_a_connection_that_comes_after_the_deadline_is_closed() -> None:
    with Trickler(b"", b"x") as server, Deadline(0) as deadline:
        wait_for(lambda: deadline.over, 10, "the deadline")
        host, _, port = server.address.partition(":")
        with pytest.raises(TimeoutError):
            deadline.connect((host, int(port)), 10)


def within(try_it: Callable[[], str], expected: str) -> None:
    """Run the call in a thread, so that a defect fails the test and does not make it hang."""
    found: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: found.put(try_it()), daemon=True).start()
    assert found.get(timeout=10) == expected


# Command


def python(code: str, *arguments: str) -> Command:
    return Command([sys.executable, "-c", code, *arguments])


def test_a_command_gets_json_on_stdin_and_its_arguments_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "out; echo $HOME"
    assert (
        told(
            python("import sys; open(sys.argv[1], 'w').write(sys.stdin.read())", str(out)),
            message(EVENT),
        )
        == ""
    )
    assert json.loads(out.read_text()) == message(EVENT)


def test_a_command_that_fails_says_why() -> None:
    assert (
        told(python("import sys; sys.exit('no luck')"), message(EVENT))
        == "ended with exit code 1: no luck"
    )


def test_a_command_that_does_not_read_is_no_failure() -> None:
    assert told(python("pass"), message(*[EVENT] * 100)) == ""


def test_a_command_that_is_not_there() -> None:
    assert "No such file" in told(Command(["/nowhere/program"]), message(EVENT))


# A command with one child in the command's process group, and another one in another session.
FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
pids = [os.getpid(), subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]
open(sys.argv[1] + ".new", "w").write(" ".join(map(str, pids)))
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""


def test_a_command_that_hangs_is_killed_with_its_process_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(alarm_receivers, "TRY_S", 3.0)
    noted = tmp_path / "pids"
    assert (
        told(python(FAMILY + "time.sleep(600)", str(noted)), message(EVENT))
        == "did not end within 3 s and was killed"
    )
    *group, other = noted.read_text().split()
    assert len(group) == 2
    wait_for(lambda: not any(lives(pid) for pid in group), 10, "the end of the group")
    kill(int(other))


def test_child_processes_of_a_command_that_ended_are_not_killed(tmp_path: Path) -> None:
    noted = tmp_path / "pids"
    command = python(FAMILY, str(noted))
    assert told(command, message(EVENT)) == ""
    command.end()
    _, *others = noted.read_text().split()
    assert all(lives(pid) for pid in others)
    for pid in others:
        kill(int(pid))


def test_a_command_that_is_ended_early_says_so(tmp_path: Path) -> None:
    noted = tmp_path / "pids"
    command = python(FAMILY + "time.sleep(600)", str(noted))
    found: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: found.put(told(command, message(EVENT))), daemon=True).start()
    wait_for(noted.exists, 30, "the command")
    command.end()
    *group, other = noted.read_text().split()
    kill(int(other))
    assert found.get(timeout=10) == "ended with exit code -9"
    wait_for(lambda: not any(lives(pid) for pid in group), 10, "the end of the group")


def lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_receivers_are_named_by_their_host_or_command_only() -> None:
    given = AlarmOptions(webhooks=("http://a/x", "https://b/"), commands=(("/bin/tee", "f"),))
    assert [receiver.name for receiver in receivers(given)] == [
        "webhook http://a", "webhook https://b", "command /bin/tee",
    ]  # fmt: skip
