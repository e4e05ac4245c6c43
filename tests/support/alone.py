"""A package that lacks extensions, and a short test of each extension.

`EXTENSIONS` says which rooms an extension has, and `WOVEN_IN` which rooms the core still imports,
although they belong to an extension. `tests/process/test_core_alone.py` and `./scripts/prove
core-alone` use both.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

import zsq

from .broker import Broker, wait_for
from .nsq_socket import NsqSocket

ROOT: Final = Path(__file__).resolve().parents[2]
PARTS: Final = (
    "__init__.py", "__main__.py", "py.typed", "actors", "aio", "apps", "inbox", "outbox",
    "pyspark_zsq", "storage", "testing", "transport",
)  # fmt: skip


@dataclass(frozen=True)
class Extension:
    """An extension: the rooms that only it has, and its test in a broker.

    `options` are those with which the broker must start for the test.
    """

    rooms: Sequence[str]
    test: Callable[[Broker], None]
    options: Sequence[str] = ()


def _nsq(broker: Broker) -> None:
    with NsqSocket(broker.nsq) as client:
        assert client.ask("PUB of-nsq", b"x") == "OK"


def _http(broker: Broker) -> None:
    url = f"http://127.0.0.1:{broker.http}"
    assert httpx.post(f"{url}/pub?topic=of-http", content=b"x").text == "OK"
    assert "zsq_topic_depth" in httpx.get(f"{url}/metrics").text


def _alarms(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("of-alarms", "c")
        producer.publish_many("of-alarms", [b"x"] * 3)
        wait_for(lambda: admin.stats("of-alarms")["alarms"], 20, "the alarm")


def _schedules(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Consumer("of-schedules", "c", url=broker.ipc) as all_:
        admin.create_topic("of-schedules")
        admin.schedule_add("of-schedules", "yearly", "0 0 1 1 *", b"x")

        def is_run() -> bool:
            try:
                admin.schedule_run("of-schedules", "yearly")
            except zsq.Refused:  # the scheduler is being started
                return False
            return True

        wait_for(is_run, 20, "the scheduler")
        message = all_.receive(20)
        assert message is not None
        assert message.body == b"x"


def _bucket(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        wait_for(lambda: admin.stats()["bucket"]["shipping"] == "open", 20, "the bucket")
    assert any((broker.data_dir.parent / "bucket").rglob("*"))


EXTENSIONS: Final = {
    "bucket": Extension(("actors/bucket", "storage/bucket"), _bucket),
    "NSQ": Extension(("actors/gateways/nsq", "apps/nsqd"), _nsq),
    "HTTP": Extension(("actors/gateways/http", "apps/console"), _http),
    "alarms": Extension(("actors/alarms",), _alarms, ("--alarm-depth", "2", "--alarm-hold", "0s")),
    "schedules": Extension(("actors/schedules",), _schedules),
}
# Rooms that several extensions use, and that no room of the core imports.
SHARED: Final = (
    "actors/gateways/shared", "apps/dump", "apps/iceberg.py", "apps/integrations", "apps/spark",
    "inbox", "outbox", "pyspark_zsq", "storage/nsq", "transport/nsq",
)  # fmt: skip
# Rooms of extensions that the core still imports, with what imports them.
WOVEN_IN: Final = {
    "actors/supervisor/cluster": "the commands about parts (actors/supervisor/commands/parts.py)",
    "storage/cluster": "the same commands",
    "storage/staging": "the storage of a topic (Spark's sink, and transactions)",
    "transport/client/core/stage_session.py": "the clients (the same)",
    "apps/cli/run/option_table.py": "the command line: it has the options of all extensions",
    "actors/settings/options.py": "the extensions: it has the classes of their options",
    "actors/statistics/schema.py": "all reports: it has the rows of NSQ",
}


def package_without(rooms: Sequence[str], folder: Path) -> Path:
    """Make a copy of the package that lacks these rooms. Return the folder for PYTHONPATH."""
    package = folder / "zsq"
    package.mkdir(parents=True)
    for name in PARTS:
        if (ROOT / name).is_dir():
            # Compiled modules stay valid. Another process may be about to rename a new one.
            unfinished = shutil.ignore_patterns("*.pyc.*")
            shutil.copytree(ROOT / name, package / name, ignore=unfinished)
        else:
            shutil.copy2(ROOT / name, package / name)
    for room in rooms:
        if (package / room).is_dir():
            shutil.rmtree(package / room)
        else:
            (package / room).unlink()
    return folder


def installed_without(rooms: Sequence[str], folder: Path) -> Path:
    """Build the wheel of such a copy, and unpack it. Return the folder for PYTHONPATH."""
    source = package_without(rooms, folder / "source") / "zsq"
    for name in ("README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    text = (ROOT / "pyproject.toml").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("packages = ")]
    packages = [
        name
        for name in tomllib.loads(line)["packages"]
        if (source / name.removeprefix("zsq").removeprefix(".").replace(".", "/")).is_dir()
    ]
    (source / "pyproject.toml").write_text(text.replace(line, f"packages = {packages}"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    offline = ("--no-deps", "--no-index")
    build = (
        *pip,
        "wheel",
        *offline,
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(source),
    )
    subprocess.run(build, check=True, timeout=300, cwd=folder)
    [wheel] = folder.glob("zsq-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def rooms_of_all() -> list[str]:
    """Return the rooms that the core does without."""
    return [*SHARED, *(room for extension in EXTENSIONS.values() for room in extension.rooms)]


def run_core(broker: Broker) -> None:
    """Publish, consume, kill the broker, recover, and seek."""
    with zsq.Admin(broker.ipc) as admin:
        admin.create_channel("t", "c")
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many("t", [b"%d" % number for number in range(100)])
        producer.publish("t", b"later", delay=0.5)
    with zsq.Consumer("t", "c", url=broker.ipc) as consumer:
        for number in range(40):
            message = consumer.receive(20)
            assert message is not None
            assert message.body == b"%d" % number
            message.finish()
        consumer.flush()
    pids = [actor["pid"] for actor in broker.actors()]
    assert broker.process is not None
    broker.process.kill()
    broker.process.wait(20)
    broker.wait_gone(pids)
    broker.start()
    with zsq.Admin(broker.ipc) as admin, zsq.Consumer("t", "c", url=broker.ipc) as consumer:
        bodies = {message.body for _, message in zip(range(61), consumer, strict=False)}
        assert bodies == {*(b"%d" % number for number in range(40, 100)), b"later"}
        assert admin.seek("t", "c", 99) == {"offset": 99}
        again = [message.body for _, message in zip(range(2), consumer, strict=False)]
        assert again == [b"99", b"later"]
        wait_for(lambda: admin.stats("t")["topics"][0]["head"] == 101, 20)
