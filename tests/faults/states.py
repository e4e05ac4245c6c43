"""All disks that a power cut may leave during a recorded workload. There are disks for each step,
with any part of the unsynced changes.

The model is the one that `storage/log/recovery.py` promises to survive. Writes and cuts of a file
are certain after that file is synced. Names are certain after their folder is synced. A rename is
one change. But if it moves a file to another folder, the old name may still exist until the old
folder is synced. Each uncertain change may be on disk completely, not at all, or (if it is a write)
in part. A write may be torn at a sector border (512), at a page border (4096) or anywhere, at its
beginning or at its end. The file may be as long as after the whole write, or shorter.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from .recording import Step, Trace

BORDERS: Final = (512, 4096)
TEARS_MAX: Final = 6  # the most ways to tear one write, for each border size
_END: Final = 1 << 62


class Kept(NamedTuple):
    """The part of a change that is on disk: bytes [start, stop) of a write. `grown`: the file is as
    long as after the whole write, with zeros in the gap.

    `twice`: after a rename between folders, both the new name and the old one exist.
    """

    start: int = 0
    stop: int = _END
    grown: bool = False
    twice: bool = False


WHOLE: Final = Kept()
TWICE: Final = Kept(twice=True)
LENGTH_ONLY: Final = Kept(0, 0, grown=True)
Fate = tuple[Kept | None, ...]
"""For each pending change, in order, the part that is on disk, or None if it is lost."""


@dataclass(slots=True)
class Disk:
    """The certain content and the pending changes after some steps."""

    root: int
    files: dict[int, bytes]
    folders: dict[int, dict[str, int]]
    pending: list[Step] = field(default_factory=list)
    steps: int = 0

    def copy(self) -> Disk:
        return Disk(
            self.root,
            dict(self.files),
            {number: dict(names) for number, names in self.folders.items()},
            list(self.pending),
            self.steps,
        )

    def take(self, step: Step) -> None:
        self.steps += 1
        if step.kind == "sync":
            self._settle(
                [
                    one
                    for one in self.pending
                    if one.node == step.node and one.kind in {"write", "cut"}
                ]
            )
        elif step.kind == "sync_folder":
            mine = [
                one
                for one in self.pending
                if one.kind == "names" and any(entry[0] == step.node for entry in one.entries)
            ]
            self._settle(mine)
        elif step.durable:
            change(self.files, self.folders, step, WHOLE)
        else:
            self.pending.append(step)

    def _settle(self, steps: list[Step]) -> None:
        gone = set(map(id, steps))
        for step in steps:
            change(self.files, self.folders, step, WHOLE)
        self.pending = [step for step in self.pending if id(step) not in gone]


def change(
    files: dict[int, bytes], folders: dict[int, dict[str, int]], step: Step, kept: Kept
) -> None:
    if step.kind == "names":
        for folder, name, node in step.entries:
            if node >= 0:
                folders[folder][name] = node
            elif not kept.twice:
                folders[folder].pop(name, None)
        return
    content = files.get(step.node, b"")
    if step.kind == "cut":
        files[step.node] = content[: step.position].ljust(step.position, b"\0")
        return
    data = step.data[kept.start : kept.stop]
    begin = step.position + kept.start
    length = max(
        len(content),
        begin + len(data) if data else 0,
        step.position + len(step.data) if kept.grown else 0,
    )
    changed = bytearray(content.ljust(length, b"\0"))
    changed[begin : begin + len(data)] = data
    files[step.node] = bytes(changed)


def prefixes(trace: Trace) -> Iterator[Disk]:
    """Yield the disk before the first step, and after each step."""
    disk = Disk(
        trace.root,
        dict(trace.files),
        {number: dict(names) for number, names in trace.folders.items()},
        list(trace.pending),
    )
    yield disk.copy()
    for step in trace.steps:
        disk.take(step)
        yield disk.copy()


def paths(disk: Disk) -> dict[str, int]:
    """Return each path below the root, with its node, as running processes see it: with all pending
    changes.
    """
    folders = {number: dict(names) for number, names in disk.folders.items()}
    for step in disk.pending:
        if step.kind == "names":
            change({}, folders, step, WHOLE)
    found = {"": disk.root}

    def walk(number: int, path: str) -> None:
        for name, node in folders[number].items():
            found[f"{path}/{name}"] = node
            if node in folders:
                walk(node, f"{path}/{name}")

    walk(disk.root, "")
    return found


def continued(disk: Disk, trace: Trace) -> Trace:
    """Join two recordings. The next process recorded `trace` on this disk with all pending changes.
    The changes that were pending before are still uncertain.
    """
    known = paths(disk)
    numbers = {node: known[path] for path, node in trace.paths.items()}
    first_new = (
        max((*disk.files, *disk.folders, *known.values(), *(step.node for step in disk.pending)))
        + 1
    )

    def of(node: int) -> int:
        return node if node < 0 else numbers.setdefault(node, first_new + len(numbers))

    steps = [
        step._replace(
            node=of(step.node),
            entries=tuple((of(folder), name, of(node)) for folder, name, node in step.entries),
        )
        for step in trace.steps
    ]
    folders = {
        **disk.folders,
        **{of(number): {} for number in trace.folders if of(number) >= first_new},
    }
    return Trace(
        disk.root,
        disk.files,
        folders,
        steps,
        trace.promises,
        pending=list(disk.pending),
        recovered=trace.recovered,
    )


def fates(disk: Disk, chance: random.Random) -> Iterator[Fate]:
    """Yield possible fates of the pending changes: each way of losing or keeping one of them,
    completely or in part, and of losing the first or the last ones.
    """
    pending = disk.pending
    count = len(pending)
    everything: Fate = (WHOLE,) * count
    nothing: Fate = (None,) * count
    yield everything
    if not count:
        return
    yield nothing
    for other in (True, False):
        yield tuple(WHOLE if (step.kind == "names") is other else None for step in pending)
    for i in range(count):
        for rest in (everything, nothing):
            for kept in (None, WHOLE) if rest is everything else (WHOLE,):
                yield (*rest[:i], kept, *rest[i + 1 :])
            for kept in parts(pending[i], chance, disk):
                yield (*rest[:i], kept, *rest[i + 1 :])
        # The later changes are on disk, and the earlier ones are not.
        yield (*nothing[:i], *everything[i:])
        yield (*everything[:i], *nothing[i:])


def random_fates(disk: Disk, chance: random.Random, count: int) -> Iterator[Fate]:
    """Yield fates in which a random part of each change is on disk."""
    for _ in range(count if len(disk.pending) > 1 else 0):
        yield tuple(_any_part(step, chance, disk) for step in disk.pending)


def parts(step: Step, chance: random.Random, disk: Disk) -> list[Kept]:
    """Return the parts of a change that may be on disk."""
    if step.kind == "names":
        moved = len({folder for folder, _, _ in step.entries}) > 1 and not any(
            node in disk.folders for _, _, node in step.entries
        )
        return [TWICE] if moved else []
    size = len(step.data)
    if step.kind != "write" or size < 2:
        return []
    cuts: set[int] = {chance.randrange(1, size)}
    for border in BORDERS:
        found = [
            at - step.position
            for at in range(step.position // border * border + border, step.position + size, border)
        ]
        cuts.update(
            found
            if len(found) <= TEARS_MAX
            else [*found[:2], *found[-2:], *chance.sample(found[2:-2], TEARS_MAX - 4)]
        )
    ways = [LENGTH_ONLY]
    for cut in sorted(cuts):
        ways += [Kept(0, cut), Kept(0, cut, grown=True), Kept(cut)]
    return ways


def _any_part(step: Step, chance: random.Random, disk: Disk) -> Kept | None:
    dice = chance.random()
    if dice < 0.4:
        return WHOLE
    if dice < 0.8:
        return None
    ways = parts(step, chance, disk)
    return chance.choice(ways) if ways else WHOLE


Tree = dict[str, bytes | None]
"""Path below the root -> content, or None for a folder."""


def tree_of(disk: Disk, fate: Fate) -> Tree:
    """Return the content of the disk after the power cut."""
    if disk.pending:
        files, folders = (
            dict(disk.files),
            {number: dict(names) for number, names in disk.folders.items()},
        )
        for step, kept in zip(disk.pending, fate, strict=True):
            if kept is not None:
                change(files, folders, step, kept)
    else:
        files, folders = disk.files, disk.folders
    tree: Tree = {}

    def walk(number: int, path: str) -> None:
        for name, node in sorted(folders[number].items()):
            inner = f"{path}/{name}"
            if node in folders:
                tree[inner] = None
                walk(node, inner)
            else:
                tree[inner] = files.get(node, b"")

    walk(disk.root, "")
    return tree


def digest(tree: Tree, salt: bytes) -> bytes:
    made = blake2b(salt, digest_size=12)
    for path, content in tree.items():
        made.update(b"%s\0%d\0" % (path.encode(), -1 if content is None else len(content)))
        made.update(content or b"")
    return made.digest()


def lay_down(root: str, tree: Tree) -> None:
    for path, content in tree.items():
        if content is None:
            os.mkdir(root + path)
            continue
        fd = os.open(root + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if content:
                os.pwrite(fd, content, 0)
        finally:
            os.close(fd)
