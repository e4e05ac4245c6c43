"""Reload of settings while the broker runs.

On SIGHUP the supervisor reads the settings again and sends those that may change to its actors.

These settings may change: the log level of all processes, thresholds and receivers of alarms, the
retention of topics without settings of their own, the access file, TLS certificates, and the bound
of shipping to the bucket. All other changed options keep their old values, and the log says that
they need a restart. If any new setting is wrong, all settings stay as they were.

An actor gets the Reload message of its kind. An actor that is still starting gets it when it is up,
because it was started with the old settings. The new settings are also put into the start of each
gateway, so a gateway that is started again later has them at once.

An actor that does not answer within RELOAD_S has missed the reload. A gateway is then killed and
started again, because a client whose token was revoked must not go on. The broker's health is bad
until the new rules are in force everywhere. Any other actor gets the reload again until it answers.
A slow disk may delay a topic, but the settings that the topic misses meanwhile (log level,
retention) do not give access to anyone. If an actor answers that it cannot take the settings (a
wrong access file), it keeps the old ones and the log says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, cast

from ...storage.retention import resolve
from ...transport.errors import E_CLOSING, E_LIMIT, E_TIMEOUT, ZsqError
from ...transport.settings import TopicOptions
from ...transport.wire import protocol as p
from ..runtime.process_table import Child
from ..runtime.services import is_door, services
from ..settings import options
from ..settings.options import ServeOptions
from .commands.requests import Orders
from .singles import Singles
from .topics.broker_state import BrokerState

log = logging.getLogger("zsq")

# The delay before a reload is sent again to an actor that did not answer.
_AGAIN_NS: Final = 1_000_000_000
# Codes that the supervisor itself sets: the order did not arrive, or it was not answered.
_MISSED: Final = frozenset({E_CLOSING, E_LIMIT, E_TIMEOUT})


class Fresh(NamedTuple):
    """The settings that were read again, and the options that differ.

    `changed` lists the flags that can change now, `restart` those that need a restart.
    """

    options: ServeOptions
    changed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


def merged(now: ServeOptions, new: ServeOptions) -> tuple[ServeOptions, tuple[str, ...]]:
    """Return `now` with the changes from `new` that are possible, and the names of the others."""
    kept: list[str] = []
    security = now.security
    if bool(security.access_file) != bool(new.security.access_file):
        kept.append("--access (to turn it on or off)")
    else:
        security = replace(security, access_file=new.security.access_file)
    for service in services().values():
        now, of_service = service.merged(now, new)
        kept += of_service
    now = replace(now, log_level=new.log_level, retention=new.retention, security=security)
    return now, tuple(kept)


def reload_order(request: int, kind: str, now: ServeOptions) -> p.Reload:
    """Return the order with the new settings for an actor of this kind."""
    if kind in services():
        return services()[kind].reload(request, now)
    if kind == "topic" and now.ships:
        return p.ReloadShipping(request, now.log_level, now.bucket_lag_s)
    return p.Reload(request, now.log_level)


@dataclass(slots=True, eq=False)
class _Owing:
    """An actor that has not applied the new settings yet."""

    child: Child
    since_ns: int
    asked: int = 0  # number of the reload that was sent and not answered, 0 for none
    again_ns: int = 0  # earliest time to send again
    missed: int = 0  # number of reloads that were not answered


class Reloading:
    """The state of reloads.

    `read` reads the settings again. The code that starts the broker passes it. Without it a reload
    is not possible. `on_reload` is called when the broker has new options.
    """

    def __init__(
        self, state: BrokerState, singles: Singles, orders: Orders, on_reload: Callable[[], None],
        read: Callable[[], Fresh] | None,
    ) -> None:  # fmt: skip
        self._broker = state
        self._processes = state.processes
        self._singles = singles
        self._orders = orders
        self._on_reload = on_reload
        self._read = read
        self._number = 0  # number of the last reload
        self._in_force = 0  # number of the last reload that all gateways have applied
        self._refusing: set[str] = set()  # gateways that keep their old settings after this reload
        self._owing: dict[int, _Owing] = {}  # key of the child -> its state
        self._killed: dict[int, Child] = {}  # gateways whose successors are not up yet
        # Topic -> the key of its process that was asked and has not answered, and the earliest time
        # to send.
        self._to_configure: dict[str, tuple[int, int]] = {}

    def begin(self) -> None:
        if self._read is None:
            log.warning(
                "SIGHUP ignored: this broker was started without a way to read its "
                "configuration again; restart it to change options"
            )
            return
        try:
            fresh = self._read()
            resolve(fresh.options.retention)
        except (ZsqError, OSError) as error:
            log.error(
                "configuration not reloaded, no option changed: %s",
                error.text if isinstance(error, ZsqError) else error,
            )
            return
        before = self._broker.options
        now, kept = merged(before, fresh.options)
        self._broker.options = now
        root = logging.getLogger()
        # Use the lower of both levels, so that the log contains the next lines.
        root.setLevel(min(root.level, logging.getLevelName(now.log_level.upper())))
        changes = (
            f"{', '.join(fresh.changed)} changed"
            if fresh.changed
            else "no option changed; access file and certificates are read again"
        )
        log.info("configuration reloaded: %s", changes)
        for name in (*kept, *fresh.restart):
            log.warning("%s keeps its old value until the broker is restarted", name)
        self._apply(before)

    def _apply(self, before: ServeOptions) -> None:
        now = self._broker.options
        logging.getLogger().setLevel(now.log_level.upper())
        self._processes.table.log_level = now.log_level
        self._on_reload()
        self._singles.renew()
        if dict(now.retention) != dict(before.retention):
            self._to_configure = {
                group.name: (0, 0)
                for group in self._broker.groups.values()
                if not group.row.in_memory
            }
        self._number += 1
        self._refusing.clear()
        now_ns = time.monotonic_ns()
        for key, child in self._processes.children.items():
            owing = self._owing.setdefault(key, _Owing(child, now_ns))
            owing.asked = 0
        self.tick()

    def tick(self) -> None:
        """Send reloads to the actors that are up and have not answered yet."""
        children, now_ns = self._processes.children, time.monotonic_ns()
        for key, owing in list(self._owing.items()):
            child = children.get(key)
            if child is None or child.told_to_stop:
                del self._owing[key]
            elif child.state == "up" and not owing.asked and now_ns >= owing.again_ns:
                owing.asked = self._number
                then = partial(self._reloaded, owing, self._number)
                patience_s = options.RELOAD_S if owing.missed else options.RELOAD_FIRST_S
                self._order(
                    child,
                    partial(reload_order, kind=child.spec.kind, now=self._broker.options),
                    then,
                    patience_s,
                )
        for name, (asked, again_ns) in list(self._to_configure.items()):
            group = self._broker.groups.get(name)
            if group is None:
                del self._to_configure[name]
            elif (
                group.topic is not None
                and group.topic.state == "up"
                and group.topic.spec.key != asked
                and now_ns >= again_ns
            ):
                key = group.topic.spec.key
                self._to_configure[name] = key, 0
                retention = cast("TopicOptions", group.retention().as_dict())
                self._order(
                    group.topic,
                    partial(p.SetRetention, retention=retention),
                    partial(self._configured, name, key),
                    options.RELOAD_S,
                )
        for key, gone in list(self._killed.items()):
            successors = self._singles.of_kind(gone.spec.kind)
            if any(child.state == "up" and child.spec.key > key for child in successors):
                del self._killed[key]
        self._tell_in_force()

    def _tell_in_force(self) -> None:
        """Write to the log, once for each reload, that no gateway uses the old rules any more."""
        late = any(is_door(owing.child.spec.kind) for owing in self._owing.values())
        if self._in_force < self._number and not late and not self._killed:
            self._in_force = self._number
            but = f", but not at {', '.join(sorted(self._refusing))}" if self._refusing else ""
            log.info("the new settings are in force at all gateways%s", but)

    def trouble(self) -> str:
        """Return which gateways do not have the new settings, or "" if all have them.

        At these gateways a client may still use rights that have been taken away.
        """
        limit = time.monotonic_ns() - int(options.RELOAD_HEALTH_S * 1e9)
        late = [
            owing.child.spec.title
            for owing in self._owing.values()
            if is_door(owing.child.spec.kind) and owing.since_ns < limit
        ]
        titles = sorted({*late, *(child.spec.title for child in self._killed.values())})
        text = "the new settings (access file, certificates) are not in force yet"
        return f"{', '.join(titles)}: {text}" if titles else ""

    def _order(
        self,
        child: Child,
        make: Callable[[int], p.Order[p.Done]],
        then: Callable[[str], None],
        patience_s: float,
    ) -> None:
        """Send an order.

        `then` gets "" when the child has answered, or the reason why no answer came.
        """

        def answered(done: p.Done | None, error: ZsqError | None) -> None:
            missed = error is not None and error.code in _MISSED
            runs_on = not child.told_to_stop and child.state != "ended"
            if error is not None and not missed and runs_on:
                log.error("%s keeps its old settings: %s", child.spec.title, error.text)
                if is_door(child.spec.kind):
                    self._refusing.add(child.spec.title)
            then(error.text if error is not None and missed else "")

        self._orders.send(child, make, answered, patience_s)

    def _reloaded(self, owing: _Owing, number: int, missed: str) -> None:
        child = owing.child
        if owing.asked != number or self._owing.get(child.spec.key) is not owing:
            return  # a later reload has begun, or the actor has ended
        if not missed:
            del self._owing[child.spec.key]
            self._tell_in_force()
        elif child.told_to_stop or child.state == "ended" or self._broker.stopping:
            return
        elif is_door(child.spec.kind) and time.monotonic_ns() - owing.since_ns >= int(
            options.RELOAD_S * 1e9
        ):
            log.error(
                "%s did not apply the new settings (%s): it is killed and started again with them",
                child.spec.title,
                missed,
            )
            del self._owing[child.spec.key]
            self._killed[child.spec.key] = child
            self._processes.kill(child)
        else:  # its connection may have broken and come back
            log.warning(
                "%s did not apply the new settings (%s): they are sent again",
                child.spec.title,
                missed,
            )
            owing.missed += 1
            owing.asked, owing.again_ns = 0, time.monotonic_ns() + _AGAIN_NS

    def _configured(self, topic: str, key: int, missed: str) -> None:
        if self._to_configure.get(topic) != (key, 0):
            return
        if missed:
            self._to_configure[topic] = 0, time.monotonic_ns() + _AGAIN_NS
        else:
            del self._to_configure[topic]
