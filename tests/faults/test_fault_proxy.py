"""Tests of a bucket whose store fails: what each fault of a request does to a client of the bucket.
A real SeaweedFS is behind the fault proxy.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from support.broker import wait_for
from support.fault_proxy import (
    OUTCOMES,
    REFUSE,
    SILENT,
    FaultProxy,
    Faults,
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
        wait_for(lambda: case.proxy.counts().get(fault) == 1)
    if fault.startswith("delay"):
        assert took > 0.4
    counts = case.proxy.counts()
    assert counts[fault] == (times or (4 if raised else 1))
    assert counts["requests"] <= 4
    case.proxy.set_faults(Faults(1))
    if fault.startswith("doubled"):
        wait_for(lambda: case.proxy.counts().get("second_refused") == 1)
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
    wait_for(lambda: case.proxy.counts().get(fault, 0) == expected)


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
