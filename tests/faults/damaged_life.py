"""Two failures at once: after the power cut the state store is unusable too, and is rebuilt from
its snapshot and the log.
"""

from __future__ import annotations

from zsq.storage.environment import DATA_NAME
from zsq.storage.log.log_format import STATE_NAME

from .life import Facts, Life


class DamagedLife(Life):
    """A life with weaker checks after the rebuild: messages may be delivered again, but no message
    is lost. The set of channels and the pauses must be unchanged, and removed chunks must not come
    back.
    """

    destroyed = False

    def recover(self) -> None:
        path = f"{self.directory}/{STATE_NAME}/{DATA_NAME}"
        if self.commits and not self.destroyed and self.files.exists(path):
            fd = self.files.open_append(path)
            self.files.writev(fd, [b"\xff" * self.files.size(fd)], 0)
            self.files.sync(fd)
            self.files.close(fd)
            self.destroyed = self.damaged = True
        super().recover()

    def check_facts(self, now: Facts, allowed: list[Facts]) -> None:
        if not self.destroyed or now in allowed:
            super().check_facts(now, allowed)
            return
        problems = [problem for before in allowed if (problem := self._lost(before, now))]
        assert len(problems) < len(allowed), problems

    def _lost(self, before: Facts, now: Facts) -> str:
        if now["channels"].keys() != before["channels"].keys():
            return f"channels {list(before['channels'])} became {list(now['channels'])}"
        if now["start"] < before["start"] or now["paused"] != before["paused"]:
            return f"{before} became {now}"
        for name, row in before["channels"].items():
            lost = self._unfinished(before, name) - self._unfinished(now, name)
            if lost or row.paused != now["channels"][name].paused:
                return (
                    f"channel {name}: {sorted(lost)} are taken for finished, or its pause changed"
                )
        return ""

    def _unfinished(self, facts: Facts, name: str) -> set[int]:
        rows = [*facts["holes"].get(name, ()), *facts["deferred"].get(name, ())]
        left = {offset for row in rows for offset in range(row.start, row.start + row.count)}
        left.update(range(facts["channels"][name].next_offset, self.log.end))
        return {offset for offset in left if offset >= self.log.start}
