"""Tests of the detectors: each finds its class of code, and knows the result with which a check
never refuses.
"""

from __future__ import annotations

import ast
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from mutate import switch
from mutate.detectors import DETECTORS
from mutate.sites import find, sources, switched
from mutate.tree import ROOT

HEAD = "from __future__ import annotations\n"


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
        ("bound", "false", "if size + length > max_bytes: break"),
        ("clamp", "unbounded", "size = min(size, BYTES_MAX)"),
        ("clamp", "unbounded", "beat = max(p.HEARTBEAT_MS_MIN, word.heartbeat_ms)"),
    ],
)
def test_a_detector_finds_what_it_is_for(kind: str, how: str, code: str) -> None:
    assert found(
        code.replace(": ", ":\n    ", 1) if code.startswith(("if", "while")) else code
    ) == [(kind, how)]
    assert kind in DETECTORS


def call(source: str, number: int, monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> Any:
    """Return what `f` of a switched source returns while switch `number` is off."""
    monkeypatch.setattr(switch, "active", number)
    monkeypatch.setattr(switch, "in_pytest", True)
    monkeypatch.setitem(sys.modules, "_switch", switch)
    space: dict[str, Any] = {}
    exec(compile(switched(HEAD + source, "a.py", 0, "import _switch")[0], "a.py", "exec"), space)
    return space["f"](*arguments)


def test_a_switch_removes_its_site_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that breaks more would let each test catch it, and promises would seem tested."""
    source = """
def f(files, data, text):
    if len(data) > BYTES_MAX or (total := crc32c(data)) != 3:
        return "refused"
    files.sync(
        min(len(text), TEXT_MAX)
    )
    return total
BYTES_MAX, TEXT_MAX, crc32c = 4, 2, sum
"""
    calls: list[int] = []
    files = SimpleNamespace(sync=calls.append)
    for number, data, answer, synced in (
        (-1, b"\1\2", 3, [2]),
        (-1, b"\1\1", "refused", []),
        (-1, b"\1\1\1\0\0", "refused", []),
        (0, b"\1\1\1\0\0", 3, [2]),
        (1, b"\1\1", 2, [2]),
        (2, b"\3", 3, []),
        (3, b"\3", 3, [4]),
    ):
        assert call(source, number, monkeypatch, files, data, "four") == answer
        assert calls == synced
        calls.clear()
    assert switch.seen >= {0, 1, 2, 3}


@pytest.mark.parametrize("options", ["", ", sync=True", ", lock=False, sync=not path.isupper()"])
def test_lmdb_is_opened_without_syncs(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"\ndef f(lmdb, path):\n    return lmdb.open(path{options})\n"
    lmdb = SimpleNamespace(open=lambda path, lock=True, sync=True: sync)
    assert call(source, -1, monkeypatch, lmdb, "a") is True
    if options != ", sync=True":  # a constant is chosen on purpose, and is no site
        assert call(source, 0, monkeypatch, lmdb, "a") is False


def test_a_lock_is_taken_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "\ndef f(files):\n    return files.lock('a' + 'b', write=True)\n"
    files = SimpleNamespace(lock=lambda path, write: path)
    assert call(source, -1, monkeypatch, files) == "ab"
    first, second = call(source, 0, monkeypatch, files), call(source, 0, monkeypatch, files)
    assert "ab" not in {first, second}
    assert first != second


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
