"""Receivers of alarms: what each is sent, and how each failure is told, without secrets."""

from __future__ import annotations

import email
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from support.broker import free_port, kill, wait_for
from support.receivers import Hook, MailServer, Trickler

from zsq.actors import alarm_receivers
from zsq.actors.alarm_deadline import Deadline
from zsq.actors.alarm_options import AlarmOptions
from zsq.actors.alarm_receivers import Command, Mail, NotTold, Webhook, receivers

EVENT = {"event": "raised", "topic": "clicks", "channel": "c", "text": "raised: clicks/c: depth 20 (alarm above 10)"}


def message(*events: dict[str, str]) -> dict[str, Any]:
    text = "\n".join(event["text"] for event in events)
    return {"text": text, "events": list(events), "missed": 0, "broker": {"host": "here", "data_dir": "/data"}}


def told(receiver: Any, what: dict[str, Any]) -> str:
    """ "", or why not."""
    try:
        receiver.tell(what)
    except NotTold as error:
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
def test_a_webhook_that_does_not_take_it(status: int) -> None:
    with Hook(failures=1, status=status) as hook:
        why = told(Webhook(hook.url, "s3cret"), message(EVENT))
        assert str(status) in why
        assert "secret" not in why
        assert "s3cret" not in why


def test_a_redirect_is_not_followed() -> None:
    with Hook() as other, Hook(failures=1, status=302, location=other.url) as hook:
        assert "302" in told(Webhook(hook.url, ""), message(EVENT))
        assert other.tries == 0


def test_nobody_there() -> None:
    assert "refused" in told(Webhook(f"http://127.0.0.1:{free_port()}/secret", ""), message(EVENT))


def test_a_webhook_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_receivers, "TIMEOUT_S", 0.2)
    begun = time.monotonic()
    with Hook(hangs=True) as hook:
        assert "timed out" in told(Webhook(hook.url, ""), message(EVENT))
    assert time.monotonic() - begun < 10


TLS_RECORD = b"\x16\x03\x03\x40\x00"  # the head of one, of 16 KiB


@pytest.mark.parametrize(("scheme", "first"), [("http", b"HTTP/1.1 200 OK\r\nX: "), ("https", TLS_RECORD)])
def test_a_webhook_that_trickles_is_cut_off(scheme: str, first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_receivers, "TRY_S", 0.5)
    with Trickler(first, b"x") as server:
        within(lambda: told(Webhook(f"{scheme}://{server.address}/x", ""), message(EVENT)), "not done within 0.5 s: cut off")


@pytest.mark.parametrize(("tls", "first"), [("none", b"220-"), ("tls", TLS_RECORD)])
def test_a_mail_server_that_trickles_is_cut_off(tls: str, first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_receivers, "TRY_S", 0.5)
    with Trickler(first, b"x") as server:
        receiver = Mail(AlarmOptions(mail_to=("a@x.org",), smtp=server.address, smtp_tls=tls))
        within(lambda: told(receiver, message(EVENT)), "not done within 0.5 s: cut off")


def test_a_connection_that_comes_after_the_deadline_is_closed() -> None:
    with Trickler(b"", b"x") as server, Deadline(0) as deadline:
        wait_for(lambda: deadline.over, 10, "the deadline")
        host, _, port = server.address.partition(":")
        with pytest.raises(TimeoutError):
            deadline.connect((host, int(port)), 10)


def within(try_it: Callable[[], str], expected: str) -> None:
    """In a thread, so that the defect is a failure and not a test that hangs."""
    found: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: found.put(try_it()), daemon=True).start()
    assert found.get(timeout=10) == expected


# Mail


def mail(server: MailServer, **more: Any) -> Mail:
    return Mail(AlarmOptions(mail_to=("a@x.org", "b@x.org"), mail_from="zsq@x.org", smtp=server.address, **more))


def headed(text: str) -> Message:
    return email.message_from_string(text)


