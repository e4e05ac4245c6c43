"""Tests of the detectors: each finds its class of code, and knows the result with which a check
never refuses.
"""

from __future__ import annotations

import ast

import pytest
from mutate.detectors import DETECTORS
from mutate.sites import find, sources, switched
from mutate.tree import ROOT


def found(code: str) -> list[tuple[str, str]]:
    body = "\n".join(f"    {line}" for line in code.splitlines())
    return [(one.kind, one.how) for one in find(f"def f(self):\n{body}\n")]


@pytest.mark.parametrize(
    ("kind", "how", "code"),
    [
        ("sync", "drop", "self._files.sync(fd)"),
        ("sync", "drop", "os.fdatasync(fd)"),
        ("sync", "drop", "files.sync_all([1, 2])"),
        ("sync", "unsynced", "self._env = lmdb.open(path, lock=False, readonly=readonly)"),
        ("folder", "drop", "files.sync_folder(path)"),
        ("truncation", "drop", "os.ftruncate(fd, 0)"),
        ("truncation", "drop", "self._cut_back(chunk, error)"),
        ("rename", "drop", "self._files.rename(old, new)"),
        ("lock", "drop", "fcntl.flock(fd, fcntl.LOCK_EX)"),
        ("lock", "elsewhere", "held = files.lock(path, write=True)"),
        ("fate", "drop", "self.table.kill(child)"),
        ("fate", "drop", "os._exit(4)"),
        ("checksum", "false", "if crc32c(body) != crc: raise Damaged(1)"),
        ("checksum", "true", "return found == head_crc"),
        ("identity", "false", "if header.uuid != uuid: return None"),
        ("identity", "true", "return decode(head).seed == seed"),
        ("identity", "false", "if name == other.uuid: raise Refused(1)"),
        ("lease", "false", "if lease is None or lease.consumer.peer != peer: return ()"),
        ("lease", "true", "if word.request in self._requests: self.answer()"),
        ("lease", "false", "if request not in self._out: return []"),
        ("sequence", "true", "if sequence == producer.expected: self.take()"),
        ("sequence", "false", "if block.first_offset > self.end: return False"),
        ("sequence", "true", "if not sealed <= expected <= self.total: raise ValueError"),
        ("bound", "false", "if len(self._waiting) >= options.WAITERS_MAX: return None"),
        ("bound", "true", "if len(self._waiting) < WAITERS_MAX: self.add()"),
        ("bound", "true", "if not 0 <= delay <= p.DELAY_MS_MAX: raise ValueError"),
        ("bound", "false", "if value < CHUNK_BYTES_MIN: value = 1"),
        ("bound", "true", "return WAITERS_MAX > len(self._waiting)"),
        ("bound", "false", "if len(data) < HEADER_BYTES: return None"),
        ("bound", "true", "while at + LENGTH_BYTES <= len(data): at += 1"),
        ("bound", "false", "if len(data) != FOOTER_BYTES: return None"),
        ("bound", "false", "if size + length > bytes_max: break"),
        ("clamp", "unbounded", "size = min(size, BYTES_MAX)"),
        ("clamp", "unbounded", "beat = max(p.HEARTBEAT_MS_MIN, word.heartbeat_ms)"),
    ],
)
def test_a_detector_finds_what_it_is_for(kind: str, how: str, code: str) -> None:
    assert found(
        code.replace(": ", ":\n    ", 1) if code.startswith(("if", "while")) else code
    ) == [(kind, how)]
    assert kind in DETECTORS


@pytest.mark.long
def test_the_product_is_switched_everywhere_and_keeps_its_lines() -> None:
    """Every class of code is found, the keys are unique, and the source with switches is a valid
    program with the same number of lines.
    """
    keys: set[str] = set()
    kinds: set[str] = set()
    for path in sources(ROOT):
        source = path.read_text()
        text, sites = switched(source, path.relative_to(ROOT).as_posix(), 0, "import _switch")
        ast.parse(text)
        assert text.count("\n") == source.count("\n")
        assert not keys & {site.key for site in sites}
        keys |= {site.key for site in sites}
        kinds |= {site.kind for site in sites}
    assert kinds == set(DETECTORS)
    assert len(keys) > 700
