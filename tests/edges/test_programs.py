"""Tests of the ends of small programs: each is started as a user starts it, and ends in some way.

`programs.py` has the programs, and `outcomes.py` what comes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from support.broker import Broker, wait_for

import zsq

from .outcomes import COMPLETE, CONSUMED, CUT, DRAINS, HELD, OTHER, OTHER_COLUMNS, WARNS, of_held
from .programs import (
    CONSUMING_ENDINGS,
    ENDINGS,
    MESSAGES,
    consumer_program,
    consuming_program,
    other_program,
    producer_program,
)

WAIT_S: Final = 90.0
# The link of a consumer that was closed ends at once. Without a word, it ends after 60 s.
AT_ONCE_S: Final = 20.0
CHANNELS: Final = tuple(f"c{number}" for number in range(len(HELD)))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("edges") / "data") as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[zsq.Admin]:
    with zsq.Admin(broker.tcp) as one:
        for topic in ("plain", "lingering", "delayed", "work"):
            one.create_topic(topic)
        yield one


@pytest.fixture(scope="module")
def channels(admin: zsq.Admin) -> None:
    for channel in CHANNELS:
        admin.create_channel("work", channel)


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


def run_all(folder: Path, programs: dict[str, str]) -> dict[str, Ended]:
    """Run these programs at the same time. None of their processes may be left."""
    started = {}
    try:
        for number, (name, text) in enumerate(programs.items()):
            path = folder / f"program{number}.py"
            path.write_text(text)
            started[name] = subprocess.Popen(
                [sys.executable, "-W", "default::ResourceWarning", str(path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        ended = {}
        for name, process in started.items():
            output, errors = process.communicate(timeout=WAIT_S)
            ended[name] = Ended(process.returncode, output, errors)
            wait_for(partial(is_gone, process.pid), what=f"{name}: the end of all")
        return ended
    finally:
        for process in started.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def is_gone(group: int) -> bool:
    """Return True if no process of this group lives."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def code_of(ended: Ended) -> int:
    """Return the exit code as a shell shows it, of the child if the program names it."""
    child = re.search(r"^code (-?\d+)$", ended.output, re.MULTILINE)
    code = int(child[1]) if child else ended.code
    return code if code >= 0 else 128 - code


def check(name: str, ended: Ended, wanted: Any, ending: str) -> None:
    """Check what the program itself shows."""
    said = f"{name}: {ended}"
    assert "Exception ignored" not in ended.errors, said
    assert "not confirmed" not in ended.errors, said
    if wanted.code is not None:
        assert code_of(ended) == wanted.code, said
    if ending == "dropped":
        assert "descriptors 0\n" in ended.output, said
        assert ("was dropped without close()" in ended.errors) == (wanted.what == WARNS), said


def bodies(url: str, topic: str) -> Counter[str]:
    """Return how often each body is in a topic."""
    found: Counter[str] = Counter()
    with zsq.Reader(topic, url=url) as reader:
        offset, head = reader.bounds()
        while offset < head:
            fetched = reader.read(offset)
            for block in fetched.blocks:
                found.update((body or b"").decode() for body in block.body.values())
            offset = fetched.next_offset
    return found


