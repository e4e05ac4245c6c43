"""Tests that this version opens the data of each released version, with everything in them.

`fixtures/README.md` says how the fixtures are made, and `subjects.py` what is in the first one.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from support.broker import Broker, wait_for
from support.standby_pair import TOPIC
from support.zsq_command import run_text

import zsq
from tests.compat import counters, scars
from tests.compat.opened import FIXTURES, VERSIONS, clock_of, expected_of, unpack
from tests.compat.subjects import SUBJECTS, Subject, bodies_of, digest_of, finish_all, received

FORMAT: Final = Path(__file__).parents[2] / "storage" / "FORMAT.md"
# Names that exist only while a step is carried out, and are finished or removed by the next start.
MOMENTARY: Final = {
    "state.tmp",
    "delayed.tmp",
    "delayed.rescue",
    "delayed.ready",
    "delayed.attempt",
    "backup/",
    "backup.tmp/",
}


class Opened(NamedTuple):
    broker: Broker
    facts: dict[str, Any]
    channels: dict[str, Any]


@pytest.fixture(scope="module", params=VERSIONS)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    folder = unpack(request.param, "data", tmp_path_factory.mktemp("older"))
    broker = Broker(folder / "data", "--config", str(folder / "zsq.toml"), http=True)
    broker.environment.update(clock_of(request.param, folder))
    with broker:
        yield Opened(broker, expected_of(request.param)["data"], counters.channels(broker))


def test_each_channel_has_its_settings_and_counters(opened: Opened) -> None:
    assert opened.channels == opened.facts["channels"]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_data_directory_of_an_older_version_opens_with_all_that_is_in_it(
    opened: Opened, subject: Subject
) -> None:
    subject.check(opened.broker, opened.facts[subject.name])


def test_what_was_set_aside_as_damaged_is_known(opened: Opened) -> None:
    assert scars.facts(opened.broker) == opened.facts["scars"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_backup_of_an_older_version_can_be_restored(version: str, tmp_path: Path) -> None:
    folder = unpack(version, "data", tmp_path)
    done = run_text("restore", folder / "backup", folder / "restored")
    assert (done.returncode, "damaged" in done.stderr) == (0, False), done.stderr
    assert (folder / "restored" / "registry.json").exists()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_is_restored_from_the_bucket_of_an_older_version(
    version: str, tmp_path: Path
) -> None:
    folder, facts = unpack(version, "bucket", tmp_path), expected_of(version)["bucket"]
    url = f"file://{folder}/bucket"
    checked = run_text("fsck", url)
    assert checked.returncode == 0, checked.stdout
    shown = run_text("rescue", folder / "first", "--show", "--json")
    assert shown.stdout.count("unshipped") == 5 or "dW5zaGlwcGVk" in shown.stdout, shown.stderr
    restored = run_text("restore", url, folder / "data")
    assert restored.returncode == 0, restored.stderr
    broker = Broker(folder / "data", "--bucket", url)
    broker.environment.update(clock_of(version, folder))
    with broker:
        bodies = bodies_of(broker, TOPIC)
        assert (len(bodies), digest_of(bodies)) == (facts["messages"], facts["digest"])
        with zsq.Admin(broker.ipc) as admin:
            assert admin.delayed_count(TOPIC)["messages"] == 1
        with zsq.Consumer(TOPIC, "slow", url=broker.ipc, ready=1) as consumer:
            (message,) = received(consumer, 1)
            assert message.body == bodies[10]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cluster_of_an_older_version_goes_on(version: str, tmp_path: Path) -> None:
    folder, facts = unpack(version, "cluster", tmp_path), expected_of(version)["cluster"]
    place = f"file://{folder}/bucket"
    one, two = (
        Broker(folder / name, "--bucket", f"{place}/{name}", "--cluster", place)
        for name in ("one", "two")
    )
    for broker in (one, two):
        broker.environment.update(clock_of(version, folder))
    with one, two, zsq.Admin(one.tcp) as admin:
        (topic,) = admin.cluster(fresh=True)["topics"]
        assert ([*topic["parts"]], len(topic["moves"])) == ([0, 1], 0)
        wait_for(lambda: all(row["addresses"] for row in admin.cluster(fresh=True)["brokers"]))
        parts = [len(bodies_of(broker, f"t#{part}")) for part, broker in enumerate((one, two))]
        assert parts == facts["parts"]
        with zsq.Consumer("t", "c", url=f"{one.tcp},{two.tcp}") as consumer:
            bodies = finish_all(consumer, 40)
        assert sorted(bodies) == sorted([b"%d" % number for number in range(20)] * 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_kind_of_file_is_in_a_fixture(version: str) -> None:
    """The table at the top of FORMAT.md has all names in the directory of a topic."""
    table = FORMAT.read_text().split("\n\n| name | what |\n|---|---|\n")[1].split("\n\n")[0]
    named = {
        name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    }
    with tarfile.open(FIXTURES / version / "data.tar.xz") as archive:
        stored = [
            name.split("/", 3)[-1] for name in archive.getnames() if name.startswith("data/topics/")
        ]
    missing = {
        name for name in named if not any(re.fullmatch(_pattern(name), one) for one in stored)
    }
    assert missing == MOMENTARY & named


def _pattern(name: str) -> str:
    """Return the expression for a name of the table, whose numbers and KEY stand for any."""
    pieces = re.split(r"[0-9a-f]{32}|[0-9]+|KEY", name)
    return "[0-9a-f]+".join(map(re.escape, pieces))
