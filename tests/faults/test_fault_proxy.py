"""Tests of the fault proxy (`support/fault_proxy.py`): its plan, and each fault as a client of the
bucket sees it, with a real SeaweedFS behind the proxy.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import h11
import pytest
from support.fault_proxy import (
    OUTCOMES,
    REFUSE,
    SILENT,
    FaultProxy,
    FaultProxyProcess,
    Faults,
    ProxyFailed,
    operation_of,
)
from support.s3_server import BUCKET, seaweedfs

from zsq.storage.bucket import object_store
from zsq.storage.bucket.bucket import Bucket, BucketAway, BucketError, ObjectExists, ObjectMissing
from zsq.storage.bucket.bucket_url import BucketUrl, parse_bucket_url
from zsq.storage.bucket.object_store import open_bucket

pytest.importorskip("obstore")
# A call ends when its repetitions are used up, however slow the machine is. Only a call that gets
# no answer at all ends by time, after `CALL_S`.
PATIENT_S: Final = 90.0
CALL_S: Final = 3.0
MINE: Final = b"0123456789" * 10


def wait_until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


# The plan.

HALF: Final = Faults(7, matching="^log/", error_500=0.25, lost_answer=0.25, doubled=0.5)


def test_a_plan_depends_on_the_seed_and_the_request_alone() -> None:
    keys = [("create", f"log/{number}", again) for number in range(200) for again in range(3)]
    plan = [HALF.chosen(*key) for key in keys]
    assert plan == [HALF.chosen(*key) for key in keys]
    assert plan != [Faults(8, error_500=0.25, lost_answer=0.25).chosen(*key) for key in keys]
    for name in ("error_500", "lost_answer"):
        assert 100 < sum(chosen.outcome == name for chosen in plan) < 200
    assert 240 < sum(chosen.doubled for chosen in plan) < 360


def test_only_what_matches_has_faults() -> None:
    faults = Faults(7, matching="(^|/)log/", operations=("create", "list"), error_500=1.0)
    assert faults.chosen("create", "a/log/1", 0).outcome == "error_500"
    assert faults.chosen("list", "log/", 0).outcome == "error_500"
    assert faults.chosen("create", "a/chunk/1", 0) == faults.chosen("read", "log/1", 0)
    assert faults.chosen("read", "log/1", 0).outcome == ""


@pytest.mark.parametrize(
    ("method", "target", "headers", "found"),
    [
        ("PUT", "/b/p/log/a%20b", [("If-None-Match", "*")], ("create", "p/log/a b")),
        ("PUT", "/b/c/1?partNumber=2&uploadId=x", [], ("part", "c/1")),
        ("PUT", "/b/c/1", [], ("put", "c/1")),
        ("POST", "/b/c/1?uploads=", [], ("begin_upload", "c/1")),
        ("POST", "/b/c/1?uploadId=x", [], ("complete_upload", "c/1")),
        ("DELETE", "/b/c/1?uploadId=x", [], ("abort_upload", "c/1")),
        ("POST", "/b?delete", [], ("remove_many", "")),
        ("DELETE", "/b/c/1", [], ("remove", "c/1")),
        ("GET", "/b?list-type=2&prefix=p%2Flog%2F", [], ("list", "p/log/")),
        ("GET", "/b/c/1", [], ("read", "c/1")),
        ("HEAD", "/b/c/1", [], ("size", "c/1")),
        ("OPTIONS", "/b", [], ("other", "")),
    ],
)
def test_each_request_of_s3_has_its_operation(
    method: str, target: str, headers: list[tuple[str, str]], found: tuple[str, str]
) -> None:
    head = h11.Request(method=method, target=target, headers=[("Host", "h"), *headers])
    assert operation_of(head) == found


# The proxy, with a small server behind it.


class Echo(BaseHTTPRequestHandler):
    """Answer GET in chunks, and PUT with the length of its body. Note what was asked."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str, int]]

    def do_GET(self) -> None:
        self.asked.append((self.command, self.headers["Host"], 0))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(3):
            self.wfile.write(b"64\r\n" + MINE + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def do_PUT(self) -> None:
        size = len(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.command, self.headers["Host"], size))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[str]:
    Echo.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


