"""Fuzz targets that are the other parts of a broker: the gateway, and the supervisor with its
registry.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import zmq
from faults.fuzz_actors import PEERS, Said, drain, rig
from faults.fuzz_port import FakePort, stranger_says
from faults.fuzz_storage import SHM
from faults.fuzz_wire import word_frame
from faults.fuzzing import Target, with_rig
from faults.mutation import Mutator

from zsq.actors.gateways import zeromq
from zsq.actors.gateways.zeromq import ZeroMqGateway
from zsq.actors.runtime.child import ChildSpec
from zsq.actors.runtime.process_table import Child, HostProcess
from zsq.actors.settings.options import ServeOptions
from zsq.actors.settings.starts import ChannelStart, ZeroMqStart
from zsq.actors.supervisor.supervisor import Supervisor
from zsq.actors.supervisor.topics.registry import Registry
from zsq.storage.files import Files
from zsq.transport.wire import protocol as p
from zsq.transport.wire.admin_requests import REQUESTS
from zsq.transport.wire.codec import encode


class GatewayRig:
    """A gateway between clients that may send anything and actors that may answer anything."""

    def __init__(self, mutator: Mutator) -> None:
        self.mutator = mutator
        self.actor = ZeroMqGateway(
            5, "gateway", ZeroMqStart(listen="x:1", push="x:2", supervisor="supervisor-front")
        )
        self.ports = rig(self.actor, mutator, ("front",))
        self.actor.context = zmq.Context()
        bound = iter(("front", "push"))
        parts: dict[str, Any] = {
            "_bind": lambda port, listen, option: self._bound(port, next(bound))
        }
        vars(self.actor).update(parts)
        self.actor.on_start()
        self.front, self.pushes = self.ports["front"], self.ports["push"]
        self.clients = [b"\0%d" % n for n in range(4)]

    def _bound(self, port: Any, name: str) -> FakePort:
        port.close()
        made = self.ports[name] = FakePort(self.mutator, name, deaf=name == "front")
        return made

    def draw(self) -> tuple[str, list[bytes]]:
        mutator = self.mutator
        client = mutator.one(self.clients)
        words: list[type[p.Wire]] = [
            p.Open,
            p.Open,
            *(p.WORDS[op] for ops in zeromq.ALLOWED.values() for op in sorted(ops)),
        ]
        known = {
            "kind": (*zeromq.ALLOWED, "x"),
            "topic": ("clicks", "c#ephemeral"),
            "channel": ("archive", ""),
        }
        control, frames = stranger_says(mutator, words, known)
        if mutator.chance(5):
            control = word_frame(mutator)
        parts = [client, b"", control, *frames]
        if mutator.chance(10):
            parts = [
                client,
                *(mutator.random.randbytes(mutator.below(5)) for _ in range(mutator.below(6))),
            ]
        if mutator.chance(8):
            return "push", [mutator.one((*self.actor.routes, b"5", b"")), *parts[1:]]
        return "front", parts

    def hear(self, given: tuple[str, list[bytes]]) -> bool:
        name, parts = given
        port = self.ports[name]
        before = len(self.front.sent)
        port.raw.append([zmq.Frame(part) for part in parts])
        drain(self.actor, port)
        asking = self.ports["supervisor-front"]
        while asking.sent:
            _, message, _ = asking.sent.popleft()
            if isinstance(message, p.Lookup):
                where = {
                    kind: f"ipc:///nowhere/{kind}"
                    for kind in ("topic", "reader", "stage", "push", "channel")
                }
                refused = self.mutator.chance(5)
                asking.say(
                    (),
                    p.Failed(message.request, "E_NOT_FOUND", "x")
                    if refused
                    else p.Done(message.request, where | {"uuid": "00" * 16}),
                )
        drain(self.actor, asking)
        for endpoint, other in self.ports.items():
            if endpoint.startswith("ipc:") and self.mutator.chance(20):
                other.raw.append(
                    [zmq.Frame(part) for part in (self.clients[0], b"", encode(p.Beat()))]
                )
                drain(self.actor, other)
        self.actor.on_turn()
        if self.mutator.chance(200):
            self.actor.on_gone("ipc:///nowhere/topic")
            self.actor._forget()
        return len(self.front.sent) == before or not isinstance(self.front.sent[-1][1], p.Failed)

    def close(self) -> None:
        self.actor.context.destroy(linger=0)


class FakeTable:
    """A fake table of processes. A process starts when that is ordered, and ends when it is
    killed.
    """

    def __init__(self) -> None:
        self.children: dict[int, Child] = {}
        self.hosts: set[HostProcess] = set()
        self.dead: list[Child] = []
        self.events_fd = -1
        self.forkserver_pid = 1

    def start(self, spec: ChildSpec, owner: Any = None, host: HostProcess | None = None) -> Child:
        host = host or HostProcess(1, cast("Any", None))
        self.hosts.add(host)
        child = self.children[spec.key] = host.children[spec.key] = Child(spec, host, owner=owner)
        return child

    def start_shared(self, number: int, ends: int) -> HostProcess:
        host = HostProcess(1, cast("Any", None), number, ends)
        self.hosts.add(host)
        return host

    def kill(self, host: HostProcess) -> None:
        self.hosts.discard(host)
        self.dead += [child for child in host.children.values() if child not in self.dead]

    def changes(self) -> tuple[list[Child], bool]:
        ended, self.dead = self.dead, []
        for child in ended:
            child.state = "ended"
            self.children.pop(child.spec.key, None)
        return ended, False


# All actions of `Manage`, and the names of their options.
ACTIONS: Final = sorted({*(row.name.partition(" ")[0] for row in REQUESTS), "nonsense"})
_DO: Final = sorted({row.name.partition(" ")[2] for row in REQUESTS if " " in row.name})
_NAMES: Final = (
    "addresses", "after", "body", "broker", "brokers", "channel", "clamp", "consumer", "count", "cron", "kind", "force", "forward",
    "headers", "key", "keys", "limit", "missed", "name", "offset", "offsets", "origin", "parts", "points", "seconds",
    "seen", "since", "span", "sync", "tag", "time_ns", "timezone", "to", "to_channel", "user",
)  # fmt: skip
_VALUES: Final[tuple[Any, ...]] = (
    0, 5, -1, 1.5, math.nan, True, None, "", "x", "t", "1d", "always", "publishers", "* * * * *", b"x", {}, {"a": 1}, (), (5,), ("x",),
    ((),), ({},),
)  # fmt: skip


def strange_options(mutator: Mutator) -> dict[str, Any]:
    """Return options, with values of any type."""
    found = {mutator.one(_NAMES): mutator.one(_VALUES) for _ in range(1 + mutator.below(20))}
    return found | ({"do": mutator.one(_DO)} if mutator.chance(2) else {})


class SupervisorRig:
    """A supervisor whose processes behave correctly, and whose clients may send anything."""

    def __init__(self, mutator: Mutator) -> None:
        self.mutator = mutator
        self.folder = tempfile.mkdtemp(prefix="zsq-fuzz-", dir=SHM)
        registry = Registry(Files(), Path(self.folder), 0)
        registry.open()
        self.supervisor = Supervisor(
            ServeOptions(Path(self.folder)), registry, f"{self.folder}/run"
        )
        self.supervisor.port.close()
        self.port = FakePort(mutator, "supervisor", deaf=True)
        self.table = FakeTable()
        parts: dict[str, Any] = {"port": self.port, "table": self.table}
        vars(self.supervisor).update(parts)
        vars(self.supervisor.processes).update({"_port": self.port, "table": self.table})
        vars(self.supervisor.requests)["send"] = self.port.send

    def draw(self) -> Said:
        mutator = self.mutator
        known: dict[str, Sequence[Any]] = {
            "topic": ("clicks", "orders", "mem#ephemeral", ""), "channel": ("", "archive", "c#ephemeral"),
            "action": ACTIONS, "settings": ({}, {"tags": "a"}), "create": (True,),
            "options": ({}, *(strange_options(mutator) for _ in range(5))),
        }  # fmt: skip
        words = (
            p.Lookup,
            p.Manage,
            p.Manage,
            p.Manage,
            p.Stats,
            p.Beat,
            p.Bye,
            p.Over,
            p.PoolSize,
            p.Hung,
            p.Pulse,
            p.Born,
            p.Failed,
            p.Done,
        )
        return mutator.one(PEERS), *stranger_says(mutator, words, known)

    def hear(self, said: Said) -> bool:
        answered = len(self.port.sent)
        self.port.put(*said)
        for mail in self.port.receive(10):
            self.supervisor._on_mail(mail)
        failed = len(self.port.sent) > answered and isinstance(self.port.sent[-1][1], p.Failed)
        self._children()
        for mail in self.port.receive(100):
            self.supervisor._on_mail(mail)
        self._turn()
        return not failed

    def _turn(self) -> None:
        """Run one turn as the loop does it, without waiting."""
        supervisor = self.supervisor
        supervisor._on_processes()
        supervisor.requests.tick(time.monotonic_ns())
        for extension in supervisor.extensions:
            extension.tick(time.monotonic_ns())
        supervisor.processes.kill_late()
        supervisor.processes.begin_turn(time.monotonic_ns() + 10**9)
        for group in list(supervisor.state.groups.values()):
            supervisor.state.guarded(group, group.tick)

    def _children(self) -> None:
        """Let some children start, some answer, and some end."""
        for child in list(self.table.children.values()):
            envelope: tuple[bytes, ...] = (b"child-%d" % child.spec.key,)
            if child.state == "starting" and not self.mutator.chance(3):
                data: dict[str, Any] = (
                    {"channels": [], "alarms": []}
                    if child.spec.kind == "topic"
                    else {
                        "settings": child.spec.start.made_with
                        if isinstance(child.spec.start, ChannelStart)
                        else {}
                    }
                )
                self.port.say(envelope, p.Born(child.spec.key, child.spec.key, data | {"head": 5}))
            elif child.state == "stopping" or self.mutator.chance(200):
                assert child.host is not None
                self.table.kill(child.host)
        while self.port.sent:
            envelope, message, _ = self.port.sent.popleft()
            key = int(envelope[0][6:]) if envelope and envelope[0].startswith(b"child-") else 0
            if isinstance(message, p.Order) and not self.mutator.chance(10):
                self.port.say(
                    envelope,
                    p.Failed(message.request, "E_X", "x")
                    if self.mutator.chance(8)
                    else _answer(message),
                )
            elif isinstance(message, p.Ask):
                kind = self.table.children[key].spec.kind if key in self.table.children else ""
                self.port.say(envelope, p.Pulse(key, message.request, _stats(kind), {}))

    def close(self) -> None:
        self.supervisor.state.registry.memory.close()
        self.supervisor.context.destroy(linger=0)
        shutil.rmtree(self.folder, ignore_errors=True)


def _answer(order: p.Order[Any]) -> p.Wire:
    if isinstance(order, (p.SetSealed, p.FindOffset, p.Seek)):
        return p.Position(order.request, 10 if isinstance(order, p.SetSealed) else 5)
    if isinstance(order, p.EmptyTopic):
        return p.BehindPause(order.request, 5, 10)
    if isinstance(order, p.WhereDeadLettersGo):
        return p.DeadLettersGo(order.request, "t.c.dead")
    return (
        p.ChannelConfigured(order.request, {})
        if isinstance(order, p.ConfigureChannel)
        else p.Done(order.request, {"settings": {}})
    )


def _stats(kind: str) -> dict[str, Any]:
    return (
        {}
        if kind != "topic"
        else {"head": 10, "end": 10, "storage": {"head": 10, "start": 0, "waiting": 10}}
    )


TARGETS: Final[Sequence[Target]] = (
    Target("gateway", with_rig(GatewayRig), 4),
    Target("supervisor", with_rig(SupervisorRig), 4),
)
