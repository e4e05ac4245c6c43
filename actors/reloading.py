"""New settings for a broker that runs: on SIGHUP the supervisor reads them, takes what may change, and tells its actors.

What may change: the log level (of all processes), thresholds and receivers of alarms, what topics without settings of their own keep, the
access file, and TLS certificates. Everything else is named in the log as needing a restart, and stays as it was; so does all of it where
the new settings are wrong anywhere.

An actor is told by Order "reload"; one that is not up yet as soon as it is, for it was started with the old settings. A gateway that is
started again later gets the new ones at once: they are put into what it is started with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..storage.retention import resolve
from ..transport.errors import ZsqError
from .actor import RELOAD
from .options import ServeOptions
from .process_table import Child
from .topic_group import TopicGroup

if TYPE_CHECKING:
    from .supervisor import Supervisor

log = logging.getLogger("zsq")

GATEWAYS: Final = ("gateway", "nsq_gateway", "http_gateway")


class Fresh(NamedTuple):
    """What was read anew; `changed` and `restart` are flags: those that can be taken, and those that cannot."""

    options: ServeOptions
    changed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


def merged(now: ServeOptions, new: ServeOptions) -> tuple[ServeOptions, tuple[str, ...]]:
    """`now` with what may change of `new`, and what of that cannot be, in words."""
    kept: list[str] = []
    security, nsq, http = now.security, now.nsq, now.http
    if bool(security.access_file) != bool(new.security.access_file):
        kept.append("--access (to turn it on or off)")
    else:
        security = replace(security, access_file=new.security.access_file)
    if nsq is not None and new.nsq is not None:
        if bool(nsq.tls.cert) != bool(new.nsq.tls.cert):
            kept.append("--nsq-tls-cert (to turn TLS on or off)")
        else:
            nsq = replace(nsq, tls=replace(new.nsq.tls, required=nsq.tls.required))
    if http is not None and new.http is not None:
        if bool(http.tls_cert) != bool(new.http.tls_cert):
            kept.append("--http-tls-cert (to turn TLS on or off)")
        else:
            http = replace(http, tls_cert=new.http.tls_cert, tls_key=new.http.tls_key)
    now = replace(now, log_level=new.log_level, alarms=new.alarms, retention=new.retention)
    return replace(now, security=security, nsq=nsq, http=http), tuple(kept)


def told(kind: str, now: ServeOptions) -> dict[str, Any]:
    """What an actor of this kind is told."""
    found: dict[str, Any] = {"log_level": now.log_level}
    if kind in GATEWAYS:
        found["access_file"] = now.security.access_file
    if kind == "nsq_gateway" and now.nsq is not None:
        found["tls"] = asdict(now.nsq.tls)
    if kind == "http_gateway" and now.http is not None:
        found["tls"] = {"cert": now.http.tls_cert, "key": now.http.tls_key}
    return found


class Reloading:
    """`read` is given by whoever started the broker; None: nothing can be read anew."""

    def __init__(self, supervisor: Supervisor, read: Callable[[], Fresh] | None) -> None:
        self.supervisor = supervisor
        self._read = read
        self._to_tell: set[int] = set()  # children by key
        self._to_configure: set[str] = set()  # topics whose storage is not up

    def begin(self) -> None:
        if self._read is None:
            log.warning("SIGHUP: this broker was started without a configuration that could be read again")
            return
        try:
            fresh = self._read()
            resolve(fresh.options.retention)
        except (ZsqError, OSError) as error:
            log.error("not reloaded, all stays as it was: %s", error.text if isinstance(error, ZsqError) else error)
            return
        before = self.supervisor.options
        now, kept = merged(before, fresh.options)
        self.supervisor.options = now
        root = logging.getLogger()
        root.setLevel(min(root.level, logging.getLevelName(now.log_level.upper())))  # the more talkative one, to be heard of this
        log.info("reloaded: %s", f"{', '.join(fresh.changed)} changed" if fresh.changed else "no option has changed; files are read again")
        for name in (*kept, *fresh.restart):
            log.warning("%s needs a restart: it stays as it was", name)
        self._apply(before)

    def _apply(self, before: ServeOptions) -> None:
        now = self.supervisor.options
        logging.getLogger().setLevel(now.log_level.upper())
        self.supervisor.table.log_level = now.log_level
        self.supervisor.alarms.configure(now.alarms)
        for child in self.supervisor.singles.children.values():
            given = {"gateway": None, "nsq_gateway": now.nsq, "http_gateway": now.http}.get(child.spec.kind)
            if given is not None:
                child.spec.settings["options"] = given
            if "security" in child.spec.settings:
                child.spec.settings["security"] = now.security
        if dict(now.retention) != dict(before.retention):
            self._to_configure = {group.name for group in self.supervisor.groups.values() if not group.row.in_memory}
        self._to_tell = set(self.supervisor.table.children)
        self.tick()

    def tick(self) -> None:
        """Tell those that are up; the others' turn comes."""
        children = self.supervisor.table.children
        for key in list(self._to_tell):
            child = children.get(key)
            if child is None or child.told_to_stop:
                self._to_tell.discard(key)
            elif child.state == "up":
                self._to_tell.discard(key)
                self._order(child, RELOAD, told(child.spec.kind, self.supervisor.options))
        for name in list(self._to_configure):
            group = self.supervisor.groups.get(name)
            if group is None:
                self._to_configure.discard(name)
            elif group.storage is not None and group.storage.state == "up":
                self._to_configure.discard(name)
                self._configure(group, group.storage)

    def _configure(self, group: TopicGroup, storage: Child) -> None:
        self._order(storage, "configure", group.retention().as_dict())

    def _order(self, child: Child, action: str, given: dict[str, Any]) -> None:
        def answered(data: dict[str, Any] | None, error: ZsqError | None) -> None:
            if error is not None and not child.told_to_stop and child.state != "ended":
                log.error("%s was not reloaded: %s", child.spec.title, error.text)

        self.supervisor.management.order(child, action, given, answered)
