"""Make the fixtures of this version: data that every later version must open.

    cd tests && PYTHONPATH=. ../.venv/bin/python -m compat.make_fixtures

It writes `fixtures/zsq-VERSION/`, and replaces what is there. It takes about a minute, and needs
GNU tar, which keeps the holes of sparse files.

* `data.tar.xz`: a data directory (`subjects.py`, `scars.py`), the access file and the configuration
  of its broker, and a backup of it.
* `bucket.tar.xz`: the bucket of a broker whose log files have left the disk, which a standby has
  taken over. `standby/` is the directory of the standby before that, and `first/` is that of the
  former primary: it has set aside what it had not shipped.
* `cluster.tar.xz`: two brokers and their buckets, with a topic of two parts. One of them was moved.
* `expected.json`: what must be found.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from support.broker import Broker, wait_for
from support.cluster import running
from support.standby_pair import TOPIC, Pair
from support.zsq_command import run_text

import zsq
from zsq.actors.security.access import token_hash

from . import counters, scars
from .opened import EXPECTED, FIXTURES
from .subjects import FAR_S, SUBJECTS, TOKEN, bodies_of, digest_of, finish_all

ACCESS: Final = f"""\
[users.viewer]
tokens = ["{token_hash(TOKEN)}"]
view = ["*"]

[anonymous]
publish = ["producers"]
"""
CONFIG: Final = """\
node-id = 5
keep-bytes = "20GiB"
max-msg-size = "2MiB"
access = "access.toml"

[alarm]
depth = 100_000
age = "400d"
"""
BUCKET_BODIES: Final = [b"%d " % number + b"." * 1_000 for number in range(500)]
UNSHIPPED: Final = [b"unshipped %d" % number for number in range(5)]


@contextmanager
def _kept(*brokers: Broker) -> Iterator[None]:
    try:
        yield
    finally:
        for broker in brokers:
            broker.close()


def _run(*arguments: object) -> None:
    done = run_text(*arguments, timeout_s=120)
    assert done.returncode == 0, done.stderr


def make_data(folder: Path) -> dict[str, Any]:
    (folder / "access.toml").write_text(ACCESS)
    (folder / "zsq.toml").write_text(CONFIG)
    facts: dict[str, Any] = {}
    options = ("--config", str(folder / "zsq.toml"))
    first = Broker(folder / "data", *options, "--chunk-bytes", "64KiB")
    second = Broker(folder / "data", *options)
    with _kept(first, second):
        first.start()
        for subject in SUBJECTS:
            if not subject.late:
                facts[subject.name] = subject.make(first)
        scars.make(first)
        assert first.stop() == 0
        scars.scar(first.data_dir)
        second.start()
        for subject in SUBJECTS:
            if subject.late:
                facts[subject.name] = subject.make(second)
        scars.wait_met(second)
        facts["scars"] = scars.facts(second)
        facts["channels"] = counters.channels(second)
        _run("backup", second.data_dir, folder / "backup")
        assert second.stop() == 0
    (folder / "data" / "reserve").unlink()
    return facts


def make_bucket(folder: Path) -> dict[str, Any]:
    pair = Pair(folder, "--chunk-bytes", "64KiB", "--keep-bytes", "128KiB")
    try:
        pair.begin()
        pair.two.stop()
        shutil.copytree(pair.two.data_dir, folder / "standby", ignore=shutil.ignore_patterns("run"))
        pair.two.launch()
        with zsq.Admin(pair.one.ipc) as admin, zsq.Producer(pair.one.ipc) as producer:
            admin.create_channel(TOPIC, "slow", start="earliest")
            for begin in range(0, len(BUCKET_BODIES), 50):
                producer.publish_many(TOPIC, BUCKET_BODIES[begin : begin + 50])
            producer.publish(TOPIC, b"later", delay=FAR_S)
            with zsq.Consumer(TOPIC, "slow", url=pair.one.ipc, ready=1) as consumer:
                finish_all(consumer, 10)
            wait_for(lambda: len([*pair.one.data_dir.glob("topics/*/*.chunk")]) <= 4, 60)
            pair.wait_shipped(pair.one)
            wait_for(lambda: pair.status(pair.two)["takes_over_in_s"] >= 0)
            (pid,) = pair.one.pids("archive")
            os.kill(pid, signal.SIGSTOP)
            for body in UNSHIPPED:
                producer.publish(TOPIC, body, key=b"key")
        pair.one.signal_all(signal.SIGKILL)
        pair.two.wait_ready()
        bodies = bodies_of(pair.two, TOPIC)
        assert pair.two.stop() == 0
    finally:
        pair.close()
    _run("rescue", folder / "one", "--bucket", f"file://{folder}/bucket")
    for path in [*(folder / "one").iterdir()]:
        if path.name in ("reserve", "run", "tmp"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / "one").rename(folder / "first")
    return {"digest": digest_of(bodies), "messages": len(bodies)}


def make_cluster(folder: Path) -> dict[str, Any]:
    keys = [b"%d" % number for number in range(20)]
    with running(folder) as cluster, zsq.Admin(cluster.url) as admin:
        admin.create_topic("t", parts=2, brokers=[0])
        admin.create_channel("t", "c")
        with zsq.Producer(cluster.url) as producer:
            producer.publish_many("t", keys, keys=keys)
            admin.move_part("t#1", 1)

            def is_moved() -> bool:
                (topic,) = admin.cluster(fresh=True)["topics"]
                return [*topic["parts"]] == [0, 1] and not topic["moves"]

            wait_for(is_moved, 60)
            producer.publish_many("t", keys, keys=keys)
        parts = [len(bodies_of(broker, f"t#{part}")) for part, broker in enumerate(cluster.brokers)]
        for broker in cluster.brokers:
            assert broker.stop() == 0
    for name in ("one", "two"):
        (folder / name / "reserve").unlink()
    return {"parts": parts}


def _pack(folder: Path, names: list[str], target: Path) -> None:
    command = [
        "tar",
        "-S",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "-C",
        str(folder),
    ]
    target.unlink(missing_ok=True)
    environment = {**os.environ, "XZ_OPT": "-9e"}
    subprocess.run([*command, "-cJf", str(target), *names], check=True, env=environment)


def main() -> None:
    target = FIXTURES / f"zsq-{zsq.__version__}"
    target.mkdir(exist_ok=True)
    expected: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="zsq-fixtures-") as root:
        for name, make, names in (
            ("data", make_data, ["data", "backup", "access.toml", "zsq.toml"]),
            ("bucket", make_bucket, ["bucket", "standby", "first"]),
            ("cluster", make_cluster, ["bucket", "one", "two"]),
        ):
            folder = Path(root) / name
            folder.mkdir()
            expected[name] = make(folder)
            _pack(folder, names, target / f"{name}.tar.xz")
    expected["made_s"] = int(time.time())
    (target / EXPECTED).write_text(json.dumps(expected, separators=(",", ":")) + "\n")
    for path in sorted(target.iterdir()):
        print(f"{path.stat().st_size:>8} {path.name}")


if __name__ == "__main__":
    main()
