"""Model test of publishers, writers, seals, commits, aborts, restarts and crashes in any order.
After each step all promises are checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.faulty_files import keep_all, keep_none

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


class Machine(RuleBasedStateMachine):
    """Publishers, writers, seals, commits, aborts, restarts and crashes in any order. After each
    step all promises are checked.
    """

    harness: StorageHarness
    folder: Path

    @initialize()
    def start(self) -> None:
        self.harness = self.make()
        self.version = 1
        self.harness.open()

    make: staticmethod  # type: ignore[type-arg]

    @rule(blocks=st.integers(1, 3), count=st.integers(1, 12))
    def publish(self, blocks: int, count: int) -> None:
        self.harness.publish(blocks=blocks, count=count)

    @rule()
    def sync(self) -> None:
        self.harness.sync()

    @rule(name=st.sampled_from("abc"), blocks=st.integers(0, 9))
    def push(self, name: str, blocks: int) -> None:
        name = f"{name}{self.version}"
        if not self.harness.sealed.get(name.encode().ljust(16, b"_"), (0, False))[1]:
            self.harness.stage(name, self.version, blocks=blocks)

    @precondition(lambda self: self.harness.staged)
    @rule(data=st.data(), final=st.booleans())
    def seal(self, data: st.DataObject, final: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.harness.staged)))
        if not self.harness.sealed.get(key, (0, False))[1]:
            self.harness.seal(key, final=final)

    @precondition(lambda self: any(final for _, final in self.harness.sealed.values()))
    @rule(data=st.data(), lag=st.booleans())
    def commit(self, data: st.DataObject, lag: bool) -> None:
        ready = sorted(
            key
            for key, (_, final) in self.harness.sealed.items()
            if final and self.harness.staged[key]
        )
        keys = data.draw(st.lists(st.sampled_from(ready), unique=True, min_size=1)) if ready else []
        if keys:
            self.harness.commit(self.version, *keys, lag=lag)
            rest = list(self.harness.staged)
            self.harness.drop(*rest, lag=lag)
            self.version += 1
            if lag:
                self.crash(data)

    @precondition(lambda self: self.harness.staged)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.harness.drop(data.draw(st.sampled_from(sorted(self.harness.staged))))

    @rule()
    def restart(self) -> None:
        self.harness.restart()
        self.harness.after_crash()

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        choose = data.draw(st.sampled_from([keep_all, keep_none, None]))
        if choose is None:
            numbers = data.draw(st.randoms(use_true_random=False))
            self.harness.crash(lambda number, change: numbers.randint(0, max(1, len(change.data))))
        else:
            self.harness.crash(choose)
        self.harness.after_crash()
        found = self.harness.check()
        self.harness.sent = self.harness.sent[: found[-1] + 1] if found else []
        self.harness.offsets = {
            sequence: offset
            for sequence, offset in self.harness.offsets.items()
            if sequence in found
        }

    @invariant()
    def promises_hold(self) -> None:
        if hasattr(self, "harness"):
            self.harness.check_groups(list(self.harness.read_all()))

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.abandon()


def test_all_promises_hold_after_steps_in_any_order(
    tmp_path: Path, group_case: StorageHarness
) -> None:
    number = 0

    def make() -> StorageHarness:
        nonlocal number
        number += 1
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        return type(group_case)(folder, group_case.options)

    class Here(Machine):
        pass

    Here.make = staticmethod(make)
    run_state_machine_as_test(
        Here, settings=settings(max_examples=40, stateful_step_count=25, deadline=None)
    )
