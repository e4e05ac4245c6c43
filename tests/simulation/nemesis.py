"""The nemesis: it makes processes, connections, the disk and the clock fail at random times, and
heals everything at the end.

Each kind of fault is a method, which returns False if there was nothing to break. A scenario says
which kinds may happen and how often. A later event that belongs to a fault (a connection that comes
back, a broker that is started again) is planned together with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from .bucket import LATE_S
from .former import Former
from .standby import EXILES_NS
from .world import MS, Process, S, World

if TYPE_CHECKING:
    from .broker import Broker
    from .network import Connection
    from .scenario import Scenario
    from .workload import Crew

DEADLY: Final = ("kill_channel", "kill_topic", "kill_supervisor", "power_cut")
HOUR_NS: Final = 3600 * S
CUTS: Final = (0.4, 1.3, 1.3, 2.5)  # how long a machine is cut off or stopped, in patiences
EXILES_MS: Final = (30, 300, 1_500, 3_000)  # how long an exiled process is stopped


class Nemesis:
    def __init__(self, world: World, broker: Broker, crew: Crew, scenario: Scenario) -> None:
        self.world, self.broker, self.crew, self.scenario = world, broker, crew, scenario
        self.rng = world.dice("nemesis")
        self.over = False
        self.healed = False
        self.done: dict[str, int] = {}
        self._left = scenario.strikes
        self._wall_max_ns = world.wall_offset_ns

    def begin(self) -> None:
        self.over = not self._left
        if self._left:
            self._later(20, max(400, self.scenario.pauses_ms[-1] - 800), self._strike)

    def _later(self, low_ms: int, high_ms: int, action: Callable[[], None]) -> None:
        self.world.after(self.rng.randrange(low_ms * MS, high_ms * MS), action)

    def _strike(self) -> None:
        if self.healed:
            return
        kind = self.rng.choice(self.scenario.faults)
        if getattr(self, kind)():
            self.done[kind] = self.done.get(kind, 0) + 1
            self._left -= 1
        if self._left:
            self._later(5, self.rng.choice(self.scenario.pauses_ms), self._strike)
        else:
            self._later(10, 2_500, self._end)

    def moved(self) -> None:
        """React to a seek that a channel has taken: sometimes kill a process shortly before or
        after the commit of the seek.
        """
        deadly = [kind for kind in self.scenario.faults if kind in DEADLY]
        if self.over or not deadly or self.rng.random() < 0.5:
            return
        kind = self.rng.choice(deadly)
        within_ms = self.rng.choice((1, 3, 8))
        if "slow_disk" in self.scenario.faults:
            self.slow_disk()
            within_ms *= 10
        self.world.after(self.rng.randrange(within_ms * MS), lambda: self._strike_at_move(kind))

    def _strike_at_move(self, kind: str) -> None:
        if not self.healed and getattr(self, kind)():
            self.done[kind] = self.done.get(kind, 0) + 1

    def _end(self) -> None:
        self.over = True

    def heal(self) -> None:
        """End all faults. No fault happens after this call."""
        world = self.world
        self.over = self.healed = True
        world.disturb("everything is well again")
        world.disk.full_until_ns = world.disk.slow_until_ns = 0
        world.disk.fail_syncs = 0
        if world.bucket is not None:
            world.bucket.away_until_ns = 0
            world.bucket.kind = True
            world.bucket.cut_until_ns.clear()
        world.network.unreachable_until.clear()
        world.network.split.clear()
        for process in world.processes:
            process.asleep_until_ns = 0
            if process.exiled and process.former is None:
                process.kill("off")
        for connection in world.network.connections:
            connection.clogged_until_ns = connection.jammed_until_ns = 0
        world.wall_offset_ns = max(self._wall_max_ns, world.wall_offset_ns)
        if not self.broker.alive:
            self.broker.start()

    def _start_again(self) -> None:
        """Start the broker again, as planned when it was killed. Do nothing after `heal`, which has
        started it. After `heal`, a broker that is down was stopped on purpose.
        """
        if not self.healed and not self.broker.alive:
            self.broker.start()

    # Processes of the broker

    def _kill(self, kind: str) -> bool:
        found = self.broker.of_kind(kind)
        if not found:
            return False
        victim = self.rng.choice(found)
        self.world.disturb(f"kill {victim.name}")
        victim.kill()
        return True

    def kill_topic(self) -> bool:
        if self.rng.random() < 0.4:  # kill it again while its storage recovers
            self._later(3, 120, lambda: self._again("topic"))
        return self._kill("topic")

    def _again(self, kind: str) -> None:
        if not self.healed:
            self._kill(kind)

    def kill_channel(self) -> bool:
        return self._kill("channel")

    def doze(self) -> bool:
        """Put a topic to sleep although it is used."""
        self.broker.dozes = 1
        return True

    def kill_scan(self) -> bool:
        return self._kill(self.rng.choice(("scan_loop", "scan_worker")))

    def kill_archive(self) -> bool:
        if self.rng.random() < 0.3:
            self._trap(lambda: self._again("archive"))
            return True
        return self._kill("archive")

    def _trap(self, strike: Callable[[], object]) -> None:
        """Strike while the next write to the bucket is on its way."""
        delay_ns = self.rng.choice((1, 3, 6, 20)) * MS

        def act() -> None:
            if not self.healed:
                strike()

        def sprung() -> None:
            self.world.after(delay_ns, act)

        self.world.bucket.trap = sprung

    def bucket_away(self) -> bool:
        """Let the object store not answer for a while, and then lose some requests and replies."""
        duration = self.rng.choice((0, 50, 400, 2_000))
        self.world.disturb(f"the bucket is away for {duration} ms")
        self.world.bucket.away_until_ns = self.world.now_ns + duration * MS
        self.world.bucket.kind = False
        return True

    def kill_gateway(self) -> bool:
        return self._kill("gateway")

    def kill_supervisor(self) -> bool:
        if not self.broker.alive:
            return False
        self._kill("supervisor")
        self._later(1, 400, self._start_again)
        return True

    def power_cut(self) -> bool:
        """Kill all processes of the broker at once, and lose what was not synced."""
        world = self.world
        world.disturb("power cut")
        self.crew.ledger.losses.cut(self.broker)
        self.broker.kill_all()
        for process in world.processes:
            if process.exiled:
                process.kill("off")
        world.disk.power_cut()
        self._later(5, 400, self._start_again)
        return True

    def lost_disk(self) -> bool:
        """Destroy the disk. The broker is restored from the bucket on another machine. Requests of
        the dead processes may still arrive there.

        Sometimes the old archive actor was only stopped, and goes on after a while.
        """
        if self.rng.random() < 0.4:
            self._trap(self._lose_again)
            return True
        if not self.crew.ledger.disasters.may_strike():
            return False
        self._lose_disk()
        if self.rng.random() < 0.3:  # again, perhaps while the next broker takes over
            self._later(5, self.rng.choice((60, 300, 1_000)), self._lose_again)
        return True

    def _lose_again(self) -> None:
        if not self.healed and self.crew.ledger.disasters.may_strike():
            self.done["lost_disk"] = self.done.get("lost_disk", 0) + 1
            self._lose_disk()

    def fenced(self) -> None:
        """Restore again, because another copy has continued the log since the restore."""
        if self.broker.alive:
            self.done["restored again"] = self.done.get("restored again", 0) + 1
            self._lose_disk()

    def replaced(self) -> None:
        """Take the broker for lost, because its standby takes over now."""
        if not self.broker.has_disk:
            return
        self._check_takeover()
        self.done["replaced"] = self.done.get("replaced", 0) + 1
        self._lose_disk()

    def took_over(self, copy: str) -> None:
        """Let the machine of the broker live on, because a takeover of its standby exists now."""
        broker, standby = self.broker, self.broker.standby
        if standby is None or copy != standby.copy or not broker.lives_on or not broker.has_disk:
            return
        self._check_takeover()
        self.done["lives on"] = self.done.get("lives on", 0) + 1
        self.crew.ledger.disasters.strike(broker)
        self.world.disturb("the standby has taken over, and the old broker lives on")
        broker.step_aside(Former(self.world, broker, self.crew.ledger))

    def cut_off(self) -> bool:
        """Cut the machine of the broker off from the bucket for a while, but not from all
        clients.
        """
        broker = self.broker
        if not broker.alive or not broker.lives_on:
            return False
        duration_ns = int(self.rng.choice(CUTS) * self.scenario.patience_s * S)
        self.world.disturb(f"machine {broker.machine} is cut off for {duration_ns // MS} ms")
        self.world.bucket.cut_until_ns[broker.machine] = self.world.now_ns + duration_ns
        self._split(duration_ns)
        return True

    def pause_machine(self) -> bool:
        """Stop all processes of the broker, and let them go on after a while.

        Processes that are stopped already are left alone: two stops one after the other would be
        longer than a primary that knows of no standby may be silent (`STRANGER_S`).
        """
        broker, world = self.broker, self.world
        if not broker.alive or not broker.lives_on or broker.has_stopped_process():
            return False
        duration_ns = int(self.rng.choice(CUTS) * self.scenario.patience_s * S)
        world.disturb(f"machine {broker.machine} stops for {duration_ns // MS} ms")
        for process in broker.living():
            process.asleep_until_ns = world.now_ns + duration_ns
            world.bucket.take_effect(process)
        self._split(duration_ns)
        return True

    def _split(self, duration_ns: int) -> None:
        """Let each client reach only this broker, or all but this one, or each of them."""
        world, address = self.world, self.broker.address
        mine = {id(one) for one in self.crew.processes}
        for process in self.crew.processes:
            side = self.rng.choice(("old", "old", "new", "both"))
            if side != "both":
                world.network.split[process.name.rpartition(".")[0]] = address, side == "old"
        for connection in world.network.of_clients(lambda process: id(process) in mine):
            name = connection.near.process.name.rpartition(".")[0]
            if address in connection.endpoint and world.network.split.get(name) == (address, False):
                connection.lose(near_sees_ns=MS, far_sees_ns=MS)
        world.after(duration_ns + self.rng.choice((0, 50, 800)) * MS, self._join)

    def _join(self) -> None:
        self.world.network.split.clear()
        self.world.disturb("all clients reach all brokers")

    def _check_takeover(self) -> None:
        """Check that the standby has waited: the broker must not be well, nor have a lease."""
        world, broker = self.world, self.broker
        if not broker.alive:
            return
        if world.bucket.kind and world.now_ns > self._calm_ns():
            world.violation("a standby takes over from a broker that is well")
        left_ns = broker.lease_until_ns - world.now_ns
        if left_ns > 0:
            world.violation(
                f"a standby takes over, and the lease of the broker lasts {left_ns / MS:.0f} ms"
            )

    def _calm_ns(self) -> int:
        """Return from when on no fault, late request or exile disturbs the broker any more."""
        exiles_ns = EXILES_NS if self.done.get("exiles") else 0
        return self.world.disturbed_ns + exiles_ns + int(LATE_S * S) + S

    def _lose_disk(self) -> None:
        world, broker = self.world, self.broker
        self.crew.ledger.disasters.strike(broker)
        world.disturb("the disk is lost")
        for process in broker.of_kind("archive"):
            # A write that is on its way is sent when the process goes on, after another broker
            # has perhaps taken over.
            if self.rng.random() < (0.8 if world.bucket.is_writing(process) else 0.4):
                process.exiled = True
                process.asleep_until_ns = world.now_ns + self.rng.choice(EXILES_MS) * MS
                self.done["exiles"] = self.done.get("exiles", 0) + 1
                if broker.standby is not None:
                    world.after(EXILES_NS, partial(process.kill, "off"))
        broker.kill_all()
        if broker.lives_on:
            world.disk.destroy_only(str(broker.data_dir))
        else:
            world.disk.destroy()
        broker.lose_disk()
        self._later(5, 400, self._start_after)

    def _start_after(self) -> None:
        if not self.broker.alive:
            self.broker.start()

    def stop_process(self) -> bool:
        """Stop a process with SIGSTOP, and continue it with SIGCONT after a while."""
        found = [
            one
            for one in self.broker.living()
            if one.kind != "supervisor" or self.rng.random() < 0.2
        ]
        if self.broker.lives_on:
            found = [one for one in found if one.asleep_until_ns <= self.world.now_ns]
        return self._stop(found, (20, 200, 1_500, 4_000))

    def _stop(self, found: list[Process], times_ms: tuple[int, ...]) -> bool:
        if not found:
            return False
        victim = self.rng.choice(found)
        duration = self.rng.choice(times_ms)
        self.world.disturb(f"stop {victim.name} for {duration} ms")
        victim.asleep_until_ns = self.world.now_ns + duration * MS
        self.world.after(duration * MS, lambda: self.world.disturb(f"{victim.name} goes on"))
        return True

    # Clients

    def kill_client(self) -> bool:
        if not self.crew.processes:
            return False
        victim = self.rng.choice(self.crew.processes)
        self.world.disturb(f"kill {victim.name}")
        victim.kill()
        return True

    def stop_client(self) -> bool:
        return self._stop(self.crew.processes, (50, 500, 2_500, 5_000))

    # Connections of clients

    def _connection(self) -> Connection | None:
        mine = {id(one) for one in self.crew.processes}
        found = self.world.network.of_clients(lambda process: id(process) in mine)
        return self.rng.choice(found) if found else None

    def cut(self) -> bool:
        """Break a connection, as a reset does. Each end notices this at another time, perhaps only
        after seconds (a half-open connection).
        """
        connection = self._connection()
        if connection is None:
            return False
        near, far = (
            self.rng.choice((0, 1, 30, 700, 6_000)) * MS + self.rng.randrange(MS) for _ in range(2)
        )
        self.world.disturb(f"cut {connection.near.process.name} from {connection.endpoint[-12:]}")
        connection.lose(near_sees_ns=near, far_sees_ns=far)
        if self.rng.random() < 0.3:
            until = self.world.now_ns + self.rng.choice((200, 1_500, 4_000)) * MS
            self.world.network.unreachable_until[connection.near.process.name] = until
        return True

    def clog(self) -> bool:
        """Let no message leave a queue for a while. The server for which the messages are meant may
        end before they leave.
        """
        connection = self._connection()
        if connection is None:
            return False
        duration = self.rng.choice((30, 300, 1_500, 4_000)) * MS
        self.world.disturb(
            f"clog {connection.near.process.name} to {connection.endpoint[-12:]} for "
            f"{duration // MS} ms"
        )
        connection.clogged_until_ns = self.world.now_ns + duration
        if self.rng.random() < 0.5:
            self.world.after(
                self.rng.randrange(duration),
                lambda: connection.lose(near_sees_ns=MS, far_sees_ns=MS),
            )
        return True

    def jam(self) -> bool:
        """Let a queue accept nothing, so that the sender gets an error."""
        connection = self._connection()
        if connection is None:
            return False
        self.world.disturb(f"jam {connection.near.process.name} and {connection.endpoint[-12:]}")
        connection.jammed_until_ns = self.world.now_ns + self.rng.choice((5, 50, 500)) * MS
        return True

    # Disk and clock

    def full_disk(self) -> bool:
        duration = self.rng.choice((50, 400, 1_500)) * MS
        self.world.disturb(f"disk full for {duration // MS} ms")
        self.world.disk.full_until_ns = self.world.now_ns + duration
        self.world.after(duration, lambda: self.world.disturb("disk has space"))
        return True

    def failing_sync(self) -> bool:
        self.world.disturb("the next sync fails")
        self.world.disk.fail_syncs = 1
        return True

    def slow_disk(self) -> bool:
        self.world.disturb("the disk is slow")
        self.world.disk.slow_until_ns = self.world.now_ns + self.rng.choice((300, 2_000)) * MS
        return True

    def set_clock(self) -> bool:
        """Move the wall clock only: by an hour forward or back, or by a few milliseconds."""
        jump = self.rng.choice((HOUR_NS, -HOUR_NS, 50 * MS, -50 * MS))
        self.world.disturb(f"the clock jumps by {jump / S:g} s")
        self.crew.steady = False
        self.world.wall_offset_ns += jump
        self.crew.ledger.clock_jumped(jump)
        self._wall_max_ns = max(self._wall_max_ns, self.world.wall_offset_ns)
        return True


KINDS: Final = (
    "kill_topic", "kill_channel", "kill_scan", "kill_gateway", "kill_supervisor", "power_cut", "stop_process",
    "kill_client", "stop_client", "cut", "clog", "jam", "full_disk", "failing_sync", "slow_disk", "set_clock",
)  # fmt: skip
