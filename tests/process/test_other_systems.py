"""Tests of clients on macOS and Windows: in a Python without what these systems do not have
(`support/other_system.py`), against a real broker on Linux.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import Broker, wait_for

from zsq.apps.cli.app import SECTIONS

ROOT: Final = Path(__file__).resolve().parents[2]
SYSTEMS: Final = {"darwin": "macOS", "win32": "Windows"}
WAIT_S: Final = 100.0

CLIENTS: Final = """
import asyncio, json, sys
import zsq, zsq.testing
from zsq.transport import system
url, topic = sys.argv[1:]

def links(client):
    return [link.address.direct for link in client._made.engine.links]

with zsq.Producer(url, timeout=30) as producer:
    producer.publish_many(topic, [b"%d" % number for number in range(5000)], wait=False)
    producer.publish(topic, b"alone", key="k", headers={"a": 1})
    direct = links(producer)
bodies = []
with zsq.Consumer(topic, "blocking", url=url, start="earliest", timeout=30) as consumer:
    def handle(message):
        bodies.append(message.body)
        if len(bodies) == 5001:
            consumer.close()
    consumer.run(handle, concurrency=2)
with zsq.Reader(topic, url=url, timeout=30) as reader:
    head = reader.bounds()
with zsq.Admin(url, timeout=30) as admin:
    depth = admin.stats(topic)["topics"][0]["channels"][0]["depth"]

async def main():
    async with zsq.aio.Producer(url, timeout=30) as producer:
        await asyncio.gather(*(producer.publish(topic + "-aio", b"%d" % i) for i in range(50)))
        direct.extend(links(producer))
    found = []
    async with zsq.aio.Consumer(
        topic + "-aio", "aio", url=url, start="earliest", timeout=30
    ) as consumer:
        async for message in consumer:
            found.append(message.body)
            await message.finish()
            if len(found) == 50:
                await consumer.flush()
                break
    return type(asyncio.get_running_loop()).__module__, sorted(found)

loop, found = zsq.aio.run(main())

with zsq.testing.MemoryBroker() as memory:
    with memory.producer() as producer:
        producer.publish("t", b"in memory")
    with memory.consumer("t", "c", start="earliest") as consumer:
        in_memory = consumer.receive(30).body.decode()

print(json.dumps({
    "platform": sys.platform,
    "variants": [one.__name__ for one in (system.EventSet, system.Waker, system.wait_readable)],
    "direct": sorted(set(direct)), "bodies": len(set(bodies)), "head": head, "depth": depth,
    "loop": loop, "found": found == sorted(b"%d" % number for number in range(50)),
    "in_memory": in_memory,
}))
"""
REFUSALS: Final = """
import asyncio, json, os, sys
import zsq
from zsq import *
from zsq.testing import LocalBroker
from zsq.transport.wire.credentials import load
folder, key = sys.argv[1:]

def refusal(call):
    try:
        call()
    except zsq.ZsqError as error:
        return f"{type(error).__name__} {error}"
    return "done"

async def use():
    async with zsq.aio.Admin("tcp://127.0.0.1:9") as admin:
        await admin.ping()

print(json.dumps({
    "ipc": refusal(lambda: zsq.Producer("ipc:///tmp/run")),
    "loop": refusal(lambda: asyncio.run(use())),
    "broker": refusal(lambda: LocalBroker(folder).start()),
    "queue": refusal(lambda: zsq.DiskQueue),
    "key": refusal(lambda: load(key)),
}))
"""
HANDLER: Final = """
import sys
import zsq
url, topic, kind = sys.argv[1:]

def handle(message):
    print(message.body.decode(), flush=True)

async def handle_aio(message):
    handle(message)

async def main():
    consumer = zsq.aio.Consumer(topic, kind, url=url, start="earliest", timeout=30)
    await consumer.run(handle_aio)

if kind == "aio":
    zsq.aio.run(main())
else:
    zsq.Consumer(topic, kind, url=url, start="earliest", timeout=30).run(handle)
print("stopped", flush=True)
"""
COMMANDS: Final = """
import contextlib, io, json, sys
from zsq.apps.cli.app import run
said = []
for line in json.loads(sys.argv[1]):
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(line)
        out.flush()
    said.append([code, out.buffer.getvalue().decode(), err.getvalue()])
