"""Cost of many small idle topics: processes, memory, processor time, sleep, and a restart."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from local_setup.broker import STOP_WAIT_S, LocalBroker, serve_again, temporary_broker
from local_setup.processes import cpu_s
from zsq.transport.client.blocking.client import Admin
from zsq.transport.client.blocking.producer import Producer

from ..harness.report import Report

SETTLE_S: Final = 15.0  # after this time, the first pulses and checkpoints are over
SLEEP_WAIT_S: Final = 180.0
SLEEPY: Final = ("--no-listen", "--sleep-after", "5s")
STARTS: Final = 5
PROBES: Final = 10  # topics to which a message is published, asleep and awake
KINDS: Final = ("topic", "channel", "scan_loop", "scan_worker", "supervisor")


class _Used(NamedTuple):
    wake_ups: int  # the voluntary context switches of all threads, as the kernel counts them
    seconds: float  # the processor time


def topics(broker: LocalBroker, report: Report, count: int, channels: int, seconds: float) -> None:
    """Measure `count` unused topics with `channels` channels each: awake, then asleep."""
    with Admin(broker.url, timeout=120) as admin:
        begin = time.perf_counter()
        for number in range(count):
            for channel in range(channels):
                admin.create_channel(f"topic-{number}", f"channel-{channel}")
        report.add("creation of all", "s", time.perf_counter() - begin)
        time.sleep(SETTLE_S)
        _state(report, admin, seconds, "awake")
        _wait_asleep(admin)
        _state(report, admin, seconds, "asleep")
    for state in ("asleep", "awake"):
        for number in range(min(count, PROBES)):
            report.add(f"publish to a topic: {state}", "ms", _publish_ms(broker.url, number))
    report.add("stop", "s", _stop(broker))
    # Without this file, all topics start.
    (broker.folder / "data" / "asleep").unlink(missing_ok=True)
    begin = time.perf_counter()
    with serve_again(broker, *SLEEPY) as again:
        report.add("start until ready, all topics awake", "s", time.perf_counter() - begin)
        with Admin(again.url, timeout=120) as admin:
            _wait_asleep(admin)
        _stop(again)
    for _ in range(STARTS):
        begin = time.perf_counter()
        with serve_again(broker, *SLEEPY) as again:
            report.add("start until ready, all topics asleep", "s", time.perf_counter() - begin)
            _stop(again)
        begin = time.perf_counter()
        with temporary_broker(*SLEEPY):
            report.add("start until ready, no topics", "s", time.perf_counter() - begin)


def _stop(broker: LocalBroker) -> float:
    """Return the seconds that an orderly end took."""
    broker.process.send_signal(signal.SIGTERM)
    begin = time.perf_counter()
    broker.process.wait(STOP_WAIT_S * 4)
    return time.perf_counter() - begin


def _state(report: Report, admin: Admin, seconds: float, state: str) -> None:
    _idle(report, admin.stats()["processes"], seconds, state)
    rows = admin.stats()["processes"]
    report.add(f"{state}: processes", "", len(rows))
    memory_kib = sum(_pss_kib(row["pid"]) for row in rows)
    report.add(f"{state}: memory of all (PSS)", "MiB", memory_kib / 1024)


def _wait_asleep(admin: Admin) -> None:
    deadline = time.monotonic() + SLEEP_WAIT_S
    while any(row["kind"] == "topic" for row in admin.stats()["processes"]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all topics sleep after {SLEEP_WAIT_S:g} s")
        time.sleep(1.0)


def _publish_ms(url: str, number: int) -> float:
    """Return the milliseconds that the first publish of a new producer takes."""
    with Producer(url) as producer:
        begin = time.perf_counter()
        producer.publish(f"topic-{number}", b"x")
        return (time.perf_counter() - begin) * 1000


def _idle(report: Report, rows: Sequence[Mapping[str, Any]], seconds: float, state: str) -> None:
    before = {row["pid"]: _used(row["pid"]) for row in rows}
    begin = time.perf_counter()
    time.sleep(seconds)
    passed = time.perf_counter() - begin
    wake_ups: Counter[str] = Counter()
    busy_s = 0.0
    for row in rows:
        if not Path(f"/proc/{row['pid']}").exists():
            continue  # this was a scan worker that the pool does not need any more
        now, then = _used(row["pid"]), before[row["pid"]]
        wake_ups[row["kind"]] += now.wake_ups - then.wake_ups
        busy_s += now.seconds - then.seconds
    report.add(f"{state}: processor time of all, share of a core", "%", 100 * busy_s / passed)
    for kind in KINDS:
        number = sum(row["kind"] == kind for row in rows)
        if number:
            report.add(
                f"{state}: wake-ups of a {kind.replace('_', ' ')}",
                "a second",
                wake_ups[kind] / passed / number,
            )


def _used(pid: int) -> _Used:
    wake_ups = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        wake_ups += sum(
            int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches")
        )
    return _Used(wake_ups, cpu_s([pid]))


def _pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
