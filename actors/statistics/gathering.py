"""Gatherings: requests for fresh pulses of many processes at once, and waiting for processes to
end.

A gathering waits a second and a little more for each process that is asked, then continues with
the known pulses. If the same processes are requested again while a gathering runs, the requests
share the next one. The answers of the running gathering may be older than facts that the clients
already know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ...transport.errors import E_LIMIT, Refused
from ...transport.units import NS_PER_S
from ...transport.wire import protocol as p
from ..runtime.process_table import Child
from ..runtime.processes import Processes
from ..settings import options

Details = Mapping[int, Mapping[str, object]]  # by the child's key; `pulses.py` has the shapes
Then = Callable[[bool, Details], None]
"""A callback. It gets True if all processes have answered or ended, and the details they sent."""

_Scope = tuple[bool, frozenset[int]]  # (True for details, the children's keys)


def patience_s(child_count: int) -> float:
    """Return how long to wait for `child_count` answers.

    Each answer costs processor time, and there are fewer processors than processes.
    """
    return min(options.REPORT_S + options.REPORT_EACH_S * child_count, options.REPORT_S_MAX)


@dataclass(slots=True, eq=False)
class _Open:
    """A gathering that runs: the processes it waits for, its deadline, and its callbacks."""

    waiting: set[int]
    then: list[Then]
    deadline_ns: int
    details: dict[int, Mapping[str, object]] = field(default_factory=dict)
    scope: _Scope | None = None


class Gatherings:
    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._request = 0
        self._open: dict[int, _Open] = {}
        self._of_child: dict[int, set[int]] = {}  # key -> gatherings that wait for it
        self._by_scope: dict[_Scope, int] = {}
        # Callbacks that came while a gathering of that scope ran.
        self._next: dict[_Scope, list[Then]] = {}
        self._waiting = 0  # the number of those callbacks
        self._complete: list[int] = []  # completed by the end of a process; closed in the next tick

    def gather(self, children: Iterable[Child], then: Then, *, detailed: bool = False) -> None:
        """Ask for fresh pulses, then call `then`. Raises `Refused` (E_LIMIT)."""
        if len(self._open) + self._waiting >= options.WAITERS_MAX:
            text = (
                f"{options.WAITERS_MAX} requests for statistics wait for an answer, which is "
                "the limit; try again in a moment"
            )
            raise Refused(E_LIMIT, text)
        scope = detailed, frozenset(child.spec.key for child in children)
        if scope in self._by_scope:
            self._next.setdefault(scope, []).append(then)
            self._waiting += 1
        else:
            self._begin(scope, [then])

    def _begin(self, scope: _Scope, then: list[Then]) -> None:
        detailed, keys = scope
        self._request += 1
        children, send = self._processes.children, self._processes.send
        message = p.Ask(self._request, detailed)
        awaited = {key for key in keys if key in children and send(children[key], message)}
        self._by_scope[scope] = self._request
        self._add(
            _Open(
                awaited,
                then,
                time.monotonic_ns() + int(patience_s(len(awaited)) * NS_PER_S),
                scope=scope,
            )
        )

    def after_end(self, child: Child | None, then: Callable[[bool], None], patience: float) -> None:
        """Call `then` with True when the process has ended, or with False after `patience` s."""
        if child is None or child.state == "ended":
            then(True)
            return
        self._request += 1
        deadline_ns = time.monotonic_ns() + int(patience * NS_PER_S)
        self._add(_Open({child.spec.key}, [lambda complete, details: then(complete)], deadline_ns))

    def _add(self, gathering: _Open) -> None:
        request = self._request
        self._open[request] = gathering
        for key in gathering.waiting:
            self._of_child.setdefault(key, set()).add(request)
        if not gathering.waiting:
            self._close(request, complete=True)

    def reported(self, request: int, key: int, details: Mapping[str, object]) -> None:
        """Take a pulse that was requested."""
        gathering = self._open.get(request)
        if gathering is None or key not in gathering.waiting:
            return
        gathering.waiting.discard(key)
        self._of_child[key].discard(request)
        if details:
            gathering.details[key] = details
        if not gathering.waiting:
            self._close(request, complete=True)

    def ended(self, key: int) -> None:
        """Stop waiting for a process that ended."""
        for request in self._of_child.pop(key, ()):
            gathering = self._open[request]
            gathering.waiting.discard(key)
            if not gathering.waiting:
                self._complete.append(request)

    def tick(self, now_ns: int) -> None:
        """Close gatherings that are complete, and those that take too long."""
        complete, self._complete = self._complete, []
        for request in complete:
            self._close(request, complete=True)
        for request in [
            request for request, gathering in self._open.items() if now_ns > gathering.deadline_ns
        ]:
            self._close(request, complete=False)

    def stop(self) -> None:
        """Answer all requests that wait."""
        following, self._next, self._waiting = self._next, {}, 0
        for request in list(self._open):
            self._close(request, complete=False)
        for waiting in following.values():
            for then in waiting:
                then(False, {})

    def _close(self, request: int, complete: bool) -> None:
        gathering = self._open.pop(request, None)
        if gathering is None:
            return
        for key in gathering.waiting:
            self._of_child[key].discard(request)
        following: list[Then] = []
        if gathering.scope is not None:
            del self._by_scope[gathering.scope]
            following = self._next.pop(gathering.scope, [])
            self._waiting -= len(following)
        if gathering.scope is not None and following:
            self._begin(gathering.scope, following)
        for then in gathering.then:
            then(complete, gathering.details)
