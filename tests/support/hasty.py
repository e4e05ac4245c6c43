"""A fake file system that loses unsynced data. It records each *hasty* rename: the rename of a file
or folder that is not completely on disk.
"""

from __future__ import annotations

from support.faulty_files import FaultyFiles, FaultyNode

from zsq.storage.files import Files


class HastyFiles(FaultyFiles):
    """`hasty` lists each rename of a file whose bytes were not synced, or of a folder in which
    bytes or names were not synced. Files outside of the root are read from the real file system.
    """

    def __init__(self, root: str) -> None:
        self.hasty: list[str] = []
        super().__init__(root)

    def open_read(self, path: str) -> int:
        try:
            return super().open_read(path)
        except KeyError:
            return Files.open_read(self, path)

    def rename(self, old: str, new: str) -> None:
        below = self._below(self._find(old))
        loose = [
            one.kind
            for one in self.pending
            if id(one.node) in below or any(id(entry[0]) in below for entry in one.entries)
        ]
        if loose:
            self.hasty.append(f"{new}: {loose}")
        super().rename(old, new)

    def _below(self, node: FaultyNode) -> set[int]:
        return {id(node)}.union(*map(self._below, node.names_now.values()))
