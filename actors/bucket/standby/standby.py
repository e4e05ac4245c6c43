"""Standby: one run of `zsq standby`, until it takes over or is told to stop.

| state | event | next |
|---|---|---|
| STARTING | the log of ticks is applied | FOLLOWING |
| FOLLOWING | the bucket does not answer | AWAY |
| FOLLOWING | ticks that it needs were removed, or do not follow each other | STARTING |
| AWAY | the bucket answers again | FOLLOWING |
| FOLLOWING | its patience is over, and the takeover was created | TAKING |
| FOLLOWING | its patience is over, but the log has gone on | FOLLOWING |
| TAKING | the bucket does not answer | STARTING, and at once TAKING again |
| TAKING | the data directory is complete | the broker starts in this process |

One thread talks to the bucket, and does one thing after the other (`StandbyLoop`). The main thread
waits for signals. Two more threads answer clients (`standby_gateway.py`).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final

from ....storage.bucket.bucket import Bucket, BucketAway, BucketError
from ....storage.bucket.probe import probe
from ....storage.bucket.shipping.follower import Follower
from ....storage.bucket.shipping.ship_log import Fenced
from ....storage.bucket.shipping.standbys import (
    ANNOUNCE_S,
    UNKNOWN_S,
    Notice,
    announce,
    terms_for,
    withdraw,
)
from ....storage.bucket.shipping.tick_format import STANDBY_NAME, Copy, encode_copy
from ....storage.errors import StorageError
from ....storage.files import Files
from ....transport.units import NS_PER_S
from ...supervisor.topics.registry_format import decode
from .patience import Patience
from .standby_gateway import StandbyStatus
from .takeover import (
    FOLLOWED,
    TakeoverFailed,
    fence,
    make_primary,
    read_copy,
)

log = logging.getLogger("zsq")

POLL_S_MAX: Final = 0.5
POLL_S_MIN: Final = 0.02
POLLS: Final = 20  # in one patience
LOOK_S: Final = 10.0  # how often a quiet standby looks whether the log has moved on without it
PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 5.0
AGAIN_S_MAX: Final = 60.0


class StandbyState(Enum):
    STARTING = "starting"
    FOLLOWING = "following"
    AWAY = "away"
    TAKING = "taking over"


class StandbyLoop:
    """The thread of a standby. `pause` waits for some seconds, and returns True to end.

    `addresses` are those at which this broker listens when it is primary.
    """

    def __init__(
        self,
        files: Files,
        bucket: Bucket,
        data_dir: Path,
        patience_s: float,
        addresses: tuple[str, ...],
        pause: Callable[[float], bool],
    ) -> None:
        self._files = files
        self._bucket = bucket
        self._data_dir = data_dir
        self._addresses = addresses
        self._pause = pause
        self.follower = Follower(files, bucket, f"{data_dir}/{FOLLOWED}")
        self.copy = self._read_or_make_copy()
        self.patience = Patience(patience_s, time.monotonic_ns())
        self._poll_s = min(POLL_S_MAX, max(POLL_S_MIN, patience_s / POLLS))
        self._announce_ns = self._unknown_ns = 0
        self._look_ns = 0
        self.state = StandbyState.STARTING
        self.trouble = ""
        self._is_probed = False
        self._pause_s = self._again_s = PAUSE_S
        self._away_ns = 0  # since when the bucket does not answer
        self._topics = 0
        self._registry = b""

    def _read_or_make_copy(self) -> str:
        """Return the identity of this standby, which it keeps from its first start on."""
        path = f"{self._data_dir}/{STANDBY_NAME}"
        copy = read_copy(self._files, path)
        if copy is None:
            copy = Copy("", uuid.uuid4().hex)
            self._files.replace_file(path, encode_copy(copy))
        return copy.copy

    # The loop

    def run(self) -> bool:
        """Follow until this broker is primary. Return False if it was told to end before.

        Raises `TakeoverFailed` or an error of a file.
        """
        while True:
            wait_s = self.turn()
            if wait_s is None:
                return True
            if self._pause(wait_s):
                return False

    def turn(self) -> float | None:
        """Do one thing. Return how long to wait before the next, or None if this is primary."""
        try:
            if self.state is StandbyState.STARTING:
                self._begin()
                return 0.0
            return self._follow()
        except BucketError as error:
            return self._failed(error)
        except StorageError as error:
            return self.begin_again(str(error))

    def _begin(self) -> None:
        if not self._is_probed:  # now, because there is no time for it at a takeover
            probe(self._bucket, self._files)
            self._is_probed = True
        self.follower.begin()
        last = self.follower.last
        assert last is not None
        self._check_goes_on()
        log.info(
            "follows %s: applied %.1f MiB up to tick %d, written by host %s",
            self._bucket.url, self.follower.applied_bytes / 2**20, last.index.number,
            last.index.host,
        )  # fmt: skip
        self.patience.saw(last.index, time.monotonic_ns())
        self._look_at_registry()
        self._announce()
        self._now_follows()

    def _check_goes_on(self) -> None:
        """Raise `TakeoverFailed` if nobody may continue this log."""
        last = self.follower.last
        if last is not None and last.index.is_ended:
            raise TakeoverFailed(
                f"{self._bucket.url}: the cluster has forgotten this broker, so nobody takes over "
                "from it: its parts are at other brokers. `zsq rescue` shows what it had not "
                "shipped. To use this machine again, give it an empty data directory and another "
                "--bucket"
            )

    def _now_follows(self) -> None:
        """Go on. After a long absence the primary gets its time too, because it was away as well.

        A request that failed now and then must not begin the patience anew: with a bucket that is
        only unreliable it would never end.
        """
        now_ns = time.monotonic_ns()
        if self.state is StandbyState.AWAY:
            log.warning("the bucket answers again")
            if now_ns - self._away_ns > self.patience.patience_s / 2 * NS_PER_S:
                self.patience.waits_from(now_ns)
        self.state, self.trouble = StandbyState.FOLLOWING, ""

    def _follow(self) -> float | None:
        asked_ns = time.monotonic_ns()
        is_new = self.follower.step()
        self._now_follows()
        self._pause_s = self._again_s = PAUSE_S
        last = self.follower.last
        assert last is not None
        self._check_goes_on()
        if is_new:
            self.patience.saw(last.index, time.monotonic_ns())
            self._look_at_registry()
            return 0.0
        # The last tick is this standby's own takeover if its answer was lost, or if the process
        # ended before the data directory was complete.
        if self.patience.is_over(asked_ns) or last.index.copy == self.copy:
            return self._take_over()
        if asked_ns >= (self._announce_ns if last.index.lease_ms else self._unknown_ns):
            self._announce()
        if asked_ns >= self._look_ns:
            self._look_ns = asked_ns + int(LOOK_S * NS_PER_S)
            if not self.follower.look():
                return self.begin_again("ticks that it has not applied were removed")
        return self._poll_s

    def _failed(self, error: BucketError) -> float:
        """Wait for the bucket, or begin again if the log is not what was expected.

        A takeover that was begun is begun again too: its directories are half made.
        """
        if self.state is StandbyState.TAKING:
            return self.begin_again(str(error))
        if isinstance(error, BucketAway) or self.state is StandbyState.STARTING:
            if not self.trouble:
                log.error("cannot follow: %s; it is tried again", error)
            self.trouble = str(error)
            if self.state is StandbyState.FOLLOWING:
                self.state, self._away_ns = StandbyState.AWAY, time.monotonic_ns()
            pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_S_MAX)
            return pause_s
        return self.begin_again(str(error))

    def begin_again(self, why: str) -> float:
        log.warning("applies the log of ticks again: %s", why)
        self.state = StandbyState.STARTING
        # It reads the whole log of ticks again, so not too often.
        pause_s, self._again_s = self._again_s, min(2 * self._again_s, AGAIN_S_MAX)
        return pause_s

    def _announce(self) -> None:
        """Let the primary know that this standby is there. It is repeated from time to time, and
        sooner while the ticks have no lease, so that the primary knows no standby.
        """
        notice = Notice(
            self.copy, socket.gethostname(), self._addresses, self.patience.patience_s,
            time.time_ns(),
        )  # fmt: skip
        announce(self._bucket, notice)
        now_ns = time.monotonic_ns()
        self._announce_ns = now_ns + int(ANNOUNCE_S * NS_PER_S)
        self._unknown_ns = now_ns + int(UNKNOWN_S * NS_PER_S)

    def _look_at_registry(self) -> None:
        registry = self.follower.registry
        if registry is self._registry or not registry:
            return
        self._registry = registry
        content = decode(registry, f"{self._bucket.url}, its registry")
        self.follower.keep_only(frozenset(row.uuid for row in content.topics.values()))
        self._topics = len(content.topics)

    # The takeover

    def _take_over(self) -> float | None:
        last = self.follower.last
        assert last is not None
        index = last.index
        quiet_s = self.patience.quiet_s(time.monotonic_ns())
        if not self.follower.registry:
            self.patience.waits_from(time.monotonic_ns())
            log.warning("does not take over: the log of ticks has no registry of topics yet")
            return self._poll_s
        lease_ms = terms_for(self.patience.patience_s).lease_ns // 1_000_000
        try:
            fence(self._bucket, self.follower, self.copy, self._addresses, lease_ms)
        except Fenced:
            return 0.0  # there is a new tick
        self.state = StandbyState.TAKING
        why = "it has handed over" if index.is_released else f"it was quiet for {quiet_s:.1f} s"
        log.warning("takes over from copy %s on host %s: %s", index.copy[:8], index.host, why)
        begun_ns = time.monotonic_ns()
        restored = make_primary(
            self._files, self._data_dir, self.follower, self.copy, str(self._bucket.url)
        )
        try:
            withdraw(self._bucket, self.copy)
        except BucketError as error:
            log.debug("the notice of this standby stays: %s", error)
        messages = sum(topic.log_messages + topic.archived_messages for topic in restored)
        log.warning(
            "is primary: %d topics with %d messages, made ready in %.2f s",
            len(restored), messages, (time.monotonic_ns() - begun_ns) / NS_PER_S,
        )  # fmt: skip
        return None

    def end(self) -> None:
        """Close the stores, and say that this standby is gone."""
        self.follower.close()
        if self.state is not StandbyState.STARTING:
            try:
                withdraw(self._bucket, self.copy)
            except StorageError as error:
                log.debug("the notice of this standby stays: %s", error)

    # Reports

    def status(self) -> StandbyStatus:
        """Return what this standby does. Any thread may call it."""
        now_ns = time.monotonic_ns()
        last = self.follower.last
        index = last.index if last is not None else None
        due_s = max(0, self.patience.due_ns() - now_ns) / NS_PER_S
        # While it starts again, the follower still has the registry of the log before.
        may_take_over = self.state is not StandbyState.STARTING and self.follower.registry
        return StandbyStatus(
            state=self.state.value,
            bucket=str(self._bucket.url),
            number=index.number if index is not None else -1,
            epoch=index.epoch if index is not None else 0,
            quiet_s=round(self.patience.quiet_s(now_ns), 3),
            takes_over_in_s=round(due_s, 3) if may_take_over else -1.0,
            patience_s=self.patience.patience_s,
            topics=self._topics,
            applied_bytes=self.follower.applied_bytes,
            primary=index.addresses if index is not None else (),
            primary_host=index.host if index is not None else "",
            trouble=self.trouble,
        )


class StandbyThread:
    """Runs a `StandbyLoop` in a thread. `ended` is called there when it ends."""

    def __init__(
        self, make: Callable[[Callable[[float], bool]], StandbyLoop], ended: Callable[[], object]
    ) -> None:
        self._stops = threading.Event()
        self._ended = ended
        self.loop = make(self._stops.wait)
        self.is_primary = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="zsq-standby", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self.is_primary = self.loop.run()
            if not self.is_primary:
                self.loop.end()
        except (StorageError, TakeoverFailed, OSError) as error:
            self.failure = error
        except BaseException as error:  # a defect: the main thread raises it
            self.failure = error
            raise
        finally:
            self._ended()

    def stop(self) -> None:
        """Tell the loop to end. It ends after the call to the bucket that it is in."""
        self._stops.set()

    def join(self, timeout_s: float) -> bool:
        """Return True if the thread has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
