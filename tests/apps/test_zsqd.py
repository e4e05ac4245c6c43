"""Tests of the launch script with a fake broker: start, stop, status, restarts, and giving up."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

pytestmark = pytest.mark.slow

ZSQD: Final = Path(__file__).resolve().parents[2] / "scripts/zsqd"
BROKER: Final = """
import os, signal, sys
place = sys.argv[sys.argv.index("--data-dir") + 1]
if "--fail" in sys.argv:
    sys.exit("zsq: EADDRINUSE the port is in use")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(f"zsq 0 ready: ipc://{place}/run (pid {os.getpid()})", file=sys.stderr, flush=True)
with open(place + "/told", "w") as told:
    told.write(f"{os.getpid()}\\n")
while True:
    signal.pause()
"""


class Daemon:
    """The command `zsqd` for one data directory."""

    def __init__(self, folder: Path, modules: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"PYTHONPATH": str(modules)}

    def line(self, verb: str, *options: str) -> list[str]:
        return [
            sys.executable,
            str(ZSQD),
            *([verb] if verb else []),
            "--data-dir",
            str(self.folder),
            *options,
        ]

    def __call__(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.line(verb, *options),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def pid(self, role: str) -> int:
        return int(json.loads((self.folder / "zsqd.json").read_text())[role]["pid"])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    double = tmp_path / "modules/zsq"
    double.mkdir(parents=True)
    (double / "__init__.py").write_text("")
    (double / "__main__.py").write_text(BROKER)
    daemon = Daemon(tmp_path / "data", double.parent)
    yield daemon
    assert daemon("stop").returncode == 0
    assert daemon("status").returncode == 3


def kill_and_wait(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    assert select.select([descriptor], [], [], 10)[0]
    os.close(descriptor)


def wait_for_ready(daemon: Daemon, times: int) -> None:
    wait_for_log(daemon, " ready: ", times)


def wait_for_log(daemon: Daemon, text: str, times: int = 1) -> None:
    with subprocess.Popen(
        ["tail", "-n", "+1", "-f", daemon.folder / "log/zsqd.log"],
        stdout=subprocess.PIPE,
        text=True,
    ) as log:
        assert log.stdout is not None
        for line in log.stdout:
            times -= text in line
            if not times:
                break
        log.kill()


def test_the_script_starts_once_reports_its_status_and_stops(daemon: Daemon) -> None:
    assert daemon("status").returncode == daemon("reload").returncode == 3
    started = daemon("start")
    assert (started.returncode, started.stderr) == (0, "")
    assert started.stdout.startswith("zsq 0 ready: ipc://")
    running = daemon("status")
    assert running.returncode == 0
    assert f"serve {daemon.pid('serve')}, guard {daemon.pid('guard')}" in running.stdout
    again = daemon("start")
    assert again.returncode == 0
    assert "already running" in again.stdout
    assert (daemon.folder / "log/zsqd.log").read_text().count("ready:") == 1
    assert daemon("").returncode == 1  # it does not start in the foreground either
    assert daemon("stop").stdout == "zsqd: stopped\n"
    assert daemon("stop").stdout.startswith("zsqd: not running")


def test_a_killed_broker_is_started_again(daemon: Daemon) -> None:
    daemon("start")
    first = daemon.pid("serve")
    kill_and_wait(first)
    wait_for_ready(daemon, 2)
    assert daemon("status").returncode == 0
    assert daemon.pid("serve") != first


def test_a_broker_without_its_guard_can_be_stopped_and_is_not_doubled(daemon: Daemon) -> None:
    daemon("start")
    kill_and_wait(daemon.pid("guard"))
    assert daemon("status").returncode == 0
    assert "already running" in daemon("start").stdout
    assert daemon("stop").returncode == 0


def test_a_broker_that_cannot_start_is_told_and_not_tried_again(daemon: Daemon) -> None:
    failed = daemon("start", "--fail")
    assert failed.returncode == 1
    assert "EADDRINUSE the port is in use" in failed.stderr
    assert daemon("status").returncode == 3


def test_in_front_it_becomes_the_broker(daemon: Daemon) -> None:
    with subprocess.Popen(
        daemon.line(""), env=daemon.environment, stderr=subprocess.PIPE, text=True
    ) as front:
        assert front.stderr is not None
        assert f"(pid {front.pid})" in front.stderr.readline()
        assert daemon("status").returncode == 0
        assert daemon.pid("serve") == front.pid
        front.terminate()
        assert front.wait(10) == 0


def test_a_pid_used_again_is_not_ours(daemon: Daemon) -> None:
    daemon("start")
    state = daemon.folder / "zsqd.json"
    true = state.read_text()
    state.write_text(json.dumps({"serve": {"pid": os.getpid(), "born": "another boot/1"}}))
    assert daemon("status").returncode == 3
    assert daemon("stop").stdout.startswith("zsqd: not running")
    state.write_text(true)
    assert daemon("status").returncode == 0


def test_each_wrong_usage_exits_with_2(daemon: Daemon) -> None:
    assert daemon("jump").returncode == 2
    assert daemon("stop", "--fail").returncode == 2
    assert daemon("stop", "--wait", "long").returncode == 2


@pytest.mark.parametrize("verb", ["start", ""])
def test_the_real_broker_is_started_restarted_and_stopped(tmp_path: Path, verb: str) -> None:
    """With a verb, the broker starts in an empty directory in the background, is killed, and is
    started again. Without a verb, it runs in the foreground, and a signal ends it as a service
    manager would do.
    """
    daemon = Daemon(tmp_path / "data", tmp_path)
    if verb:
        started = daemon("start", "--no-listen")
        assert (started.returncode, started.stderr) == (0, "")
        assert daemon("reload").returncode == 0
        wait_for_log(daemon, " reloaded: ")
        kill_and_wait(daemon.pid("serve"))
        wait_for_ready(daemon, 2)
        assert daemon("status").returncode == 0
        assert daemon("stop").returncode == 0
    else:
        with subprocess.Popen(
            daemon.line("", "--no-listen"),
            env=daemon.environment,
            stderr=subprocess.PIPE,
            text=True,
        ) as front:
            assert front.stderr is not None
            assert f"(pid {front.pid})" in front.stderr.readline()
            front.terminate()
            assert front.wait(30) == 0
    assert daemon("status").returncode == 3


def test_a_note_names_no_process_that_is_not_of_zsq(daemon: Daemon) -> None:
    """zsqd ignores the pid in its file if that process is not from zsq. Otherwise anyone who can
    write the file could choose the process that `zsqd stop` signals.
    """
    state = daemon.folder / "zsqd.json"
    daemon.folder.mkdir(exist_ok=True)
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            stat = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            state.write_text(
                json.dumps({"serve": {"pid": other.pid, "born": f"{boot}/{stat[19]}"}})
            )
            state.chmod(0o600)
            daemon("stop")
            assert other.poll() is None, "it is no process of zsq"
            state.chmod(0o666)
            said = daemon("status")
            assert "has mode 0666: not trusted" in said.stderr
        finally:
            other.kill()


class GuardClock:
    """A guard whose broker ends at once, or after some time, on a simulated clock."""

    def __init__(self, folder: Path, lives_s: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        loader = importlib.machinery.SourceFileLoader("zsqd", str(ZSQD))
        spec = importlib.util.spec_from_loader("zsqd", loader)
        assert spec is not None
        self.zsqd: Any = importlib.util.module_from_spec(spec)
        loader.exec_module(self.zsqd)
        self.now = 0.0
        self.starts: list[float] = []
        self.place = self.zsqd.Place(folder)
        self.place.make()
        fakes = {
            "time": SimpleNamespace(monotonic=lambda: self.now),
            "subprocess": SimpleNamespace(Popen=self._popen),
            "await_signal": lambda wake, seconds: setattr(self, "now", self.now + seconds),
            "signal": SimpleNamespace(
                signal=lambda *_: None, set_wakeup_fd=lambda fd: None, SIGTERM=15, SIGINT=2, SIGHUP=1, SIGCHLD=17,
            ),
        }  # fmt: skip
        for name, fake in fakes.items():
            monkeypatch.setattr(self.zsqd, name, fake)
        self._lives_s = lives_s

    def _popen(self, line: list[str], **_: Any) -> Any:
        begun, life_s = self.now, self._lives_s[len(self.starts) % len(self._lives_s)]
        self.starts.append(begun)
        with self.place.log.open("a") as log:
            log.write("zsq 0 ready: ipc:///run (pid 1)\n")
        child = SimpleNamespace(pid=os.getpid(), returncode=9)
        child.poll = lambda: 9 if self.now >= begun + life_s else None
        return child

    def pauses(self) -> list[float]:
        """Run the guard until it gives up. Return the seconds between an end and the next start."""
        self.zsqd.guard(self.place, ["zsq"])
        return [after - before for before, after in zip(self.starts, self.starts[1:], strict=False)]


def test_the_guard_waits_twice_as_long_before_each_restart_and_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guard = GuardClock(tmp_path / "data", [0.0], monkeypatch)
    assert guard.pauses() == [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]
    assert "the broker ended 11 times in 600 s and stays stopped" in capsys.readouterr().err


def test_the_guard_begins_again_at_a_second_after_a_broker_that_lived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = GuardClock(tmp_path / "data", [0.0, 0.0, 0.0, 65.0], monkeypatch)
    # The fourth broker lives for 65 s, and so does the eighth. 5 s is the guard's longest sleep.
    assert guard.pauses() == [1, 2, 4, 66, 2, 4, 8, 66, 2, 4]