def put(url: str, body: bytes = b"") -> int:
    request = urllib.request.Request(f"{url}/b/k", data=body, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def get(url: str) -> bytes:
    with urllib.request.urlopen(f"{url}/b/k", timeout=20) as reply:
        return bytes(reply.read())


def test_the_server_sees_the_host_that_the_client_signed(echo: str) -> None:
    with FaultProxy(echo, Faults(1)) as proxy:
        assert get(proxy.url) == MINE * 3
        assert put(proxy.url, MINE) == 200
    host = f"127.0.0.1:{proxy.port}"
    assert Echo.asked == [("GET", host, 0), ("PUT", host, len(MINE))]
    assert proxy.counts() == {"requests": 2, "forwarded": 2, "late_pending": 0}


def test_a_body_of_unknown_length_is_cut(echo: str) -> None:
    with (
        FaultProxy(echo, Faults(1, cut_body=1.0, faults_max=1)) as proxy,
        contextlib.closing(socket.create_connection(("127.0.0.1", proxy.port))) as client,
    ):
        client.sendall(b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n")
        found = b"".join(iter(lambda: client.recv(4096), b""))
        assert found.count(b"0123456789") < 30
        assert not found.endswith(b"0\r\n\r\n")
        assert get(proxy.url) == MINE * 3


def test_faults_have_a_limit_and_a_journal(echo: str) -> None:
    with FaultProxy(echo, Faults(1, error_500=1.0, faults_max=2)) as proxy:
        assert [put(proxy.url) for _ in range(4)] == [500, 500, 200, 200]
        proxy.set_faults(Faults(1, error_503=1.0, faults_max=1))
        assert [put(proxy.url) for _ in range(2)] == [503, 200]
    assert [row.fault for row in proxy.journal()] == ["error_500", "error_500", "error_503"]
    assert {row[2:] for row in proxy.journal()} == {("put", "k")}


@pytest.mark.parametrize("kind", [FaultProxy, FaultProxyProcess])
def test_the_store_goes_away_and_comes_back(
    echo: str, kind: type[FaultProxy | FaultProxyProcess]
) -> None:
    with kind(echo, Faults(1)) as proxy, ThreadPoolExecutor(1) as pool:
        assert put(proxy.url) == 200
        proxy.away(REFUSE)
        with pytest.raises(OSError, match="refused"):
            put(proxy.url)
        proxy.back()
        assert put(proxy.url) == 200
        proxy.away(SILENT)
        waiting = pool.submit(put, proxy.url)
        wait_until(lambda: proxy.counts()["requests"] == 3)
        proxy.back()
        with pytest.raises(OSError, match=r"Remote|reset"):
            waiting.result(10)
        proxy.set_faults(Faults(1, error_500=1.0))
        proxy.away(REFUSE)
        proxy.heal()
        assert put(proxy.url) == 200
    assert len(Echo.asked) == 3
    assert proxy.counts() == {"requests": 4, "forwarded": 3, "late_pending": 0}
    assert proxy.journal() == []
    with pytest.raises(ProxyFailed, match="has stopped"):
        proxy.away()


PARENT: Final = """
import sys, threading
from support.fault_proxy import Faults, FaultProxyProcess
with FaultProxyProcess(sys.argv[1], Faults(1)) as proxy:
    print(proxy.process.pid, flush=True)
    threading.Event().wait(60)
"""


@pytest.mark.slow
def test_the_process_of_a_proxy_ends_with_its_parent(echo: str) -> None:
    folders = os.pathsep.join(path for path in sys.path if path)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, echo],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": folders},
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        proxy = Path(f"/proc/{int(parent.stdout.readline())}/cmdline")
        assert b"fault_proxy.py" in proxy.read_bytes()
        parent.send_signal(signal.SIGKILL)
        parent.wait(20)
        # A process that has ended and that nobody waits for has an empty command line.
        wait_until(lambda: not proxy.exists() or not proxy.read_bytes())


# The faults, with SeaweedFS behind the proxy.


class Case:
    """One bucket of SeaweedFS, seen directly and through the proxy."""

    def __init__(self, url: BucketUrl, direct: Bucket, proxy: FaultProxy) -> None:
        self._url = url
        self.direct = direct
        self.bucket = open_bucket(url, call_s=PATIENT_S)
        self.proxy = proxy

    def hasty(self) -> Bucket:
        """Return a bucket whose calls fail after `CALL_S` without an answer. It is connected."""
        bucket = open_bucket(self._url, call_s=CALL_S)
        with contextlib.suppress(BucketAway):
            list(bucket.names("none/"))
        return bucket

    def faults(self, faults_max: int | None = None, **probabilities: float) -> None:
        self.proxy.set_faults(Faults(1, faults_max=faults_max, **probabilities))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as environment:
        yield dict(environment)


@pytest.fixture
def case(
    server: dict[str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Case]:
    prefix = "".join(one for one in request.node.name if one.isalnum())
    url = parse_bucket_url(f"s3://{BUCKET}/{prefix}")
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    direct = open_bucket(url)
    # The first requests to a server on a busy machine may take seconds, which is not tested here.
    direct.create("warm", b"")
    direct.remove(["warm"])
    with FaultProxy(server["AWS_ENDPOINT_URL"], Faults(1)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setattr(object_store, "RETRY_S", PATIENT_S)
        yield Case(url, direct, proxy)
        assert "origin_failed" not in proxy.counts()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "times", "raised", "stored"),
    [
        ("error_500", 1, None, True),
        ("error_500", None, BucketAway, False),
        ("error_503", 1, None, True),
        ("error_503", None, BucketAway, False),
        ("lost_request", 1, None, True),
        ("lost_request", None, BucketAway, False),
        # The library repeats the request, and finds the object of its first one.
        ("error_after", 1, ObjectExists, True),
        ("error_after", None, BucketAway, True),
        ("lost_answer", 1, ObjectExists, True),
        ("lost_answer", None, BucketAway, True),
        # After a time-out it does not repeat it.
        ("timed_out_answer", 1, BucketAway, True),
        ("conflict_409", 1, ObjectExists, True),
        ("conflict_412", 1, ObjectExists, True),
        # The only answer that says that the object exists although it does not.
        ("error_409", 1, ObjectExists, False),
        ("doubled", None, None, True),
        ("doubled_late", None, None, True),
        ("delay_before", None, None, True),
        ("delay_after", None, None, True),
    ],
)
def test_each_fault_of_a_create(
    case: Case, fault: str, times: int | None, raised: type[BucketError] | None, stored: bool
) -> None:
    is_silent = fault == "timed_out_answer"
    bucket = case.hasty() if is_silent else case.bucket
    case.faults(times, **{fault: 1.0})
    begun = time.monotonic()
    with contextlib.nullcontext() if raised is None else pytest.raises(raised) as caught:
        bucket.create("log/1", MINE)
    took = time.monotonic() - begun
    assert caught is None or type(caught.value) is raised
    if is_silent:
        assert took < PATIENT_S / 2
        wait_until(lambda: case.proxy.counts().get(fault) == 1)
    if fault.startswith("delay"):
        assert took > 0.4
    counts = case.proxy.counts()
    assert counts[fault] == (times or (4 if raised else 1))
    assert counts["requests"] <= 4
    case.proxy.set_faults(Faults(1))
    if fault.startswith("doubled"):
        wait_until(lambda: case.proxy.counts().get("second_refused") == 1)
    assert list(case.direct.names("log/")) == (["log/1"] if stored else [])
    if stored:
        assert case.direct.read("log/1") == MINE


@pytest.mark.slow
@pytest.mark.parametrize("fault", [name for name in OUTCOMES if "409" not in name])
def test_each_fault_of_a_read(case: Case, fault: str) -> None:
    case.direct.create("log/1", MINE)
    bucket = case.hasty() if fault == "timed_out_answer" else case.bucket
    calls: list[Callable[[], object]] = [
        lambda: bucket.read("log/1"),
        lambda: bucket.read("log/1", 10, 20),
        lambda: bucket.size("log/1"),
        lambda: list(bucket.names("log/")),
    ]
    wanted = [MINE, MINE[10:30], len(MINE), ["log/1"]]
    for call, found in zip(calls, wanted, strict=True):
        case.faults(1, **{fault: 1.0})
        try:
            assert call() == found
        except BucketAway:
            # Nothing is repeated after a time-out, nor after half of a list.
            assert fault == "timed_out_answer" or (fault == "cut_body" and found == ["log/1"])
    expected = {"conflict_412": 0, "cut_body": 3}.get(fault, 4)
    wait_until(lambda: case.proxy.counts().get(fault, 0) == expected)


@pytest.mark.slow
def test_a_cut_body_is_never_taken_for_the_whole(case: Case) -> None:
    case.direct.create("log/1", MINE)
    case.faults(cut_body=1.0)
    with pytest.raises(BucketAway):
        case.bucket.read("log/1")
    with pytest.raises(BucketAway):
        case.bucket.read("log/1", 10, 20)


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["begin_upload", "part", "complete_upload"])
@pytest.mark.parametrize("fault", ["error_500", "error_after", "lost_answer", "doubled"])
def test_an_upload_in_parts_survives_faults(
    case: Case, fault: str, operation: str, tmp_path: Path
) -> None:
    path = tmp_path / "chunk"
    content = os.urandom(17 * 1024 * 1024)
    path.write_bytes(content)
    plan = {fault: 1.0, "operations": (operation,), "faults_max": 1}
    case.proxy.set_faults(Faults(1, **plan))  # type: ignore[arg-type]
    case.bucket.upload("chunk/1", str(path))
    assert case.bucket.read("chunk/1") == content
    assert case.proxy.counts()[fault] == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["error_after", "lost_answer", "doubled", "cut_body"])
