"""Wait report: logs that a caller waits for a broker, and ends the wait where nothing listens.

A missing broker is logged after 1, 10 and 60 s, then every minute. So is an answer that is late.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from ...errors import E_UNREACHABLE, BrokerUnreachable, advice, advice_in_log
from ...wire import sockets
from .link import AGAIN, Link
from .link_host import LinkHost
from .timeouts import FAR_NS, MS, S

log = logging.getLogger("zsq")

PATIENCE_S: Final = (1, 10, 60)  # a missing broker is logged after these waits, then every minute
PROBED_NS: Final = 100 * MS  # how often to check whether the probe got an answer


class WaitReport:
    """Log of the present wait of one client, and its probe of a silent server."""

    def __init__(self, host: LinkHost) -> None:
        self._host = host
        self._line_count = 0  # the number of log lines about the present wait
        self._probe: sockets.Probe | None = None

    def on_time(self, now_ns: int, links: Sequence[Link]) -> int:
        """Log that no broker answers, or give up. Return when to check again."""
        host = self._host
        waiting = []
        for link in links:
            if link.wanted_ns != FAR_NS and not link.needed():
                link.wanted_ns = FAR_NS
            if link.wanted_ns != FAR_NS:
                waiting.append(link)
        if not waiting:
            self._probe = None
            return self._report_late_answers(now_ns, links)
        since_ns = min(link.wanted_ns for link in waiting)
        if host.hasty and not host.met and now_ns >= since_ns + host.patience_ns:
            deserted = [link for link in waiting if link.deserted]
            for link in deserted:
                link.give_up(
                    BrokerUnreachable(E_UNREACHABLE, f"{link.why()}; nothing was sent. {advice()}")
                )
            if deserted:
                return now_ns
        self._ask_what_answers(waiting, now_ns - since_ns)
        if now_ns >= self._line_due_ns(since_ns):
            self._report_missing_broker(waiting, (now_ns - since_ns) // S)
        due_ns = self._count_lines(now_ns, since_ns)
        if self._probe is not None and self._probe.answer is None:
            return min(due_ns, now_ns + PROBED_NS)
        return due_ns

    def _line_due_ns(self, since_ns: int) -> int:
        count = self._line_count
        seconds = PATIENCE_S[count] if count < len(PATIENCE_S) else (count - 1) * PATIENCE_S[-1]
        return since_ns + seconds * S

    def _count_lines(self, now_ns: int, since_ns: int) -> int:
        """Count the lines that were due. Return when the next one is."""
        while (due_ns := self._line_due_ns(since_ns)) <= now_ns:
            self._line_count += 1
        return due_ns

    def _report_late_answers(self, now_ns: int, links: Sequence[Link]) -> int:
        """Log that links are up, and an answer is late. Return when to check again."""
        late = [(link.late_since(now_ns), link) for link in links]
        since_ns, link = min(late, key=itemgetter(0), default=(FAR_NS, None))
        if link is None or since_ns == FAR_NS:
            self._line_count = 0
            return FAR_NS
        if now_ns >= self._line_due_ns(since_ns) and self._host.tells:
            text = "%s: no answer from the broker at %s for %d s (%s); waiting for it"
            seconds = (now_ns - since_ns) // S
            log.warning(text, link.target, link.address.url, seconds, link.why())
        return self._count_lines(now_ns, since_ns)

    def _ask_what_answers(self, waiting: list[Link], waited_ns: int) -> None:
        """Probe a server that accepts the connection and is silent.

        It may be another port of the broker.
        """
        host, link = self._host, waiting[0]
        if host.met or link.unheard or link.address.direct or waited_ns < host.patience_ns:
            return
        if link.rotation.several or not link.places.host:
            return  # the link does not stay at an address that is silent, or has not tried one
        if self._probe is None:
            self._probe = sockets.Probe(link.places.host, link.address.place()[1])
        elif self._probe.answer:
            host.answers, error = self._probe.verdict(link.address)
            for other in waiting:
                other.trouble = host.answers
                if error is not None:
                    other.give_up(error)

    def _report_missing_broker(self, waiting: list[Link], seconds: int) -> None:
        if not self._host.tells:
            return
        link, more = waiting[0], len(waiting) - 1
        targets = f"{link.target} and {more} more" if more else str(link.target)
        refusal = link.refusal
        if refusal is not None and refusal.code not in AGAIN and not link.unheard:
            text = "%s: refused by the broker for %d s (%s); trying until it accepts"
            log.warning(text, targets, seconds, refusal)
            return
        url = link.rotation.url if link.rotation.several else link.address.url
        log.warning(
            "%s: no broker at %s for %d s (%s); waiting for it%s",
            targets,
            url,
            seconds,
            link.why().removesuffix(f" at {url}") or "no answer",
            advice_in_log(),
        )
