"""Tests of `zsq fsck URL`: its report, its exit code, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import zsq_command
from support.archive_harness import ArchiveHarness, fill

from zsq.storage.bucket.archive.archive_format import Manifest, chunk_object
from zsq.storage.bucket.archive.claim import claim
from zsq.storage.bucket.archive.manifests import Manifests
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.object_store import open_bucket
from zsq.storage.cluster.directory import BrokerEntry, TopicEntry, entry_object
from zsq.storage.cluster.directory_log import DirectoryLog

pytestmark = pytest.mark.slow

BROKER = "b" * 32


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[ArchiveHarness]:
    made = ArchiveHarness(tmp_path)
    made.open()
    fill(made)
    claim(made.bucket, BROKER, "", "c" * 32)
    rows = made.archive()
    end = made.log.synced_end
    Manifests(made.bucket).write(
        Manifest("clicks", made.uuid, BROKER, "run", 1, 0, end, tuple(rows))
    )
    yield made
    made.abandon()


def test_a_whole_archive_is_clean_and_a_damaged_one_is_not(archive: ArchiveHarness) -> None:
    url = str(archive.bucket.url)
    done = zsq_command.run_text("fsck", url)
    assert done.returncode == 0, done.stderr
    assert f"belongs to the broker with uuid {BROKER}" in done.stdout
    assert "clicks: clean (5 chunks, offsets 0 to " in done.stdout
    row = archive.opened.archived[0]
    name = chunk_object(archive.uuid, 0, row.crc)
    path = Path(f"{archive.bucket.url.folder}/{name}")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    done = zsq_command.run_text("fsck", url, "clicks")
    assert done.returncode == 1
    assert "clicks: 1 DAMAGED" in done.stdout
    assert f"damage: {name}: the checksum of segments [0] is wrong" in done.stdout
    found = json.loads(zsq_command.run_text("fsck", url, "--json").stdout)
    assert (found["clean"], found["topics"][0]["clean"]) == (False, False)
    assert found["topics"][0]["findings"][0]["name"] == name


def test_each_object_of_a_bucket_can_be_dumped(archive: ArchiveHarness) -> None:
    url, row = str(archive.bucket.url), archive.opened.archived[0]
    name = chunk_object(archive.uuid, 0, row.crc)

    def dumped(name: str, code: int = 0) -> list[dict[str, object]]:
        done = zsq_command.run_text("dump", f"{url}/{name}", "--json")
        assert done.returncode == code, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    chunk = dumped(name)
    assert chunk[0]["kind"] == "chunk"
    assert chunk[-1]["kind"] == "footer"
    assert [one["kind"] for one in dumped(f"{name}.index")] == ["index object", "segment"]
    manifest, *rows = dumped(f"manifest/{archive.uuid}/{1:020d}")
    assert (manifest["kind"], manifest["topic"], manifest["chunks"]) == ("manifest", "clicks", 5)
    assert rows[0] == {"kind": "chunk", **row._asdict()}
    assert dumped("broker.json")[0]["uuid"] == BROKER
    path = Path(f"{archive.bucket.url.folder}/manifest/{archive.uuid}/{1:020d}")
    path.write_bytes(path.read_bytes().replace(b"clicks", b"clocks"))
    assert dumped(f"manifest/{archive.uuid}/{1:020d}", 1)[0]["kind"] == "damaged"
    done = zsq_command.run_text("dump", f"{url}/chunk")
    assert (done.returncode, "does not name an object of zsq" in done.stderr) == (2, True)
    done = zsq_command.run_text("dump", f"{url}/chunk/{archive.uuid}/nothing")
    assert done.returncode == 1
    assert "nothing" in done.stderr


def test_an_entry_of_the_directory_of_a_cluster_can_be_dumped(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    entry = TopicEntry("1" * 32, "clicks", "2" * 32, (0,), {"sync": "bucket"})
    broker = BrokerEntry("3" * 32, "4" * 32, ("tcp://a:4153",))
    log = DirectoryLog(open_bucket(parse_bucket_url(url)))
    for one in (broker, entry):
        log.append(one)
    done = zsq_command.run_text("dump", f"{url}/{entry_object(1)}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "kind": "directory",
        "entry": "topic",
        "version": 1,
        **json.loads(json.dumps(entry._asdict())),
        "brokers": [0],
    }


def test_what_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    done = zsq_command.run_text("fsck", f"file://{tmp_path}", "--repair")
    assert done.returncode == 2
    assert "--repair works only with a data directory" in done.stderr
    done = zsq_command.run_text("fsck", f"file://{tmp_path}")
    assert (done.returncode, "no topics" in done.stdout) == (0, True)
    done = zsq_command.run_text("fsck", "ftp://x")
    assert done.returncode == 2
    assert "s3://" in done.stderr
    done = zsq_command.run_text("fsck", f"{tmp_path}/missing")
    assert done.returncode == 2
    assert "does not exist" in done.stderr