def test_a_removal_survives_faults(case: Case, fault: str) -> None:
    for name in ("log/1", "log/2", "log/3"):
        case.direct.create(name, b"")
    case.proxy.set_faults(Faults(1, matching="/log/[12]$", faults_max=1, **{fault: 1.0}))  # type: ignore[arg-type]
    case.bucket.remove(["log/1", "log/2"])
    assert list(case.direct.names("log/")) == ["log/3"]
    assert case.proxy.counts()[fault] == 1


CLIENT: Final = """
import sys, threading
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.object_store import open_bucket
open_bucket(parse_bucket_url(sys.argv[1])).create("log/1", b"late")
print("created", flush=True)
threading.Event().wait(60)
"""


@pytest.mark.slow
def test_a_late_request_arrives_after_its_client_is_dead(case: Case) -> None:
    case.faults(doubled_late=1.0, late_s_min=2.0, late_s_max=2.0)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(case.bucket.url)], stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    with client.stdout:
        assert client.stdout.readline() == "created\n"
        client.kill()
        client.wait(20)
    case.direct.remove(["log/1"])
    assert list(case.direct.names("log/")) == []
    case.proxy.wait_late(20.0)
    assert case.proxy.counts()["second_succeeded"] == 1
    assert case.direct.read("log/1") == b"late"


