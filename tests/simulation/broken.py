"""Deliberate defects: each takes one promise's keeper out of the product, and the simulation must
find that within few seeds.

A defect is a place in the source and what stands there instead; it is put in as the module is
imported, in this process only. If the source has changed so that the place is not found, that is an
error: the defect has to be written anew.
"""

from __future__ import annotations

import importlib.machinery
import types
from pathlib import Path
from typing import Any, Final, NamedTuple


class Defect(NamedTuple):
    """`path`: in the repository. `faults`: only these strike, so that the few seeds of a test find
    it.
    """

    path: str
    old: str
    new: str
    faults: tuple[str, ...] = ()
    moving: bool = False  # all seeds have a client that moves channels
    archived: bool = False  # all seeds have a bucket
    ships: bool = False  # all seeds have a bucket, and ship to it
    standby: bool = False  # all seeds ship, and a standby waits in each
    urgent: bool = False  # channels have priorities
    attributes: bool = False  # all seeds have a topic whose messages have attributes


DEFECTS: Final[dict[str, Defect]] = {
    "a topic takes a gap in a producer's numbers": Defect(
        "actors/topic/ordering.py",
        "        if sequence == producer.expected:\n            if link.out_bytes",
        "        if sequence >= producer.expected:\n            producer.expected = sequence\n            if link.out_bytes",
    ),
    "a repeated block is stored again": Defect(
        "actors/topic/ordering.py",
        "        if sequence < producer.expected:\n            place =",
        "        if sequence < producer.expected:\n"
        "            self._queue.append(_Entry(producer_id, sequence, block, peer, 0))\n"
        "            producer.plain += 1\n"
        "            place =",
    ),
    "storage answers before the sync": Defect(
        "actors/storage/storage_actor.py",
        "        end = self.extension.confirmed_end()\n        while self._written",
        "        end = self._log.end\n        while self._written",
        ("power_cut",),
    ),
    "the log is not synced": Defect(
        "storage/log/log.py", "                    self._files.sync(self.fd)\n", "                    pass\n", ("power_cut",)
    ),
    "a failed sync is taken for a good one": Defect(
        "storage/log/log.py", "        if self.error is not None:\n", "        if False:\n", ("failing_sync", "power_cut")
    ),
    "a finish is confirmed before its commit": Defect(
        "actors/channel/channel.py",
        "            self.commits.confirm(mail.envelope, answer)\n        elif request or refused",
        "            self.front.send(mail.envelope, answer)\n        elif request or refused",
        ("kill_channel", "kill_topic"),
    ),
    "a seek is answered before its commit": Defect(
        "actors/channel/channel.py",
        "        self.commits.answer(p.Position(message.request, self.supply.next_offset))\n",
        "        self.commits.now = True\n        self.answer_order(p.Position(message.request, self.supply.next_offset))\n",
        ("kill_channel", "kill_topic"),
        moving=True,
    ),
    "what a seek moved to is delivered before its commit": Defect(
        "actors/channel/core.py",
        "        if self.supply.moving or self._ending or self.holds:\n",
        "        if self._ending or self.holds:\n",
        ("kill_channel", "kill_topic", "slow_disk"),
        moving=True,
    ),
    "a topic moves while a handler works": Defect(
        "actors/channel/channel.py",
        "        if self._hold_order and not self.core.in_flight:\n",
        "        if self._hold_order:\n",
        ("stop_client",),
    ),
    "a seek leaves the rows of what the channel held": Defect(
        "actors/channel/supply.py", "        return put, tuple(gone)\n", "        return put, ()\n", ("kill_channel",), moving=True
    ),
    "a socket is not checked after a send": Defect(
        "actors/runtime/port.py", "        self.unchecked = True\n        try:", "        try:"
    ),
    "an answer needs no lease": Defect(
        "actors/channel/core.py",
        "        if lease is None or lease.consumer.peer != peer:\n            return [], tuple(ranges) or (UNKNOWN_DELIVERY,)",
        "        if lease is None or lease.consumer.peer != peer:\n            return [], ()",
    ),
    "attempts are not committed before a message is sent again": Defect(
        "actors/channel/channel.py",
        "            or self.core.waits_for_commit()\n",
        "",
        ("kill_channel",),
    ),
    "a requeue's delay is forgotten": Defect(
        "actors/channel/core.py", "        if delay_ns > 0:\n", "        if delay_ns > 1 << 40:\n", ("slow_disk",)
    ),
    "delayed messages come early": Defect(
        "actors/storage/delayed.py", "(block, now + delay_ms * _MS)", "(block, now + delay_ms * _MS // 2)", ("slow_disk",)
    ),
    "channels outlive their topic": Defect(
        "actors/supervisor/topics/topic_group.py",
        "        if child is self.topic:\n            # A topic's channels end",
        "        if False:\n            # A topic's channels end",
        ("kill_topic",),
    ),
    "an ordered channel does not hold a key's messages back": Defect(
        "actors/channel/ordered.py",
        "        self._out.difference_update(self._slots.heads_in(runs))\n        super().back(runs, cause)",
        "        self._slots.release(self._slots.heads_in(runs))\n        super().back(runs, cause)",
    ),
    "messages that were read ahead are not saved": Defect(
        "actors/channel/parked.py",
        "        parked = chain(self._piles.runs(), self._unsorted)\n",
        "        parked = iter(self._unsorted)\n",
        ("kill_topic", "kill_channel"),
        urgent=True,
    ),
    "a lost consumer's messages are taken for finished": Defect(
        "actors/channel/core.py",
        "                self.supply.back(runs, cause)",
        "                self.supply.done(runs)",
    ),
    "a producer numbers a refused block anew at once": Defect(
        "transport/client/core/producer_session.py",
        "        if pending.sends == 1 and message.sequence == self.next_sequence - 1 and self._cut < 0:",
        "        if self._cut < 0:",
    ),
    "a lost link's producer forgets what was out": Defect(
        "transport/client/core/producer_session.py",
        "    _E.LOST: _to(_S.DOWN, (_A.REWIND,)),",
        "    _E.LOST: _to(_S.DOWN),",
    ),
    "an interval topic is synced each ten seconds": Defect(
        "actors/storage/storage_actor.py",
        "self.host.every(options.SYNC_INTERVAL_MS, self._start_sync, rests=True)",
        "self.host.every(10_000, self._start_sync)", ("power_cut",)
    ),
    "state runs ahead of the log": Defect(
        "actors/storage/commits.py", "        return synced_end < self._end\n", "        return False\n", ("power_cut", "slow_disk")
    ),
    "a full chunk is not synced": Defect(
        "storage/log/log.py",
        "        self._sync_active()\n        footer = ChunkFooter(",
        "        self._files.sync = lambda fd: None\n        footer = ChunkFooter(",
        ("power_cut",),
    ),
    "recovery takes only what a commit speaks of": Defect(
        "storage/log/recovery.py",
        "            scan.write_back_from = stretch.position\n",
        "            scan.write_back_from = stretch.position\n            break\n",
        ("kill_topic",),
    ),
    "a topic made again begins at 0": Defect(
        "actors/supervisor/topics/registry.py",
        "            self.ended = {**ended, name: next_offset}\n", "            self.ended = {**ended, name: 0}\n", ("kill_client",)
    ),
    "a deleted channel's row stays": Defect(
        "actors/storage/storage_actor.py",
        "        self._channels.drop(message.channel, partial(self.host.answer_order, done))\n        return None\n",
        "        return done\n",
        ("kill_client",),
    ),
    "a deletion is answered before the processes have ended": Defect(
        "actors/supervisor/commands/deletion.py",
        "    group.stop(stopped)\n", "    group.stop(lambda: None)\n    stopped()\n", ("kill_client",)
    ),
    "a gentle deletion does not ask what is unfinished": Defect(
        "actors/supervisor/commands/deletion.py", "        if not left:\n", "        if True:\n", ("kill_client",)
    ),
    "a deleted topic's files stay": Defect(
        "actors/supervisor/topics/registry.py",
        "            self._finish(name)\n            self.empty_trash()\n",
        "            self._finish(name)\n",
        ("kill_client",),
    ),
    "what is dropped unseen is not counted": Defect(
        "actors/channel/supply.py",
        "        self.counters[\"dropped_count\"] += self._unread(first, start)\n",
        "",
        ("kill_client",),
    ),
    "an archived file leaves the disk before its row is committed": Defect(
        "actors/bucket/topic/archiving.py",
        "        self._state.then(partial(self._committed, row))\n",
        "        self._committed(row)\n",
        faults=("kill_topic", "power_cut"),
        archived=True,
    ),
    "a fetch that died with the archive actor is not repeated": Defect(
        "actors/bucket/topic/archiving.py",
        "        self._cache.interrupted()\n",
        "",
        faults=("kill_archive",),
        archived=True,
    ),
    "the shipper answers before the tick exists": Defect(
        "actors/bucket/archive/tick_writer.py",
        "        thread.submit(partial(self._created, flight), partial(self.ship_log.create, tick))\n",
        "        self._on_confirmed(flight, flight.began_ns)\n"
        "        thread.submit(partial(self._created, flight), partial(self.ship_log.create, tick))\n",
        faults=("lost_disk",),
        ships=True,
    ),
    "the shipper answers a tick before an earlier one": Defect(
        "actors/bucket/archive/tick_writer.py",
        "        flight.is_done = True\n",
        "        self.flights.remove(flight)\n        self._confirm(flight, now)\n",
        faults=("lost_disk",),
        ships=True,
    ),
    "a topic ships changes before the log that they mention": Defect(
        "actors/bucket/topic/shipping.py",
        "        begins = not stretch.is_full and base.is_ready\n",
        "        if self._queue and stretch.ranges:\n"
        "            cursor = self._cursor\n"
        "            stretch = stretch._replace(\n"
        "                ranges=[], place=cursor.place, end=cursor.end_at(cursor.place), is_full=False\n"
        "            )\n"
        "        begins = not stretch.is_full and base.is_ready\n",
        faults=("lost_disk",),
        ships=True,
    ),
    "publishes are not held at the bound": Defect(
        "actors/bucket/topic/ship_bound.py",
        "        return self.oldest_ns > 0 and now_ns - self.oldest_ns > self.lag_ns\n",
        "        return False\n",
        faults=("lost_disk", "bucket_away"),
        ships=True,
    ),
    "offsets are given out that are not reserved": Defect(
        "actors/bucket/topic/offset_reserve.py",
        "        runs_out = self._taken_end + messages > self.end\n",
        "        runs_out = False\n",
        faults=("lost_disk", "bucket_away"),
        ships=True,
    ),
    "a takeover does not skip the window": Defect(
        "storage/bucket/shipping/tick_format.py",
        "(WINDOW if index.kind == TAKEOVER else 0)",
        "0",
        faults=("lost_disk", "kill_archive"),
        ships=True,
    ),
    "a boundary does not wait until the topics have shipped again": Defect(
        "actors/bucket/archive/log_collector.py",
        "        oldest = min([last, registry_number, *needed.values()])\n",
        "        oldest = target\n",
        faults=("kill_topic",),
        ships=True,
    ),
    "a restored topic continues at its end": Defect(
        "storage/bucket/shipping/restore.py",
        "            if end < self.shipped.reserved:\n",
        "            if False:\n",
        faults=("lost_disk",),
        ships=True,
    ),
    "a broker that has lost goes on": Defect(
        "actors/bucket/archive/tick_writer.py",
        "            self._on_fenced(str(result))\n            return\n",
        "            result = None\n",
        faults=("lost_disk",),
        ships=True,
    ),
    "a former primary removes what its successor has": Defect(
        "actors/bucket/archive/log_collector.py",
        "        if chain.last is not None and chain.last.index.epoch > self._takeover.epoch:\n",
        "        if False and chain.last is not None:\n",
        standby=True,
    ),
    "a chunk's object is removed before its removal is shipped": Defect(
        "actors/bucket/topic/archiving.py",
        "        self._when_shipped(partial(self._expiry_shipped, rows, self._log.start))\n",
        "        self._expiry_shipped(rows, self._log.start)\n",
        faults=("lost_disk", "bucket_away"),
        ships=True,
    ),
    "the first piece of a topic does not have its rows": Defect(
        "actors/bucket/topic/shipping.py",
        "        return self._window.lacks_base and not self._base.is_ready\n",
        "        return False\n",
        faults=("lost_disk",),
        ships=True,
    ),
    "delayed messages that may not move are due all the time": Defect(
        "actors/storage/delayed.py",
        "        if self.full or self._held or not self._open:\n",
        "        if self.full or not self._open:\n",
        faults=("lost_disk", "bucket_away"),
        ships=True,
    ),
    "readers do not wait until it is known what the bucket has": Defect(
        "actors/bucket/topic/topic_bucket.py",
        "        if self._waits_for_bucket and shipping is not None and not shipping.is_known:\n",
        "        if False:\n",
        faults=("lost_disk", "kill_topic"),
        ships=True,
    ),
    "a commit of rows does not wait for offsets": Defect(
        "actors/storage/staging.py",
        "        return self._extension.reserve(messages_of(message), again)\n",
        "        return True\n",
        faults=("lost_disk", "bucket_away"),
        ships=True,
    ),
    "a restore takes changes from before all rows": Defect(
        "storage/bucket/shipping/tick_reader.py",
        "(number == self.begins and is_same_tick)",
        "number == self.begins",
        faults=("lost_disk",),
        ships=True,
    ),
    "a takeover begins no new epoch": Defect(
        "storage/bucket/shipping/ship_log.py",
        "else chain.boundary.epoch) + 1,\n",
        "else chain.boundary.epoch),\n",
        faults=("lost_disk",),
        ships=True,
    ),
    "a takeover does not read the last ticks": Defect(
        "storage/bucket/shipping/ship_log.py",
        "                tails[piece.uuid] = advanced(tails.get(piece.uuid), piece, index.number)\n",
        "                pass\n",
        faults=("lost_disk", "kill_archive"),
        ships=True,
    ),
    "late ticks behind a takeover count": Defect(
        "storage/bucket/shipping/ship_log.py",
        "        numbers += [one for one in run if one <= takeover.index.number]\n",
        "        numbers += run\n",
        faults=("lost_disk", "kill_archive"),
        ships=True,
    ),
    "the boundary is ignored": Defect(
        "storage/bucket/shipping/ship_log.py",
        "        if not numbers or numbers[-1] < 0:\n            return NEW_LOG\n",
        "        if True:\n            return NEW_LOG\n",
        faults=("lost_disk", "kill_archive"),
        ships=True,
    ),
    "a standby does not wait for its patience": Defect(
        "actors/bucket/standby/patience.py",
        "        return self._since_ns + wait_ns(self.patience_s, self._lease_ms)\n",
        "        return self._since_ns\n",
        faults=("lost_disk",),
        standby=True,
    ),
    "a primary has no heartbeats": Defect(
        "actors/bucket/archive/shipper.py",
        "        if (due_ns or not writer.sent_ns) and time.monotonic_ns() >= due_ns:\n",
        "        if False:\n",
        faults=("lost_disk",),
        standby=True,
    ),
    "a tick counts as created although its number has another one": Defect(
        "storage/bucket/shipping/ship_log.py",
        "            if decoded.digest != tick.digest:\n                text =",
        "            if False:\n                text =",
        faults=("lost_disk",),
        ships=True,
    ),
    "a topic does not look at its lease": Defect(
        "actors/bucket/lease_cell.py",
        "        if not self._run_dir:\n            return False\n",
        "        if True:\n            return False\n",
        faults=("cut_off", "pause_machine"),
        standby=True,
    ),
    "a broker that has lost does not stop": Defect(
        "actors/bucket/supervision.py",
        "        if child.stats.get(\"shipping\") == \"lost\" and not self._broker.stopping:\n",
        "        if False:\n",
        faults=("cut_off", "pause_machine"),
        standby=True,
    ),
    "ids are forgotten at a restart": Defect(
        "storage/directory/open_ids.py",
        "        count = _read_log(index, log, start)\n",
        "        count = 0\n",
        faults=("kill_topic", "kill_supervisor"),
        attributes=True,
    ),
    "ids of delayed messages are forgotten at a restart": Defect(
        "storage/directory/open_ids.py",
        "    waiting = [] if delayed is None else delayed.ids()\n",
        "    waiting = []\n",
        faults=("kill_topic", "kill_supervisor"),
        attributes=True,
    ),
    "revocations are forgotten at a restart": Defect(
        "actors/channel/channel_opening.py",
        "    core.supply.choice.endings.go_on_with(row.revoked or ())\n",
        "",
        faults=("kill_channel", "kill_topic"),
        attributes=True,
    ),
    "a revocation is answered before its commit": Defect(
        "actors/channel/channel.py",
        "p.Cancelled((), message.keys, message.end))\n        self.commits.answer(",
        "p.Cancelled((), message.keys, message.end))\n        self.answer_order(",
        faults=("kill_channel", "kill_topic"),
        attributes=True,
    ),
    "messages that expire are delivered": Defect(
        "actors/channel/endings.py",
        "found = [expired if wall_ns >= time_ns else ALIVE",
        "found = [ALIVE",
        attributes=True,
    ),
    "a deferral uses an attempt": Defect(
        "actors/channel/core.py",
        "            for run in used(taken):\n                self._again(run",
        "            for run in taken:\n                self._again(run",
        attributes=True,
    ),
    "a key may have any number of messages in flight": Defect(
        "actors/channel/fair.py",
        "            most = min(most, self.in_flight_max - tenant.in_flight)\n",
        "            pass\n",
        attributes=True,
    ),
    "a channel with a limit sends what consumers want": Defect(
        "actors/channel/rate_limit.py",
        "        return max(0, min(self.tokens(boot_ns), self.burst - held))\n",
        "        return 1000\n",
        attributes=True,
    ),
}  # fmt: skip


def put_in(name: str) -> Defect:
    """Before the product is imported."""
    if name not in DEFECTS:
        raise SystemExit("defects:\n    " + "\n    ".join(DEFECTS))
    defect = DEFECTS[name]
    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: Any, fullname: str) -> types.CodeType | None:
        path = Path(loader.get_filename(fullname))
        if not fullname.startswith("zsq.") or not str(path).endswith(f"/{defect.path}"):
            return plain(loader, fullname)
        source = path.read_text()
        if source.count(defect.old) != 1:
            raise SystemExit(
                f"{name}: its place is there {source.count(defect.old)} times in {path}"
            )
        print(f"{name}: put into {defect.path}", flush=True)
        return compile(source.replace(defect.old, defect.new), str(path), "exec")

    loader: Any = importlib.machinery.SourceFileLoader
    loader.get_code = get_code
    return defect
