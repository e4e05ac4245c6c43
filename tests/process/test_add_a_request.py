"""Test of HACKING.md, "add a request": a copy of the package gets a new request, as the page says,
and a broker and both clients of the copy have it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.broker import Broker
from support.package_copy import ROOT, package_without

# The files that are touched, each with a place in it, and what is written before that place.
CHANGES: Final = (
    (
        "transport/wire/answers.py",
        "class Made(TypedDict):",
        'class TopicCount(TypedDict):\n    """`topics`: their number."""\n\n    topics: int\n\n\n',
    ),
    ("transport/wire/admin_requests.py", "    TopicNames,\n", "    TopicCount,\n"),
    (
        "transport/wire/admin_requests.py",
        "class Scope(Enum):",
        "@dataclass(frozen=True, slots=True, kw_only=True)\n"
        "class CountTopicsRequest(AdminRequest[TopicCount]):\n"
        '    """Return the number of topics."""\n\n'
        '    prefix: str = ""\n\n\n',
    ),
    (
        "transport/wire/admin_requests.py",
        "    _looking(OverviewRequest,",
        '    _looking(CountTopicsRequest, "count", Scope.BROKER, Action.SEE_ALL),\n',
    ),
    (
        "actors/supervisor/commands/management.py",
        "    CreateChannelRequest,\n",
        "    CountTopicsRequest,\n",
    ),
    (
        "actors/supervisor/commands/management.py",
        "            OverviewRequest: ",
        "            CountTopicsRequest: answered_by(requests, self._count_topics),\n",
    ),
    (
        "actors/supervisor/commands/management.py",
        "    def _ended(self,",
        "    def _count_topics(self, message: CountTopicsRequest) -> dict[str, int]:\n"
        "        names = self._broker.groups\n"
        '        return {"topics": sum(name.startswith(message.prefix) for name in names)}\n\n',
    ),
    (
        "transport/client/core/administration.py",
        "    CreateChannelRequest,\n",
        "    CountTopicsRequest,\n",
    ),
    ("transport/client/core/administration.py", "    Added,\n", "    TopicCount,\n"),
    (
        "transport/client/core/administration.py",
        "def chunks(",
        'def count_topics(prefix: str = "") -> Asking[TopicCount]:\n'
        '    """Return the number of topics whose names begin with `prefix`."""\n'
        "    return ask_admin(CountTopicsRequest(prefix=prefix))\n\n\n",
    ),
)
PROGRAM: Final = """
import asyncio, sys, zsq

with zsq.Admin(sys.argv[1]) as admin:
    admin.create_topic("apple")
    admin.create_topic("pear")
    print(admin.count_topics(), admin.count_topics("a"))

async def count():
    async with zsq.aio.Admin(sys.argv[1]) as admin:
        print(await admin.count_topics(prefix="p"))

asyncio.run(count())
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = package_without((), tmp_path / "package")
    for name, place, text in CHANGES:
        path = folder / "zsq" / name
        before = path.read_text()
        assert before.count(place) == 1, f"{place!r} is not once in {name}"
        path.write_text(before.replace(place, text + place))
    scripts = folder / "zsq" / "scripts"
    scripts.mkdir()
    shutil.copy2(ROOT / "scripts" / "clients.py", scripts)
    subprocess.run([sys.executable, scripts / "clients.py"], check=True)
    return folder


@pytest.fixture
def broker(package: Path, tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    broker.environment["PYTHONPATH"] = str(package)
    yield broker.start()
    broker.close()


def test_a_new_request_is_answered_to_both_clients(broker: Broker, package: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.ipc],
        env={**os.environ, "PYTHONPATH": str(package)},
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout == "{'topics': 2} {'topics': 1}\n{'topics': 1}\n", shown.stderr
