"""Tests of `zsq doctor`: each finding under simulated conditions, and the whole command on this
machine.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from support import s3_server

import zsq
from zsq.apps.doctor import disk as doctor_disk
from zsq.apps.doctor import net as doctor_net
from zsq.apps.doctor import object_stores
from zsq.apps.doctor import system as doctor
from zsq.apps.doctor.system import ADVICE, OK, PROBLEM, CheckResult
from zsq.storage.errors import REFUSED_TEXT
from zsq.storage.files import Files


def levels(found: Iterator[CheckResult]) -> list[str]:
    return [finding.level for finding in found]


@pytest.mark.parametrize(
    ("version", "requirement", "right"),
    [
        ("26.0", "pyzmq>=26,<28", True),
        ("27.3.1", "pyzmq<28,>=26", True),
        ("28.0.0", "pyzmq<28,>=26", False),
        ("25.9", "pyzmq>=26", False),
        ("1.0.8", "msgpack>=1.0.8,<2", True),
        ("2.9.post0", "crc32c<3,>=2.7", True),
        ("8.10", "click>=8.9", True),
        ("1.2.0", "a==1.2", True),
        ("5", "anything", True),
    ],
)
def test_each_version_is_checked_against_its_requirement(
    version: str, requirement: str, right: bool
) -> None:
    assert doctor.satisfies(version, requirement) is right


def test_a_library_that_is_missing_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"pyzmq": "26.1", "click": "7.0", "starlette": "0.50", "setuptools": "65.5"}
    required = [
        "pyzmq>=26",
        "click>=8.1",
        "lmdb>=1.6",
        'cramjam>=2.9; extra == "nsq"',
        'setuptools>=77; extra == "test"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda _: required)

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError
        return there[name]

    monkeypatch.setattr(metadata, "version", version)
    found = list(doctor.libraries())
    assert [finding.text for finding in found if finding.level == PROBLEM] == [
        "click 7.0 is installed, but click>=8.1 is needed",
        "lmdb is missing",
    ]
    assert [finding.text for finding in found if finding.level == ADVICE] == [
        "not installed: snappy for NSQ clients",
        "not installed: permissions from NSQ auth servers",
    ]


@pytest.mark.parametrize(
    ("version", "level"), [((4, 3, 4), PROBLEM), ((4, 3, 5), OK), ((4, 4, 0), OK), ((5, 0, 0), OK)]
)
def test_an_old_libzmq_is_a_problem_and_a_missing_curve_is_advice(
    version: tuple[int, int, int], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zmq

    monkeypatch.setattr(zmq, "zmq_version_info", lambda: version)
    assert levels(doctor.libzmq()) == [level]
    monkeypatch.setattr(zmq, "has", lambda what: what != "curve")
    assert levels(doctor.libzmq()) == [PROBLEM if level == PROBLEM else ADVICE]


@pytest.mark.parametrize(
    ("hard", "level"), [(1024, PROBLEM), (4096, ADVICE), (65_536, OK), (-1, OK)]
)
def test_a_low_limit_of_open_files_is_reported(
    hard: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (512, hard))
    assert levels(doctor.open_files()) == [level]


def test_low_limits_of_processes_and_memory_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, -1))
    assert [finding.text for finding in doctor.processes(tmp_path)] == ["no limit is set"]
    for path, text in {
        "proc/sys/kernel/pid_max": "32768",
        "sys/fs/cgroup/pids.max": "512\n",
        "sys/fs/cgroup/memory.max": "max",
        "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1048576 kB\n",
        "proc/sys/vm/overcommit_memory": "2",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    [finding] = doctor.processes(tmp_path)
    assert (finding.level, finding.text[:3]) == (ADVICE, "512")
    assert levels(doctor.memory(tmp_path)) == [OK, ADVICE]
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(str(256 << 20))
    assert levels(doctor.memory(tmp_path)) == [ADVICE, ADVICE]


def test_an_unsynchronised_or_wrong_clock_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_unsynchronised", lambda: False)
    assert levels(doctor.clock()) == [OK]
    monkeypatch.setattr(doctor, "_unsynchronised", lambda: True)
    assert levels(doctor.clock()) == [ADVICE]
    monkeypatch.setattr(doctor, "YEAR_MIN", 3000)
    assert levels(doctor.clock()) == [PROBLEM]


def test_a_check_that_fails_is_a_finding() -> None:
    def fails() -> Iterator[CheckResult]:
        yield CheckResult(OK, "odd", "fine")
        raise OSError("no /proc here")

    found = doctor.examined({"odd": fails, "good": lambda: iter([CheckResult(OK, "good", "fine")])})
    assert [finding.level for finding in found] == [OK, ADVICE, OK], "what it had found stays"
    assert doctor.worst(found) == ADVICE
    assert doctor.worst([]) == OK

    def disk_fails() -> Iterator[CheckResult]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    assert doctor.worst(doctor.examined({"data directory": disk_fails})) == PROBLEM


# The disk

TABLE = """/dev/sda1 / ext4 rw,relatime 0 0
tmpfs /run tmpfs rw 0 0
server:/x /mnt/far nfs4 rw 0 0
/dev/sdb /mnt/fast\\040disk xfs rw,nobarrier 0 0
/dev/sdc /mnt/old ext4 ro 0 0
overlay /mnt/layer overlay rw 0 0
/dev/sdc /mnt/stick exfat rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind", "level"),
    [
        ("/var/lib/zsq", "ext4", OK),
        ("/run/zsq", "tmpfs", PROBLEM),
        ("/running", "ext4", OK),
        ("/mnt/far/zsq", "nfs4", ADVICE),
        ("/mnt/fast disk/zsq", "xfs", PROBLEM),
        ("/mnt/old", "ext4", PROBLEM),
        ("/mnt/layer", "overlay", ADVICE),
        ("/mnt/stick", "exfat", PROBLEM),
    ],
)
def test_each_file_system_is_judged_by_its_mount(
    path: str, kind: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = doctor_disk.mount_of(path, doctor_disk.mounts(TABLE))
    assert mount is not None
    assert mount.kind == kind
    monkeypatch.setattr(doctor_disk, "there", lambda _: Path(path))
    monkeypatch.setattr(os.path, "realpath", lambda _: path)
    assert levels(doctor_disk.file_system(Path(path), TABLE)) == [level]


def test_each_fault_of_a_data_directory_is_reported(tmp_path: Path) -> None:
    def said(path: Path) -> tuple[str, str]:
        found = list(doctor_disk.directory(path))
        return found[-1].level, found[-1].text

    assert said(tmp_path / "new")[0] == OK
    assert said(tmp_path / "no" / "new")[0] == PROBLEM
    data = tmp_path / "data"
    data.mkdir(0o755)
    assert levels(doctor_disk.directory(data)) == [ADVICE, OK], "open to others, and empty"
    data.chmod(0o700)
    (data / "holiday.jpg").write_bytes(b"x")
    assert said(data)[0] == PROBLEM
    (data / "registry.json").write_text("{}")
    assert said(data)[0] == PROBLEM
    row = {"number": 1, "uuid": "a" * 32, "sync": "always", "base_offset": 0, "state": "live"}
    content: dict[str, Any] = {
        "version": 1,
        "uuid": "b" * 32,
        "node": 0,
        "next_number": 2,
        "topics": {"clicks": row},
        "ended": {},
    }
    (data / "registry.json").write_text(json.dumps(content))
    assert "clicks are missing" in said(data)[1]
    (data / "topics/000001").mkdir(parents=True)
    assert said(data)[1].endswith("1 topics, no broker runs on it")
    lock = Files().lock(str(data / "lock"))
    assert said(data)[1].endswith(f"its broker is process {os.getpid()}")
    Files().close(lock)


def test_little_space_and_unusual_sync_times_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = doctor_disk.sync_times(tmp_path, 5)
    assert len(times) == 5
    assert list(tmp_path.iterdir()) == []
    for typical, level in ((0.000_001, ADVICE), (0.001, OK), (0.2, ADVICE)):
        monkeypatch.setattr(doctor_disk, "sync_times", lambda _, typical=typical: [typical] * 100)
        assert levels(doctor_disk.syncs(tmp_path)) == [level]
    gib = 1 << 18  # in blocks of 4 KiB
    for free, level in ((gib // 2, PROBLEM), (3 * gib, ADVICE), (30 * gib, OK)):
        found = os.statvfs_result((4096, 4096, 100 * gib, free, free, 0, 0, 0, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda _, found=found: found)
        assert levels(doctor_disk.space(tmp_path)) == [level]


# Ports and brokers


def test_a_taken_or_unusable_port_is_reported() -> None:
    with socket.socket() as mine, socket.socket() as other:
        mine.bind(("127.0.0.1", 0))
        mine.listen(1)
        other.bind(("127.0.0.1", 0))
        taken, free = mine.getsockname()[1], other.getsockname()[1]
        other.close()
        assert doctor_net.owners(taken) == {os.getpid()}
        found = list(doctor_net.ports([f"127.0.0.1:{taken}", f"127.0.0.1:{free}"], 0))
        assert levels(iter(found)) == [ADVICE, OK]
        assert f"(pid {os.getpid()})" in found[0].text
        assert levels(doctor_net.ports([f"127.0.0.1:{taken}"], os.getpid())) == [OK]
        assert levels(doctor_net.ports(["192.0.2.1:4153"], 0)) == [PROBLEM]


def test_each_fault_of_a_running_broker_is_reported() -> None:
    topic = {"topic_name": "t", "health": "OK"}
    answer: Any = {
        "version": zsq.__version__,
        "pid": 1,
        "topics": [topic],
        "processes": [],
        "alarms": [],
    }
    assert levels(doctor_net.health(answer)) == [OK]
    answer |= {
        "version": "0.0.1",
        "alarms": [{"topic": "t", "channel": "c", "text": "t/c: depth 3"}],
    }
    answer["processes"] = [{"name": "topic t", "restarts": 7}]
    topic["health"] = "failed again"
    assert levels(doctor_net.health(answer)) == [OK, ADVICE, PROBLEM, ADVICE, ADVICE]
    topic["health"] = "alarm: t/c: depth 3"
    found = list(doctor_net.health(answer))
    assert levels(iter(found)) == [OK, ADVICE, ADVICE, ADVICE], "a backlog alarm is no problem"
    assert [one.text for one in found].count("alarm: t/c: depth 3") == 1


def test_a_silent_broker_is_a_problem_only_when_it_is_expected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"ipc://{tmp_path}/run"
    assert levels(doctor_net.broker(url, 0.1, expected=True)) == [PROBLEM]
    assert levels(doctor_net.broker(url, 60, expected=False)) == [OK]
    assert not caplog.records, "nothing says that it waits"


def test_the_command_reports_all_findings_as_json(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "zsq", "doctor", str(tmp_path / "data"), "--json", "--timeout", "0.2", "--listen", "192.0.2.1:1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    found = json.loads(ended.stdout)
    assert ended.returncode == 1, "nobody can listen there"
    assert found["well"] is False
    seen = {finding["what"] for finding in found["findings"]}
    assert {
        "python",
        "libzmq",
        "libraries",
        "open files",
        "processes",
        "memory",
        "clock",
        "file system",
        "sync latency",
        "ports",
    } <= seen
    assert not (tmp_path / "data").exists()


def test_a_full_disk_is_one_finding() -> None:
    why = (
        "the disk is full: publishes to topic big are refused: /data is on a file system with "
        "2.0 MiB free"
    )
    alarms = [
        {"topic": "", "channel": "", "text": why},
        {"topic": "mail", "channel": "c", "text": "mail/c: depth 7"},
    ]
    topics = [
        {"topic_name": "big", "health": REFUSED_TEXT},
        {"topic_name": "mail", "health": "failed"},
    ]
    answer: Any = {
        "version": zsq.__version__,
        "pid": 1,
        "topics": topics,
        "alarms": alarms,
        "disk": {"full": why},
    }
    found = list(doctor_net.health(answer))
    assert [finding.text for finding in found[1:]] == [
        why,
        "topic mail: failed",
        "alarm: mail/c: depth 7",
    ]
    answer = {"version": zsq.__version__, "pid": 1, "topics": [], "alarms": alarms[:1]}
    [_, alarm] = doctor_net.health(answer)
    assert alarm.text == f"alarm: {why}"


def bucket_finding(url: str, environment: dict[str, str]) -> tuple[int, CheckResult]:
    done = subprocess.run(
        [sys.executable, "-m", "zsq", "doctor", "--json", "--bucket", url],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=os.environ | environment,
    )
    assert done.stdout, done.stderr
    rows = json.loads(done.stdout)["findings"]
    (row,) = [row for row in rows if row["what"] == "bucket"]
    return done.returncode, CheckResult(**row)


def test_a_folder_is_checked_as_a_bucket(tmp_path: Path) -> None:
    code, found = bucket_finding(f"file://{tmp_path}/bucket", {})
    assert (code, found.level) == (1, PROBLEM)
    assert "does not exist; create or mount it" in found.text
    (tmp_path / "bucket").mkdir()
    _, found = bucket_finding(f"file://{tmp_path}/bucket", {})
    assert found.level == OK
    assert f"file://{tmp_path}/bucket is fit: a small object is written in" in found.text
    assert list((tmp_path / "bucket").iterdir()) == []


def test_a_bucket_that_does_not_answer_is_a_problem() -> None:
    environment = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "top-secret",
    }
    code, found = bucket_finding("s3://events/a", environment)
    assert (code, found.level) == (1, PROBLEM)
    assert "the check failed: s3://events/a/probe/" in found.text
    assert "top-secret" not in found.text
    assert "endpoint" in found.advice


@pytest.mark.parametrize("endpoint", ["127.0.0.1:8333", "http://127.0.0.1:abc"])
def test_a_wrong_endpoint_is_a_problem(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**s3_server.environment(9), "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    (found,) = object_stores.bucket(object_stores.checked("s3://events/a"))
    assert found.level == PROBLEM


def test_a_full_temporary_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    (found,) = object_stores.bucket(object_stores.checked("s3://events/a"))
    assert (found.level, found.text) == (PROBLEM, "no temporary file: No space left on device")
    assert "9 MiB" in found.advice


def test_a_bucket_without_obstore_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    (found,) = object_stores.bucket(object_stores.checked("s3://events/a"))
    assert (found.level, found.advice) == (PROBLEM, "install it: pip install 'zsq[bucket]'")


@pytest.mark.slow
def test_a_real_store_is_fit_and_one_without_conditional_writes_is_not(tmp_path: Path) -> None:
    with s3_server.seaweedfs(tmp_path / "seaweedfs") as environment:
        code, found = bucket_finding(f"s3://{s3_server.BUCKET}/a", dict(environment))
        assert found.level == OK, found
        assert "SeaweedFS" in found.text
        code, found = bucket_finding("s3://no-such-bucket/a", dict(environment))
        assert (code, found.level) == (1, PROBLEM)
        assert "AccessDenied" in found.text
    with s3_server.rclone(tmp_path / "rclone") as environment:
        code, found = bucket_finding(f"s3://{s3_server.BUCKET}/a", dict(environment))
        assert (code, found.level) == (1, PROBLEM)
        assert found.text.startswith("not fit")
        assert "newer version" in found.advice
        code, found = bucket_finding("s3://no-such-bucket/a", dict(environment))
        assert (code, found.level) == (1, PROBLEM)
        assert "check that the bucket exists" in found.advice
