"""Lives of a topic's stages and groups, for `calls.py`."""

from __future__ import annotations

from functools import partial

from faults.call_lives import FULL_CODES, Step, StoreLife, Violation, require
from support.storage_harness import GROUPS

from zsq.storage.errors import StorageError, StoreFailed
from zsq.storage.state.state import StateBatch


class GroupLife(StoreLife):
    """Stages are written, sealed and committed as groups. A commit appends blocks to the log,
    adopts files of stages as chunks, does both, or merges small parts. Other blocks are published
    in between.
    """

    options = GROUPS
    merge = False
    staging_failed = False

    def prepare(self) -> None:
        self.harness.commit_dropped = self.commit_dropped  # type: ignore[method-assign]
        # A file that could not be removed stays until the next start.
        self.harness._check_names = lambda: None  # type: ignore[method-assign]

    def steps(self) -> list[Step]:
        return [
            self.publish(), self.sync, partial(self.stage, "a", 1, 2), partial(self.seal, "a"), partial(self.stage, "b", 1, 2),
            partial(self.seal, "b"), self.publish(), partial(self.commit_group, 1, "a", "b"), self.read, partial(self.stage, "c", 2, 10),
            partial(self.seal, "c", final=False), partial(self.stage, "c", 2, 4), partial(self.seal, "c"), partial(self.stage, "d", 2, 3),
            partial(self.seal, "d"), partial(self.stage, "e", 3, 1), self.publish(), partial(self.commit_group, 2, "c", "d"),
            partial(self.abort, "e"), self.publish(), self.sync, self.read,
        ]  # fmt: skip

    def stage(self, name: str, version: int, blocks: int) -> None:
        key = name.encode().ljust(16, b"_")
        try:
            self.harness.stage(name, version, blocks)
        except StorageError as error:
            self.staging_failed = isinstance(error, StoreFailed)
            if key in self.harness.staging.stages():
                self.harness.staged[key] = self.harness.staged[key][
                    : self.harness.staging.facts(key).blocks
                ]
            raise

    def seal(self, name: str, final: bool = True) -> None:
        key = name.encode().ljust(16, b"_")
        if key in self.harness.staged:
            self.harness.seal(key, final=final)

    def commit_group(self, version: int, *names: str) -> None:
        keys = [name.encode().ljust(16, b"_") for name in names]
        if self.harness.tried.keys() <= self.harness.groups.keys() and all(
            self.harness.sealed.get(key, (0, False))[1] for key in keys
        ):
            self.harness.commit(version, *keys, merge=self.merge)

    def abort(self, name: str) -> None:
        key = name.encode().ljust(16, b"_")
        if key in self.harness.staged:
            self.harness.drop(key)

    def commit_dropped(self, batch: StateBatch) -> None:
        """Commit in order. If the disk was full, commit the same batch again later. Then remove the
        files of the committed stages.
        """
        if batch.applied_offset is not None:
            batch.producers = self.producers(batch.applied_offset)
        self.commit(batch)

    def commit_one(self, batch: StateBatch) -> None:
        super().commit_one(batch)
        if batch.stage_gones:
            self.harness.staging.purge(batch)

    def while_failing(self) -> None:
        """Staging that has failed must accept nothing more."""
        super().while_failing()
        if self.staging_failed:
            try:
                self.harness.staging.append(b"x" * 16, [])
            except StoreFailed:
                return
            raise Violation("staging that failed goes on")

    def go_on(self) -> None:
        """Repeat the seals and commits that were refused. They must succeed now."""
        self.commit_waiting()
        self.drop_superseded()
        self.harness.seal(*(key for key in self.harness.staged if key not in self.harness.sealed))
        for version, parts in self.harness.tried.items():
            if version > max(self.harness.groups, default=0) and all(
                key in self.harness.staged for key in parts
            ):
                self.harness.seal(
                    *(key for key in parts if not self.harness.sealed.get(key, (0, False))[1])
                )
                self.harness.commit(version, *parts)
        super().go_on()
        # This process does not read blocks again that it could not read.
        if not self.harness.damage:
            self.harness.check()

    def is_harmless(self, alarm: str) -> bool:
        """Return True if the footer of the chunk before the adopted ones is missing because the
        disk was full. Readers can do without it.
        """
        return self.files.code in FULL_CODES and "its footer is missing" in alarm

    def drop_superseded(self) -> None:
        """Drop the stages whose version is not newer than the last commit. Recovery drops them
        too.
        """
        known = self.harness.staging.stages()
        for key in list(self.harness.staged):
            if key not in known or known[key].transaction.version <= max(
                self.harness.groups, default=0
            ):
                self.harness.drop(key)

    def check_log(self) -> None:
        del self.harness.__dict__["_check_names"]
        super().check_log()
        self.prepare()
        require(not self.harness.damage, f"damage: {self.harness.damage}")

    def afterlife(self) -> None:
        self.forget_lost()
        self.harness.go_on()
        self.files.lose_lmdb = True
        super().afterlife()


class MergeLife(GroupLife):
    """A commit of so many small parts that they are merged first."""

    merge = True

    def steps(self) -> list[Step]:
        names = ["m", "n", "o", "p"]
        found: list[Step] = [self.publish()]
        for name in names:
            found += [partial(self.stage, name, 1, 4), partial(self.seal, name)]
        return [*found, partial(self.commit_group, 1, *names), self.publish(), self.sync, self.read]
