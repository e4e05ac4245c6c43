"""Plan of a schedule: which due times are published now, and which are left out. Pure.

A due time is *late* by the time between it and now. It is on time if it is late by less than
GRACE_S. Otherwise it was missed: the broker was down, or the topic refused to take messages.

| policy | on time | missed |
|---|---|---|
| `one` | published | the latest is published, unless a later due time is on time |
| `all` | published | published in order, but only the last RUNS_MAX due times |
| `skip` | published | left out |

As due times are at least a minute apart, at most one is on time.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final, NamedTuple

from ..settings.schedule_settings import ALL, SKIP
from .cron import Cron

GRACE_S: Final = 60
RUNS_MAX: Final = 1_000  # due times that are published after a pause of the broker
# Missed due times are counted up to this number. A search through years takes too long.
COUNTED_MAX: Final = 10_000
_SPAN_S: Final = 3_600  # the first search looks back so far; each further one 8 times as far


class Plan(NamedTuple):
    """Decision about due times: which to publish, in order, and how many are left out.

    All due times up to `handled` are decided when the due times of `publish` are published.
    """

    publish: tuple[int, ...]
    left_out: int
    handled: int


def plan(due_times: Cron, missed: str, handled: int, now_s: int) -> Plan:
    """Return what to do about the due times after `handled`, up to now."""
    found = latest(due_times, handled, now_s, COUNTED_MAX)
    if not found:
        return Plan((), 0, handled)
    if missed == ALL:
        chosen = found[-RUNS_MAX:]
    elif missed == SKIP:
        chosen = [due for due in found[-1:] if now_s - due < GRACE_S]
    else:
        chosen = found[-1:]
    return Plan(tuple(chosen), len(found) - len(chosen), found[-1])


def latest(due_times: Cron, after_s: int, until_s: int, count_max: int) -> list[int]:
    """Return the due times after `after_s` up to `until_s`, but only the last `count_max`.

    The search begins shortly before `until_s`, and further back only if it has not found enough.
    """
    span_s = _SPAN_S
    while True:
        begin = max(after_s, until_s - span_s)
        times = list(takewhile(lambda due: due <= until_s, due_times.after(begin)))
        if begin == after_s or len(times) >= count_max:
            return times[-count_max:]
        span_s *= 8
