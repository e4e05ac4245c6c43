"""Cost of many topics that nobody uses: creation, awake, with consumers, asleep, and starts."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from local_setup.broker import STOP_WAIT_S, LocalBroker, serve_again
from zsq.transport.client.blocking.client import Admin, Consumer, Producer

from ..harness.report import Report
from ..harness.usage import Usage, footprint, memory_mib, used_s
from ..peers import nsq_client, nsq_peers, redis

PEERS: Final = ("nsqd", "redis")
AWAKE: Final = "awake"
CONNECTED: Final = "a consumer on each channel"
ASLEEP: Final = "asleep"
CREATION: Final = "creation of all"
START: Final = "start until ready"
STAY_AWAKE: Final = ("--no-http", "--no-nsq", "--sleep-after", "none")
SLEEPY: Final = ("--no-http", "--no-nsq", "--sleep-after", "5s")
SLEEP_WAIT_S: Final = 180.0
TIMEOUT_S: Final = 120.0
PROBES: Final = 10  # topics to which a message is published; topics by which memory is estimated
MEMORY_SHARE_MAX: Final = 0.8  # of the memory that is available

Places = list[tuple[str, str]]


def places(count: int, channels: int) -> Places:
    """Return `channels` channels of each of `count` topics."""
    return [(f"topic-{topic}", f"channel-{n}") for topic in range(count) for n in range(channels)]


def create(broker: LocalBroker, channels: Places) -> float:
    """Create the channels one after another, with their topics. Return the seconds."""
    with Admin(broker.url, timeout=TIMEOUT_S) as admin:
        begin = time.perf_counter()
        for topic, channel in channels:
            admin.create_channel(topic, channel)
        return time.perf_counter() - begin


def quiet(
    broker: LocalBroker,
    report: Report,
    channels: Places,
    seconds: float,
    rounds: int,
    *,
    connected: bool = True,
) -> None:
    """Measure unused channels of a broker that runs with STAY_AWAKE, and then `rounds` starts."""
    usage = Usage(broker.process.pid)
    report.add(CREATION, "s", create(broker, channels))
    report.add(f"{CREATION}: processor time", "s", sum(usage.seconds().values()))
    _settled(report, AWAKE, broker.process.pid, seconds)
    with ExitStack() as stack:
        for topic, channel in channels if connected else ():
            stack.enter_context(Consumer(topic, channel, url=broker.url)).receive(timeout=0)
        if connected:
            _settled(report, CONNECTED, broker.process.pid, seconds)
    stop(broker)
    starts(broker, report, rounds)


def starts(broker: LocalBroker, report: Report, rounds: int) -> None:
    """Measure starts of a broker that has ended. All its topics start with it."""
    for _ in range(rounds):
        begin = time.perf_counter()
        with serve_again(broker, *STAY_AWAKE) as again:
            report.add(START, "s", time.perf_counter() - begin)
            report.add(f"{START}: processor time", "s", used_s(again.process.pid))
            stop(again)


def asleep(broker: LocalBroker, report: Report, channels: Places, seconds: float) -> None:
    """Measure a broker that has ended, when all its topics sleep and when some wake up."""
    with serve_again(broker, *SLEEPY) as again:
        with Admin(again.url, timeout=TIMEOUT_S) as admin:
            deadline = time.monotonic() + SLEEP_WAIT_S
            while not all(row["asleep"] for row in admin.stats()["topics"]):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not all topics sleep after {SLEEP_WAIT_S:g} s")
                time.sleep(1.0)
        _settled(report, ASLEEP, again.process.pid, seconds)
        for state in (ASLEEP, AWAKE):
            for topic in list(dict.fromkeys(topic for topic, _ in channels))[:PROBES]:
                report.add(f"publish to a topic, {state}", "ms", _publish_ms(again.url, topic))


def too_small(broker: LocalBroker, count: int) -> str:
    """Return the reason why `count` topics with a channel do not fit into the memory, or "".

    It is estimated from the first ones, which stay.
    """
    before = memory_mib(broker.process.pid)
    create(broker, places(min(PROBES, count), 1))
    each = (memory_mib(broker.process.pid) - before) / min(PROBES, count)
    needed, available = each * count, _available_mib()
    if needed <= available * MEMORY_SHARE_MAX:
        return ""
    return (
        f"left out: {count:,} topics would need about {needed:,.0f} MiB, and {available:,.0f} MiB "
        "are available"
    )


def beside_nsqd(report: Report, folder: Path, channels: Places, seconds: float = 0.0) -> None:
    """Measure the same channels in nsqd, if it is on PATH. Without `seconds`, only the creation."""
    if (program := nsq_peers.find()) is None:
        return
    with nsq_peers.nsqd(program, "nsqd", folder) as (port, pid), ExitStack() as stack:
        make = lambda topic, channel: nsq_client.make_channel(port, topic, channel)  # noqa: E731
        report.add(f"nsqd: {CREATION}", "s", _timed(channels, make))
        if seconds:
            _settled(report, f"nsqd: {AWAKE}", pid, seconds)
            for topic, channel in channels:
                link = stack.enter_context(nsq_client.subscribe(port, topic, channel))
                link.sendall(b"RDY 1\n")
            _settled(report, f"nsqd: {CONNECTED}", pid, seconds)


def beside_redis(report: Report, folder: Path, channels: Places, seconds: float) -> None:
    """Measure as many streams and groups in Redis, if it is on PATH."""
    if (program := redis.find()) is None:
        return
    with redis.running(program, folder) as path, redis.Client(path) as client:

        def make(topic: str, channel: str) -> None:
            names = (topic.encode(), channel.encode())
            client.ask([(b"XGROUP", b"CREATE", *names, b"0", b"MKSTREAM")])

        report.add(f"redis: {CREATION}", "s", _timed(channels, make))
        [answer] = client.ask([(b"INFO", b"server")])
        pid = int(answer.partition(b"process_id:")[2].split()[0])
        _settled(report, f"redis: {AWAKE}", pid, seconds)


def _timed(channels: Places, make: Callable[[str, str], None]) -> float:
    begin = time.perf_counter()
    for topic, channel in channels:
        make(topic, channel)
    return time.perf_counter() - begin


def _settled(report: Report, name: str, root: int, seconds: float) -> None:
    """Report the footprint after as many seconds, in which the first pulses and syncs end."""
    time.sleep(seconds)
    footprint(report, name, root, seconds)


def stop(broker: LocalBroker) -> None:
    broker.process.send_signal(signal.SIGTERM)
    broker.process.wait(STOP_WAIT_S * 4)


def _publish_ms(url: str, topic: str) -> float:
    """Return the milliseconds that the first publish of a new producer takes."""
    with Producer(url) as producer:
        begin = time.perf_counter()
        producer.publish(topic, b"x")
        return (time.perf_counter() - begin) * 1000


def _available_mib() -> float:
    lines = Path("/proc/meminfo").read_text()
    return int(lines.partition("MemAvailable:")[2].split()[0]) / 1024
