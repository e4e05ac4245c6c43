"""Tests of the parts of the benchmarks: shapes of the load, medians and ratios, and processes that
start at the same time.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.harness import machine
from benchmarks.harness.crew import Crew, MemberFailed
from benchmarks.harness.loads import Shape, Start, make_bodies
from benchmarks.harness.report import Report, percentile
from benchmarks.harness.usage import Usage, footprint
from benchmarks.peers import limits, redis
from local_setup import environment

pytestmark = pytest.mark.slow


def test_bodies_differ_and_have_their_size() -> None:
    bodies = make_bodies(Shape(5_000, 200, 1000))
    assert len(set(bodies)) == 5_000
    assert {len(body) for body in bodies} == {200}
    assert Shape(2_001, 200, 1000).blocks == 3


def test_a_percentile_is_a_value_of_the_sample() -> None:
    values = [float(number) for number in range(100)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([1.0], 0.999)) == (
        50.0,
        99.0,
        1.0,
    )


def test_a_report_has_medians_and_ratios_of_the_same_unit() -> None:
    from rich.console import Console

    report = Report("e2e", {"size": "200 B"}, {"cpu": "one"})
    for value in (3.0, 1.0, 2.0):
        report.add("ours", "messages/s", value)
    report.add("limit", "messages/s", 4.0, limit=True)
    report.add("another", "ms", 5.0, limit=True)
    ours, limit, _ = json.loads(report.as_json())["measures"]
    assert (ours["median"], ours["ratios"], limit["ratios"]) == (2.0, {"limit": 0.5}, {})
    out = io.StringIO()
    report.show(Console(file=out, width=160))
    assert "0.50" in out.getvalue()


def test_a_measure_may_be_held_against_one_limit_only() -> None:
    from rich.console import Console

    report = Report("spark", {}, {"cpu": "one"})
    report.add("read limit", "rows/s", 4.0, limit=True)
    report.add("write limit", "rows/s", 10.0, limit=True)
    report.add("read", "rows/s", 3.0, against="read limit")
    out = io.StringIO()
    report.show(Console(file=out, width=160))
    assert json.loads(report.as_json())["measures"][2]["ratios"] == {"read limit": 0.75}
    assert "0.75 read limit" in out.getvalue()


def test_the_machine_is_described(tmp_path: Path) -> None:
    found = machine.describe(tmp_path)
    assert {"cpu", "cores", "kernel", "file system", "nsqd", "redis-server", "nats-server"} <= set(
        found
    )
    assert all(found.values())
    assert "--enable-optimizations" in found["python"]


def later(start: Start, seconds: float) -> tuple[float, float]:
    ready = time.monotonic()
    start()
    return ready, time.monotonic() + seconds


def fail(start: Start) -> None:
    start()
    raise ValueError("in the middle")


def test_a_crew_starts_together() -> None:
    with Crew() as crew:
        crew.add(later, 1.0)
        crew.add(later, 2.0)
        begun = crew.go()
        results = crew.results()
    assert all(ready <= begun <= end - 1.0 for ready, end in results)


def work(start: Start, seconds: float) -> None:
    start()
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_the_processor_time_of_each_member_is_known() -> None:
    with Crew() as crew:
        crew.add(later, 0.0)
        crew.add(work, 0.2)
        crew.go()
        crew.results()
    waiting, working = crew.cpu_s
    assert waiting < 0.2 <= working


def test_the_processor_time_of_a_server_is_that_of_all_its_processes() -> None:
    usage = Usage(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        used = usage.seconds()
        child.communicate(b"\n")
    assert used[child.pid] >= 0.2
    assert usage.by_kind({os.getpid(): "test"})["test"] > 0


def test_the_footprint_of_a_process_is_reported() -> None:
    report = Report("idle", {}, {})
    footprint(report, "awake", os.getpid(), 0.1)
    measures = {name: measure.median for name, measure in report.measures.items()}
    assert measures["awake: processes"] >= 1
    assert measures["awake: memory (PSS)"] > 1
    assert measures["awake: wake-ups"] > 0
    assert 0 < measures["awake: processor time"] < 100


def test_a_failing_member_is_told() -> None:
    with Crew() as crew:
        crew.add(fail)
        crew.go()
        with pytest.raises(MemberFailed, match="ValueError: in the middle"):
            crew.results()


def test_the_limits_of_the_machine_are_measured(tmp_path: Path) -> None:
    shape = Shape(2_000, 200, 100)
    assert limits.disk_rate(shape, tmp_path) > 0
    assert limits.raw_rate(shape) > 0
    assert len(limits.sync_seconds(100, 3, tmp_path)) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(redis.find() is None, reason="redis-server is not on PATH")
def test_redis_does_the_same_work(tmp_path: Path) -> None:
    server = redis.find()
    assert server is not None
    for produces, consumes in ((True, True), (True, False), (False, True)):
        assert redis.rate(server, tmp_path, Shape(2_000, 200, 100), produces, consumes) > 0
    assert list(tmp_path.iterdir()) == []


SMALL = {
    "paced": ("--seconds", "0.3", "--share", "50"),
    "hops": ("--messages", "5000", "--blocks", "500"),
    "parts": ("--messages", "2000"),
}


@pytest.mark.parametrize("name", SMALL)
def test_each_benchmark_runs_and_leaves_no_files(name: str, tmp_path: Path) -> None:
    line = [
        sys.executable,
        "-P",
        "-m",
        "benchmarks",
        name,
        "--rounds",
        "1",
        "--json",
        "--folder",
        str(tmp_path),
        *SMALL[name],
    ]
    ended = subprocess.run(
        line, capture_output=True, text=True, timeout=100, check=False, env=environment()
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["benchmark"] == name
    # On a busy machine a thread may find work each time, and never wait. Another may do nothing.
    assert all(
        measure["median"] > 0 or "/block" in measure["unit"] for measure in found["measures"]
    )
    assert list(tmp_path.iterdir()) == []