print(json.dumps(said))
"""


def line_of(system: str, program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "support.other_system", system, "-c", program, *arguments]


def environment() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith("ZSQ_")}
    return found | {"PYTHONPATH": str(ROOT / "tests"), "COLUMNS": "160"}


def answer_of(system: str, program: str, *arguments: str) -> Any:
    """Run the program as on another system, and return the JSON that it prints last."""
    ended = subprocess.run(
        line_of(system, program, *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(params=sorted(SYSTEMS))
def other(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_clients_publish_and_consume(shared: Broker, other: str) -> None:
    assert answer_of(other, CLIENTS, shared.tcp, f"clients-{other}") == {
        "platform": other,
        "variants": ["SelectSet", "SocketWaker", "_by_poll" if other == "darwin" else "_by_select"],
        "direct": [False],  # they stay at the gateway, although its run directory can be read here
        "bodies": 5001,
        "head": [0, 5001],
        "depth": 0,
        "loop": "uvloop" if other == "darwin" else "asyncio.unix_events",
        "found": True,
        "in_memory": "in memory",
    }


def test_the_documented_program_runs(shared: Broker, other: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/other-systems.md").read_text()
    [program] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    program = program.replace('"orders"', f'"orders-{other}"')
    ended = subprocess.run(
        line_of(other, program),
        env=environment() | {"ZSQ_URL": shared.tcp},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("b'from a laptop'\n", "")


@pytest.mark.parametrize("kind", ["blocking", "aio"])
def test_a_signal_ends_a_handler(shared: Broker, other: str, kind: str, tmp_path: Path) -> None:
    import zsq

    topic = f"signals-{other}-{kind}"
    with zsq.Producer(shared.tcp) as producer:
        producer.publish(topic, b"handled")
    out = tmp_path / "out"
    with out.open("wb") as file:
        child = subprocess.Popen(
            line_of(other, HANDLER, shared.tcp, topic, kind),
            env=environment(),
            stdout=file,
            stderr=file,
        )
    try:
        wait_for(lambda: b"handled" in out.read_bytes(), WAIT_S, "the handler's line")
        child.send_signal(signal.SIGTERM)
        assert child.wait(WAIT_S) == 0, out.read_text()
    finally:
        child.kill()
        child.wait(40)
    assert out.read_text().split() == ["handled", "stopped"]


def test_what_needs_linux_is_refused(other: str, tmp_path: Path) -> None:
    key = tmp_path / "etl.key"
    key.write_text(
        'public = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"\n'
        'secret = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"\n'
        'server = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"\n'
    )
    key.chmod(0o644)
    found = answer_of(other, REFUSALS, str(tmp_path), str(key))
    name = SYSTEMS[other]
    assert "UsageError E_UNSUPPORTED 'ipc:///tmp/run' is an address for" in found["ipc"]
    assert f"{name} has no broker: use tcp://HOST:PORT" in found["ipc"]
    assert (
        f"UsageError E_UNSUPPORTED LocalBroker needs Linux, and this is {name}" in found["broker"]
    )
    assert "UsageError E_UNSUPPORTED zsq.DiskQueue needs Linux" in found["queue"]
    if other == "darwin":
        assert found["loop"].startswith("BrokerUnreachable")
        assert "has mode 0644" in found["key"]
    else:
        assert "ProactorEventLoop cannot watch sockets" in found["loop"]
        assert "zsq.aio.run" in found["loop"]
        # A mode means nothing on Windows. There, all files look as if everybody might read them.
        assert found["key"] == "done"


def test_commands_speak_to_the_broker(shared: Broker, other: str, tmp_path: Path) -> None:
    topic, at = f"commands-{other}", ("--url", shared.tcp)
    lines = [
        ["pub", topic, "hello", *at],
        ["pub", topic, "later", "--delay", "1h", *at],
        ["sub", topic, "c", "-n", "1", "--start", "earliest", *at],
        ["stats", "--json", *at],
        ["top", "--once", *at],
        ["top", "--once", "--view", "brokers", *at],
        ["cluster", "--json", *at],
        ["topic", "show", topic, "--json", *at],
        ["channel", "pause", topic, "c", *at],
        ["seek", topic, "c", "0", *at],
        ["message", topic, "0", *at],
        ["delayed", "count", topic, "--json", *at],
        ["schedule", "add", "nightly", "0 3 * * *", topic, "report", *at],
        ["audit", "--json", *at],
        ["keys", "server", str(tmp_path / "key")],
        ["keys", "client", str(tmp_path / "client"), "--server", str(tmp_path / "key.pub")],
        ["export", topic, "--to", str(tmp_path / "exported"), *at],
        ["forward", f"{topic}/f", "--to", f"file:{tmp_path}/files", "--idle", "2s", *at],
        ["forward", f"{topic}/m", "--to", f"{shared.tcp}/copy-{other}", "--idle", "2s", *at],
    ]
    said = answer_of(other, COMMANDS, json.dumps(lines))
    failed = [(line, one) for line, one in zip(lines, said, strict=True) if one[0] != 0]
    out = {line[0]: one[1] for line, one in zip(lines, said, strict=True)}
    missing = "needs the package pyarrow"  # only the tests of data have it
    assert not [one for line, one in failed if line[0] != "export" or missing not in one[2]]
    assert out["sub"] == "hello\n"
    assert out["message"] == "hello\n"
    assert topic in out["stats"]
    assert "(this one)" in out["top"]
    assert json.loads(out["delayed"])["messages"] == 1
    assert "schedule nightly is added" in out["schedule"]
    assert (tmp_path / "client").stat().st_mode & 0o777 == 0o600
    assert failed or any((tmp_path / "exported").rglob("*.parquet"))
    assert said[-1][2].endswith(" messages forwarded\n")
    assert said[-2][2].endswith(" files complete\n")


def test_commands_of_a_broker_say_that_they_need_linux(other: str, tmp_path: Path) -> None:
    names = [name for section in SECTIONS.values() for name, one in section.items() if one.linux]
    assert {"serve", "standby", "fsck", "backup"} < set(names)
    lines = [[name, "--data-dir", str(tmp_path / "data"), "more"] for name in names]
    said = answer_of(other, COMMANDS, json.dumps([*lines, ["serve", "--help"], ["--help"]]))
    for name, (code, out, err) in zip(names, said, strict=False):
        assert (code, out) == (2, "")
        assert f"zsq {name} needs Linux, and this is {SYSTEMS[other]}." in err
        assert "Run the broker on Linux or in a container." in err
        assert len(err.splitlines()) == 1
    assert said[-2][0] == said[-1][0] == 0
    assert "This needs Linux" in said[-2][1]
    assert not (tmp_path / "data").exists()


def test_zsqd_says_that_it_needs_linux(other: str, tmp_path: Path) -> None:
    program = "import runpy, sys; sys.argv[0] = 'zsqd'; runpy.run_path(%r, run_name='__main__')"
    line = line_of(other, program % str(ROOT / "scripts/zsqd"), "start", "--data-dir", "data")
    ended = subprocess.run(
        line,
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"zsqd: a broker needs Linux, and this is {SYSTEMS[other]}")
    assert not list(tmp_path.iterdir())