def test_one_mail_for_all_that_is_told_together() -> None:
    other = EVENT | {"text": "cleared: clicks/d: depth 0 (alarm above 10)"}
    with MailServer() as server:
        assert told(mail(server), message(EVENT)) == ""
        sender, recipients, text = server.got.get(timeout=10)
        assert (sender, recipients) == ("zsq@x.org", ["a@x.org", "b@x.org"])
        found = headed(text)
        assert found["Subject"].replace("\n", "") == f"[zsq here] {EVENT['text']}"
        assert (found["To"], found["From"]) == ("a@x.org, b@x.org", "zsq@x.org")
        assert found["Date"]
        assert EVENT["text"] in found.get_payload()
        assert told(mail(server), message(EVENT, other)) == ""
        text = server.got.get(timeout=10)[2]
        assert headed(text)["Subject"] == "[zsq here] 2 backlog alarms"
        assert other["text"] in text


def test_a_recipient_that_is_refused() -> None:
    with MailServer(refuses="b@x.org") as server:
        assert "b@x.org" in told(mail(server), message(EVENT))
        assert server.got.get(timeout=10)[1] == ["a@x.org"]


def test_user_and_password() -> None:
    with MailServer(password="right") as server:
        assert told(mail(server, smtp_user="u", smtp_password="right"), message(EVENT)) == ""
        why = told(mail(server, smtp_user="u", smtp_password="wr0ng"), message(EVENT))
        assert "refuses" in why
        assert "wr0ng" not in why


def test_no_mail_server() -> None:
    server = AlarmOptions(mail_to=("a@x.org",), smtp=f"127.0.0.1:{free_port()}")
    assert "refused" in told(Mail(server), message(EVENT))


# Command


def python(code: str, *arguments: str) -> Command:
    return Command([sys.executable, "-c", code, *arguments])


def test_a_command_gets_json_on_stdin_and_its_arguments_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "out; echo $HOME"
    assert told(python("import sys; open(sys.argv[1], 'w').write(sys.stdin.read())", str(out)), message(EVENT)) == ""
    assert json.loads(out.read_text()) == message(EVENT)


def test_a_command_that_fails_says_why() -> None:
    assert told(python("import sys; sys.exit('no luck')"), message(EVENT)) == "ended with 1: no luck"


def test_a_command_that_does_not_read_is_no_failure() -> None:
    assert told(python("pass"), message(*[EVENT] * 100)) == ""


def test_a_command_that_is_not_there() -> None:
    assert "No such file" in told(Command(["/nowhere/program"]), message(EVENT))


# A child in its group, one of another session, and one that nobody is the parent of any more.
FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
pids = [os.getpid(), subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]
orphan = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=subprocess.DEVNULL).pid)"
pids.append(int(subprocess.run([sys.executable, "-c", orphan, *sleep], env={}, stdout=subprocess.PIPE).stdout))
open(sys.argv[1] + ".new", "w").write(" ".join(map(str, pids)))
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""


def test_a_command_that_hangs_is_killed_with_all_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(alarm_receivers, "TRY_S", 3.0)
    noted = tmp_path / "pids"
    assert "killed" in told(python(FAMILY + "time.sleep(600)", str(noted)), message(EVENT))
    pids = noted.read_text().split()
    assert len(pids) == 4
    assert not [pid for pid in pids if lives(pid)]


def test_what_a_command_leaves_behind_that_ends_by_itself_goes_on(tmp_path: Path) -> None:
    noted = tmp_path / "pids"
    assert told(python(FAMILY, str(noted)), message(EVENT)) == ""
    _, *others = noted.read_text().split()
    assert all(lives(pid) for pid in others)
    for pid in others:
        kill(int(pid))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_ends_with_whoever_told_it(number: int, tmp_path: Path) -> None:
    noted = tmp_path / "pids"
    code = "import sys; from zsq.actors.alarm_receivers import Command; Command(sys.argv[1:]).tell({})"
    command = [sys.executable, "-c", FAMILY + "time.sleep(600)", str(noted)]
    with subprocess.Popen([sys.executable, "-c", code, *command]) as teller:
        wait_for(noted.exists, 30, "the command")
        teller.send_signal(number)
    wait_for(lambda: not any(lives(pid) for pid in noted.read_text().split()), 10, "the end of all it started")


