"""Tests of what the clients of running programs do while something happens to their broker."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from support.broker import Broker, kill, wait_for

import zsq

from .broker_events import CLIENTS, CONSUMERS, OUTCOMES, PRODUCERS, cells_of, client_program

pytestmark = pytest.mark.timeout(180)

WAIT_S: Final = 60.0
LINE: Final = re.compile(rb"^(did|error) (.*)$", re.MULTILINE)


class Running:
    """A program, and what it has printed since the last `forget`."""

    def __init__(self, folder: Path, name: str, url: str, channel: str) -> None:
        program = folder / f"{channel}.py"
        program.write_text(client_program(name))
        self._out = folder / f"{channel}.out"
        self._errors = folder / f"{channel}.errors"
        self._begin = 0
        self.channel = channel
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(program), url, channel], stdout=out, stderr=errors
            )

    def forget(self) -> None:
        self._begin = self._out.stat().st_size

    def lines(self, kind: str, *, all_of_them: bool = False) -> list[bytes]:
        found = LINE.findall(self._out.read_bytes()[0 if all_of_them else self._begin :])
        return [text for one, text in found if one == kind.encode()]

    @property
    def codes(self) -> list[str]:
        """The codes of its errors, each once, in the order in which they came."""
        return list(dict.fromkeys(code.decode() for code in self.lines("error")))

    @property
    def stderr(self) -> str:
        return self._errors.read_text()[-2_000:]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Scene:
    """A broker with a topic, and a running program of each kind."""

    def __init__(self, folder: Path) -> None:
        self.can_go_on = True
        self.broker = Broker(folder / "data").start()
        self.admin = zsq.Admin(self.broker.tcp, timeout=60)
        self.admin.create_topic("t")
        self.channels = {name: f"c{number}" for number, name in enumerate(CONSUMERS)}
        for channel in self.channels.values():
            self.admin.create_channel("t", channel)
        self.programs = {
            name: Running(folder, name, self.broker.tcp, self.channels.get(name, f"p{number}"))
            for number, name in enumerate(CLIENTS)
        }

    def wait_go_on(self, names: Iterable[str]) -> None:
        """Wait until each of these has done several things since the last `forget`."""
        for name in names:
            wait_for(partial(self._goes_on, name), WAIT_S, f"{name} goes on")

    def _goes_on(self, name: str) -> bool:
        return len(self.programs[name].lines("did")) >= 5

    def forget(self) -> None:
        for program in self.programs.values():
            program.forget()

    def close(self) -> None:
        for program in self.programs.values():
            program.close()
        self.admin.close()
        self.broker.close()


@pytest.fixture(scope="module")
def scenes() -> Iterator[list[Scene]]:
    """Keep the scene that the next test can use."""
    kept: list[Scene] = []
    yield kept
    for scene in kept:
        scene.close()


@pytest.fixture
def scene(scenes: list[Scene], tmp_path: Path) -> Iterator[Scene]:
    """Return a scene. Tests share it until one of them fails or deletes its topic."""
    scene = scenes.pop() if scenes else Scene(tmp_path)
    yield scene
    if scene.can_go_on:
        scenes.append(scene)
    else:
        scene.close()


def stop_and_start(scene: Scene) -> None:
    assert scene.broker.stop() == 0
    scene.broker.start()


def kill_and_start(scene: Scene) -> None:
    everyone = [actor["pid"] for actor in scene.broker.actors()]
    scene.broker.signal_all(signal.SIGKILL)
    scene.broker.wait_gone(everyone)
    scene.broker.start()


def stop_for_a_while(scene: Scene) -> None:
    scene.broker.signal_all(signal.SIGSTOP)
    begun = time.monotonic()
    wait_for(lambda: time.monotonic() >= begun + 3)
    scene.broker.signal_all(signal.SIGCONT)


def kill_all(kind: str, scene: Scene) -> None:
    for pid in scene.broker.pids(kind):
        kill(pid)


def delete(scene: Scene) -> None:
    scene.admin.delete_topic("t", force=True)


def delete_and_create(scene: Scene) -> None:
    delete(scene)
    scene.admin.create_topic("t")


def delete_channels(scene: Scene) -> None:
    for channel in scene.channels.values():
        scene.admin.delete_channel("t", channel, force=True)


def seek_back(scene: Scene) -> None:
    for channel in scene.channels.values():
        scene.admin.seek("t", channel, "earliest")


def empty(scene: Scene) -> None:
    for channel in scene.channels.values():
        scene.admin.empty("t", channel)


def pause(scene: Scene) -> None:
    for channel in scene.channels.values():
        scene.admin.pause("t", channel)
    for channel in scene.channels.values():
        scene.admin.unpause("t", channel)


def configure(scene: Scene) -> None:
    for channel in scene.channels.values():
        scene.admin.configure_channel("t", channel, max_attempts=3)


def close_and_open(scene: Scene) -> None:
    scene.admin.close_topic("t", to="consumers")
    for name in (*PRODUCERS, *CONSUMERS[:1]):
        wait_for(partial(scene.programs[name].lines, "error"), WAIT_S, f"{name} is refused")
    scene.admin.open_topic("t")


EVENTS: Final[dict[str, Callable[[Scene], None]]] = {
    "stops, and starts again": stop_and_start,
    "is killed, and starts again": kill_and_start,
    "is stopped for 3 s (SIGSTOP)": stop_for_a_while,
    "loses the process of the topic": partial(kill_all, "topic"),
    "loses the processes of the channels": partial(kill_all, "channel"),
    "loses the process of the gateway": partial(kill_all, "gateway"),
    "deletes the topic": delete,
    "deletes the topic, and creates it again": delete_and_create,
    "deletes the channels": delete_channels,
    "moves the channels back": seek_back,
    "empties the channels": empty,
    "pauses the channels, and unpauses them": pause,
    "sets `max_attempts` of the channels": configure,
    "closes the topic, and opens it": close_and_open,
}


@pytest.mark.parametrize("event", OUTCOMES)
def test_each_client_does_what_the_table_says(event: str, scene: Scene) -> None:
    scene.can_go_on = False
    scene.wait_go_on(CLIENTS)
    scene.forget()
    EVENTS[event](scene)
    cells = cells_of(event)
    for name, cell in cells.items():
        program = scene.programs[name]
        if cell.code and cell.always:
            wait_for(partial(program.lines, "error"), WAIT_S, f"{name} raises {cell.code}")
    codes = {name: program.codes for name, program in scene.programs.items()}
    scene.forget()
    scene.wait_go_on([name for name, cell in cells.items() if cell.goes_on])
    for name, cell in cells.items():
        said = f"{name}: {codes[name]} {scene.programs[name].stderr}"
        allowed = [[cell.code]] if cell.code and cell.always else [[], [cell.code]]
        assert codes[name] in allowed, said
        assert scene.programs[name].process.poll() is None, said
    if "deletes the topic" not in event:
        check_stored_once(scene)
        scene.can_go_on = True


def check_stored_once(scene: Scene) -> None:
    """Check that each body whose publish returned is in the topic once."""
    published = [
        b"%s %s" % (scene.programs[name].channel.encode(), number)
        for name in PRODUCERS
        for number in scene.programs[name].lines("did", all_of_them=True)
    ]
    found: Counter[bytes | None] = Counter()
    with zsq.Reader("t", url=scene.broker.tcp) as reader:
        offset, head = reader.bounds()
        while offset < head:
            fetched = reader.read(offset)
            for block in fetched.blocks:
                found.update(block.body.values())
            offset = fetched.next_offset
    assert published
    assert {found[body] for body in published} == {1}
