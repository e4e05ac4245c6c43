"""Tests of `zsq restore URL`, and of `zsq fsck` and `zsq dump` for what a broker ships."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support import zsq_command
from support.shipping_harness import ARCHIVE, BROKER, ShippingHarness

from zsq.actors.supervisor.topics.registry_format import TopicRow, decode
from zsq.storage.bucket.shipping.tick_format import decode_copy, log_object

pytestmark = pytest.mark.slow

S = 1_000_000_000


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[ShippingHarness]:
    made = ShippingHarness(tmp_path)
    made.now_ns = 1_800_000_000 * S
    made.content.topics["other"] = TopicRow(2, "e" * 32, "always", 0, "live")
    made.content.next_number = 3
    made.open()
    made.take_over()
    made.publish(blocks=4)
    made.channel("one", 3)
    made.delay()
    made.tick(base_object=True)
    made.now_ns += 60 * S
    made.publish(blocks=20)
    made.sync()
    made.archive()
    made.tick()
    yield made
    made.abandon()


def test_a_broker_is_restored_from_its_bucket(shipped: ShippingHarness, tmp_path: Path) -> None:
    url, target = str(shipped.bucket.url), tmp_path / "restored"
    done = zsq_command.run_text("restore", url, "--data-dir", target)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "clicks" in said
    assert "topic other is left out: the bucket has nothing of it" in said
    assert f"next: zsq serve --data-dir {target} --bucket {url}" in said
    assert "newest tick: number" in said
    assert re.search(r"read \d+\.\d MiB in [1-9]\d+ requests", said)
    assert sorted(path.name for path in target.iterdir()) == [
        "registry.json", "shipping.json", "topics",
    ]  # fmt: skip
    content = decode((target / "registry.json").read_bytes(), "")
    assert (content.uuid, content.bucket, list(content.topics)) == (BROKER, ARCHIVE, ["clicks"])
    copy = decode_copy((target / "shipping.json").read_bytes())
    assert (copy.archive, copy.after, copy.digest) == (ARCHIVE, shipped.number, shipped.digest)
    done = zsq_command.run_text("fsck", target)
    assert done.returncode == 0, done.stdout
    again = zsq_command.run_text("restore", url, target)
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)


def test_json_names_what_was_restored(shipped: ShippingHarness, tmp_path: Path) -> None:
    done = zsq_command.run_text(
        "restore", shipped.bucket.url, tmp_path / "new", "--eager", "--json"
    )
    found = json.loads(done.stdout)
    (topic,) = found["topics"]
    assert (found["clean"], found["may_continue"]) == (True, True)
    assert (topic["log_messages"], topic["archived_messages"]) == (len(shipped.bodies), 0)
    assert (topic["channels"], topic["delayed_messages"], topic["problems"]) == (1, 2, [])
    assert found["requests"] > 10
    assert found["received_bytes"] > 10_000
    assert topic["gaps"] == [[shipped.log.end, topic["end"]]]


def test_an_earlier_state_can_be_restored(shipped: ShippingHarness, tmp_path: Path) -> None:
    url = shipped.bucket.url
    at = datetime.fromtimestamp(1_800_000_030, UTC).isoformat()
    done = zsq_command.run_text("restore", url, tmp_path / "old", "--at", at, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["may_continue"], found["topics"][0]["log_messages"]) == (False, 12)
    content = decode((tmp_path / "old" / "registry.json").read_bytes(), "")
    assert content.uuid != BROKER
    done = zsq_command.run_text("restore", url, tmp_path / "none", "--at", "2020-01-01")
    assert done.returncode == 2
    assert "does not cover this time any more" in done.stderr
    assert "2027-01-15" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_check_leaves_nothing_and_finds_damage(shipped: ShippingHarness, tmp_path: Path) -> None:
    url = shipped.bucket.url
    done = zsq_command.run_text("restore", url, "--check")
    assert (done.returncode, f"{url}: complete" in done.stdout) == (0, True), done.stdout
    path = Path(f"{url.folder}/{log_object(shipped.number - 1)}")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    done = zsq_command.run_text("restore", url, "--check")
    assert done.returncode == 1
    assert "is damaged" in done.stdout + done.stderr
    done = zsq_command.run_text("restore", url, tmp_path / "new")
    assert done.returncode == 1
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "new.restoring").exists()


def test_wrong_uses_are_refused(shipped: ShippingHarness, tmp_path: Path) -> None:
    url = shipped.bucket.url
    for arguments, text in (
        ((url,), "give either DATA_DIR"),
        ((url, tmp_path / "a", "--data-dir", tmp_path / "b"), "only once"),
        ((tmp_path, tmp_path / "a", "--eager"), "work only with the URL"),
        ((url, tmp_path / "a", "--at", "17"), "it must be a time"),
        ((url, tmp_path / "a", "--without", "nothing"), "so it cannot be left out"),
        ((f"file://{tmp_path}/data", tmp_path / "a"), "no log of ticks"),
    ):
        done = zsq_command.run_text("restore", *arguments)
        assert done.returncode, arguments
        assert text in done.stderr
    assert not (tmp_path / "a").exists()
    done = zsq_command.run_text("restore", url, tmp_path / "a", "--without", "clicks")
    assert done.returncode == 0
    assert "topic clicks is left out by" not in done.stderr


def test_fsck_checks_the_log_of_ticks(shipped: ShippingHarness) -> None:
    url = str(shipped.bucket.url)
    done = zsq_command.run_text("fsck", url)
    assert done.returncode == 0, done.stdout
    assert "log of ticks: clean (3 ticks, numbers 0 to 6, 1 topics" in done.stdout
    shipped.bucket.create(log_object(2), b"late")
    shipped.bucket.create(f"state/{shipped.uuid}/{1:016x}.{2:08x}", b"")
    done = zsq_command.run_text("fsck", url)
    assert done.returncode == 0, done.stdout
    assert f"note: {log_object(2)}: a late request" in done.stdout
    assert "1 objects that no tick needs" in done.stdout
    (base,) = (name for name in shipped.bucket.names("state/") if "00000001." not in name)
    shipped.bucket.remove([base])
    found = json.loads(zsq_command.run_text("fsck", url, "--json").stdout)
    assert (found["clean"], found["log"]["ticks"]) == (False, 3)
    assert any(
        one["text"].startswith("it is missing; it has the rows") for one in found["findings"]
    )


def test_what_is_shipped_can_be_dumped(shipped: ShippingHarness) -> None:
    url = str(shipped.bucket.url)

    def dumped(name: str, code: int = 0) -> list[dict[str, object]]:
        done = zsq_command.run_text("dump", f"{url}/{name}", "--json")
        assert done.returncode == code, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert [one["kind"] for one in dumped(log_object(0))] == ["takeover"]
    tick = dumped(log_object(5))
    kinds = [one["kind"] for one in tick]
    assert kinds[:3] == ["tick", "registry", "piece"]
    assert "range" in kinds
    (base,) = shipped.bucket.names("state/")
    rows = dumped(base)
    assert {"frame", "checkpoint", "channel", "delayed", "counts"} <= {one["kind"] for one in rows}
    assert [one["name"] for one in rows if one["kind"] == "channel"] == ["one"]
    later = dumped(log_object(6))
    assert "damaged" not in {one["kind"] for one in later}
    shipped.bound()
    (name,) = shipped.bucket.names("boundary/")
    assert dumped(name)[0]["kind"] == "boundary"
    path = Path(f"{shipped.bucket.url.folder}/{log_object(6)}")
    path.write_bytes(b"????" + path.read_bytes()[4:])
    assert dumped(log_object(6), 1)[0]["kind"] == "damaged"