def test_a_command_of_a_minder_that_is_killed_as_it_starts_it_does_not_run(tmp_path: Path) -> None:
    """Nobody would end it any more."""
    program = (
        "import os, runpy, select, signal, sys; fork = os.fork\n"
        "def killed():\n"
        "    minder = os.pidfd_open(os.getpid())\n"
        "    if fork():\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    select.select([minder], [], [])\n"
        "    return 0\n"
        "os.fork = killed; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )
    ran = tmp_path / "ran"
    given = os.memfd_create("alarm")
    try:
        command = [sys.executable, "-c", program, alarm_receivers._MINDER, "60", str(given), "/bin/sh", "-c", f"echo > {ran}"]
        minder = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(given,))
        assert minder.communicate(timeout=20)[1] == b"", "both have ended"
    finally:
        os.close(given)
    assert minder.returncode == -signal.SIGKILL
    assert not ran.exists()


def test_what_could_not_be_started_ends_and_does_not_go_on_as_a_second_minder() -> None:
    """It would take the reason from the pipe before the first one has read it."""
    program = (
        "import os, runpy, sys; fdopen = os.fdopen\n"
        "def waits(fd):\n"
        "    os.write(2, b'waits ')\n"
        "    return fdopen(fd, 'rb')\n"
        "os.fdopen = lambda fd, mode: waits(fd); runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )
    given = os.memfd_create("alarm")
    try:
        command = [sys.executable, "-c", program, alarm_receivers._MINDER, "60", str(given), "/nowhere/program"]
        minder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(given,))
        said = minder.communicate(timeout=20)
    finally:
        os.close(given)
    assert said == (b"unstarted No such file or directory", b"waits ")


def test_a_command_whose_minder_is_killed_ends_too(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    code = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()} {os.getppid()}'); time.sleep(600)"
    found: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: found.put(told(python(code, str(noted)), message(EVENT))), daemon=True).start()
    wait_for(lambda: noted.exists() and " " in noted.read_text(), 30, "the command")
    pid, minder = noted.read_text().split()
    kill(int(minder))
    assert "killed" in found.get(timeout=10)
    wait_for(lambda: not lives(pid), 10, "its end")


def test_a_minder_that_is_stopped_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its time is over, and what minds that says nothing: both are killed, and the next alarm can be told."""
    monkeypatch.setattr(alarm_receivers, "TRY_S", 3.0)
    monkeypatch.setattr(alarm_receivers, "_MINDER_S", -1.0)  # so it would not say it itself, were it not stopped
    noted = tmp_path / "pids"
    command = Command(["/bin/sh", "-c", f"echo $$ $PPID > {noted}; kill -STOP $PPID; exec sleep 600"])
    found: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: found.put(told(command, message(EVENT))), daemon=True).start()
    try:
        said = found.get(timeout=10)
    finally:
        pid, minder = noted.read_text().split()
        if lives(minder):
            kill(int(minder))
    assert said == "did not end within 3 s: killed"
    wait_for(lambda: not lives(pid), 10, "its end")


def lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_all_of_them() -> None:
    given = AlarmOptions(webhooks=("http://a/x", "https://b/"), mail_to=("a@x.org", "b@x.org"), commands=(("/bin/tee", "f"),))
    assert [receiver.name for receiver in receivers(given)] == [
        "webhook http://a", "webhook https://b", "mail to a@x.org, b@x.org by 127.0.0.1:25", "command /bin/tee",
    ]  # fmt: skip
