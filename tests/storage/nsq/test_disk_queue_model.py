"""Model test of the disk queue against go-diskqueue's rules: both give the same messages and, when
they are closed, have the same files.

Each implementation also opens the files that the other one left.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.go_disk_queue import GoDiskQueue

from zsq.storage.nsq.disk_queue import DiskQueue

FILE_BYTES = 64
NAME = "clicks:archive"


def files(folder: Path) -> dict[str, bytes]:
    """Return all files, except those that go-diskqueue leaves as `.bad` although it read them to
    their end.
    """
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(".bad")
    }


class Both(RuleBasedStateMachine):
    """Makes the same calls on a queue of each implementation, in two folders. `change_hands`
    exchanges the folders.
    """

    @initialize(sync_every=st.sampled_from([1, 3, 1000]))
    def begin(self, sync_every: int) -> None:
        self.sync_every = sync_every
        self.temporary = tempfile.TemporaryDirectory()
        root = Path(self.temporary.name)
        self.ours_in, self.go_in = root / "a", root / "b"
        self.ours_in.mkdir()
        self.go_in.mkdir()
        self.open()

    def open(self) -> None:
        self.ours = DiskQueue(
            self.ours_in,
            NAME,
            max_bytes_per_file=FILE_BYTES,
            max_msg_size=100,
            sync_every=self.sync_every,
            sync_timeout=3600.0,
        )
        self.go = GoDiskQueue(self.go_in, NAME, FILE_BYTES, 1, 100, self.sync_every)

    def shut(self) -> None:
        self.ours.close()
        self.go.close()
        assert files(self.ours_in) == files(self.go_in)

    @rule(data=st.binary(min_size=1, max_size=100))
    def put(self, data: bytes) -> None:
        self.ours.put(data)
        self.go.put(data)

    @rule(sizes=st.lists(st.integers(1, 20), max_size=12))
    def put_many(self, sizes: list[int]) -> None:
        self.ours.put_many([b"x" * size for size in sizes])
        for size in sizes:
            self.go.put(b"x" * size)

    @rule(count=st.integers(1, 15))
    def get(self, count: int) -> None:
        for _ in range(count):
            assert self.ours.get() == self.go.get()

    @rule()
    def peek(self) -> None:
        assert self.ours.peek() == self.go.peek()

    @rule()
    def empty(self) -> None:
        self.ours.empty()
        self.go.empty()

    @rule()
    def reopen(self) -> None:
        self.shut()
        self.open()
        assert not self.ours.report.notes

    @rule()
    def change_hands(self) -> None:
        """Open with each implementation the files that the other one left."""
        self.shut()
        self.ours_in, self.go_in = self.go_in, self.ours_in
        self.open()

    @invariant()
    def counted_alike(self) -> None:
        if hasattr(self, "ours"):
            assert self.ours.depth() == self.go.depth

    def teardown(self) -> None:
        if hasattr(self, "ours"):
            try:
                self.shut()
            finally:
                self.temporary.cleanup()


TestBoth = Both.TestCase
TestBoth.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