def delayed_count(admin: zsq.Admin, topic: str) -> int:
    return admin.delayed_count(topic)["messages"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_producer_sends_what_it_has(
    ending: str, broker: Broker, admin: zsq.Admin, tmp_path: Path
) -> None:
    names = {holding: f"{ending}, {holding}" for holding in HELD}
    delayed = {topic: delayed_count(admin, topic) for topic in ("plain", "delayed")}
    programs = {
        name: producer_program(broker.tcp, name, holding, ending) for holding, name in names.items()
    }
    ended = run_all(tmp_path, programs)
    plain, lingering = bodies(broker.tcp, "plain"), bodies(broker.tcp, "lingering")
    complete = 0
    for holding, name in names.items():
        wanted = of_held(holding, ending)
        check(name, ended[name], wanted, ending)
        assert plain[name] == 1, ended[name]
        sent = wanted.what != CUT
        complete += sent
        assert lingering[name] == (MESSAGES if sent else 0), f"{name}: {ended[name]}"
    assert delayed_count(admin, "plain") == delayed["plain"] + len(names)
    # A delayed message is sent at once, so it may be stored even if the program is killed.
    assert delayed_count(admin, "delayed") >= delayed["delayed"] + complete


def fill(url: str, admin: zsq.Admin) -> None:
    """Let each channel have ten messages."""
    for channel in CHANNELS:
        admin.empty("work", channel)
    with zsq.Producer(url) as producer:
        producer.publish_many("work", [b"%d" % number for number in range(MESSAGES)])


def wait_given_back(admin: zsq.Admin, channels: dict[str, str]) -> dict[str, int]:
    """Wait until the consumers of these channels are gone. Return how many messages are left."""
    left: dict[str, int] = {}

    def are_gone() -> bool:
        [topic] = [one for one in admin.stats("work")["topics"] if one["topic_name"] == "work"]
        for row in topic["channels"]:
            if not row["in_flight_count"] and not row["client_count"]:
                left[row["channel_name"]] = row["depth"]
        return left.keys() >= {*channels.values()}

    try:
        wait_for(are_gone, AT_ONCE_S)
    except AssertionError:
        held = [name for name, channel in channels.items() if channel not in left]
        raise AssertionError(f"these hold their messages for {AT_ONCE_S} s: {held}") from None
    return left


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_consumer_gives_back_what_it_holds(
    ending: str, broker: Broker, admin: zsq.Admin, channels: None, tmp_path: Path
) -> None:
    fill(broker.tcp, admin)
    of = dict(zip(HELD, CHANNELS, strict=True))
    programs = {
        holding: consumer_program(broker.tcp, channel, holding, ending)
        for holding, channel in of.items()
    }
    ended = run_all(tmp_path, programs)
    left = wait_given_back(admin, of)
    for holding, channel in of.items():
        wanted = of_held(holding, ending)
        check(holding, ended[holding], wanted, ending)
        # A killed program may not have sent its finish.
        counts = {MESSAGES - 1, MESSAGES} if wanted.what == CUT else {MESSAGES - 1}
        assert left[channel] in counts, f"{holding}: {ended[holding]}"


@pytest.mark.parametrize("ending", CONSUMING_ENDINGS)
def test_each_way_to_consume_ends(
    ending: str, broker: Broker, admin: zsq.Admin, channels: None, tmp_path: Path
) -> None:
    fill(broker.tcp, admin)
    of = dict(zip(CONSUMED, CHANNELS, strict=False))
    programs = {
        way: consuming_program(broker.tcp, channel, way, ending) for way, channel in of.items()
    }
    ended = run_all(tmp_path, programs)
    left = wait_given_back(admin, of)
    for way, channel in of.items():
        wanted = CONSUMED[way][ending]
        check(way, ended[way], wanted, ending)
        assert MIN_FINISHED[wanted.what](MESSAGES - left[channel]), f"{way}: {ended[way]}"


MIN_FINISHED: Final[dict[str, Callable[[int], bool]]] = {
    # An event loop may handle what it has before it learns of the signal.
    COMPLETE: lambda finished: 1 <= finished < MESSAGES,
    DRAINS: lambda finished: finished >= 2,
    CUT: lambda finished: finished <= 1,
}


@pytest.mark.parametrize("ending", OTHER_COLUMNS)
def test_other_clients_leave_nothing(
    ending: str, broker: Broker, admin: zsq.Admin, tmp_path: Path
) -> None:
    version = OTHER_COLUMNS.index(ending)
    programs = {client: other_program(broker.tcp, version, client, ending) for client in OTHER}
    ended = run_all(tmp_path, programs)
    for client in OTHER:
        check(client, ended[client], OTHER[client][ending], ending)


# Without a broker, the program says what it could not send.

LOST: Final = """\
import zsq

def work():
    producer = zsq.Producer("tcp://127.0.0.1:1", linger_ms=60_000, timeout=60)
    for _ in range(10):
        producer.publish("t", b"lost")
{held}
work()
"""


@pytest.mark.parametrize("held", ["", "    global kept\n    kept = producer\n"])
def test_a_program_says_how_many_messages_it_could_not_send(held: str, tmp_path: Path) -> None:
    [ended] = run_all(tmp_path, {"lost": LOST.format(held=held)}).values()
    assert ended.code == 0
    assert re.search(r"program0.py:4\): at the end of the program: ", ended.errors), ended
    assert "10 published messages are not confirmed" in ended.errors, ended


STRICT: Final = """\
import warnings
warnings.simplefilter("error")
import zsq

def work():
    producer = zsq.Producer({url!r}, linger_ms=600_000)
    producer.publish("strict", b"sent")

work()
"""


def test_a_warning_that_is_an_error_loses_nothing(
    broker: Broker, admin: zsq.Admin, tmp_path: Path
) -> None:
    [ended] = run_all(tmp_path, {"strict": STRICT.format(url=broker.tcp)}).values()
    assert "ResourceWarning: zsq.Producer was dropped without close()" in ended.errors
    assert bodies(broker.tcp, "strict") == {"sent": 1}
