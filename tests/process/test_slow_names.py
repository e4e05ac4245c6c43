"""Tests of clients whose names resolve slowly, or to several addresses, with a real broker.

The clients run in a mount namespace with a `resolv.conf` and a `hosts` of its own. Its name server
is a socket that never answers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import Broker
from support.tcp_proxy import TcpProxy

PROGRAM: Final = """
import json, sys, threading, time
import zsq

good, six = sys.argv[1:]
port = good.rpartition(":")[2]
found = {"publishes": [], "errors": []}

def timed(url):
    begun = time.monotonic()
    with zsq.Producer(url, timeout=40, transport="tcp") as producer:
        producer.publish("t", b"x")
    return time.monotonic() - begun

def fail(url):
    try:
        with zsq.Producer(url, timeout=4) as producer:
            producer.publish("t", b"x")
    except zsq.ZsqError as error:
        found["errors"].append(str(error))

with zsq.Producer(good, timeout=60, transport="tcp") as producer:
    producer.publish("t", b"x")
    failing = [
        threading.Thread(target=fail, args=(f"tcp://nowhere-{number}.test:4153",))
        for number in range(3)
    ]
    for one in failing:
        one.start()
    while any(one.is_alive() for one in failing):
        begun = time.monotonic()
        producer.publish("t", b"x")
        found["publishes"].append(time.monotonic() - begun)
found["second"] = timed(f"tcp://nowhere.test:4153,{good}")
found["new"] = timed(good)
if six:
    found["literal"] = timed(f"tcp://[::1]:{six}")
    found["six"] = timed(f"tcp://six.test:{six}")
    found["both"] = timed(f"tcp://both.test:{port}")
print(json.dumps(found))
"""


class SilentServer:
    """A name server at a loopback address that receives questions and answers none."""

    def __init__(self) -> None:
        if shutil.which("unshare") is None:
            pytest.skip("a mount namespace needs unshare(1)")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.host = f"127.53.{random.randrange(256)}.{random.randrange(1, 255)}"
        try:
            self._socket.bind((self.host, 53))
        except PermissionError:
            self._socket.close()
            pytest.skip("port 53 of a loopback address needs root")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def six(shared: Broker) -> Iterator[str]:
    """Return the port of the broker at `[::1]`, or "" if this machine has no IPv6."""
    try:
        relay = TcpProxy(shared.tcp, "::1")
    except OSError:
        yield ""
        return
    yield str(relay.port)
    relay.close()


def test_a_name_server_that_is_silent_stops_no_other_client(
    shared: Broker, six: str, tmp_path: Path
) -> None:
    """Names are not resolved in ZeroMQ's only I/O thread.

    The second address of a list is reached soon. Literals of IPv6, and names with addresses of
    IPv6, lead to the broker too.
    """
    server = SilentServer()
    try:
        resolv, hosts = tmp_path / "resolv.conf", tmp_path / "hosts"
        resolv.write_text(f"nameserver {server.host}\n")
        hosts.write_text("127.0.0.1 localhost both.test\n::1 six.test both.test\n")
        mounts = f"mount --bind {resolv} /etc/resolv.conf && mount --bind {hosts} /etc/hosts"
        script = f'{mounts} && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", PROGRAM]
        ended = subprocess.run(
            [*command, shared.tcp, six],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env={**os.environ, "ZSQ_TRANSPORT": "tcp"},
        )
    finally:
        server.close()
    if "unshare failed" in ended.stderr or "mount: " in ended.stderr:
        pytest.skip(f"no mount namespace: {ended.stderr[-200:]}")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert max(found["publishes"]) < 6, "each took 10 s in ZeroMQ's thread"
    assert found["second"] < 8, "without it, the second address is never reached"
    assert found["new"] < 6
    assert len(found["errors"]) == 3
    for error in found["errors"]:
        assert "could not be resolved (DNS): no answer within" in error
        assert error.count("within") == 2, "the time-out of the call, and that of the name"
    if six:
        assert max(found["literal"], found["six"], found["both"]) < 6