@pytest.mark.slow
def test_a_store_that_is_away_is_away_for_the_bucket(case: Case) -> None:
    hasty = case.hasty()
    for how in (REFUSE, SILENT):
        case.proxy.away(how)
        begun = time.monotonic()
        with pytest.raises(BucketAway):
            hasty.create("log/1", MINE)
        with pytest.raises(BucketAway):
            hasty.size("log/1")
        assert time.monotonic() - begun < PATIENT_S / 2
        case.proxy.back()
        with pytest.raises(ObjectMissing):
            case.bucket.size("log/1")
    case.bucket.create("log/1", MINE)


WRITERS: Final = 4
NAMES: Final = 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_mixture_of_faults_gives_a_name_to_two_writers(case: Case, seed: int) -> None:
    case.proxy.set_faults(
        Faults(
            seed, error_500=0.1, error_503=0.1, lost_request=0.1, error_after=0.1, lost_answer=0.1,
            conflict_409=0.05, conflict_412=0.05, cut_body=0.1, doubled=0.2, doubled_late=0.2,
            late_s_min=0.1, late_s_max=1.0, delay_before=0.1, delay_after=0.1, delay_s=0.05,
        )
    )  # fmt: skip

    def written(writer: int, number: int) -> bool | None:
        try:
            case.bucket.create(f"log/{number}", b"%d" % writer)
        except ObjectExists:
            return False
        except BucketAway:
            return None
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        runs = [pool.map(written, [writer] * NAMES, range(NAMES)) for writer in range(WRITERS)]
        results = list(zip(*runs, strict=True))
    case.proxy.heal()
    case.proxy.wait_late(20.0)
    for number, row in enumerate(results):
        winners = [writer for writer in range(WRITERS) if row[writer]]
        assert len(winners) <= 1
        if any(result is not None for result in row):
            kept = int(case.direct.read(f"log/{number}"))
            assert not winners or winners == [kept]
    counts = case.proxy.counts()
    injected = (*OUTCOMES, *("doubled", "doubled_late", "delay_before", "delay_after"))
    assert {name for name in injected if name not in counts} <= {
        "error_409", "timed_out_answer", "conflict_409", "conflict_412"
    }  # fmt: skip
    assert "second_succeeded" not in counts
