"""Interface of every recorded workload: its steps, and a way to open what a crash has left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from support.faulty_files import FaultyFiles

from .recording import RecordingFiles, Trace


class Subject(Protocol):
    """A topic's store, a queue, or a registry. `recover` opens it. `live` makes the content that
    recovery found the new promise, and continues to use the subject.
    """

    files: FaultyFiles

    def promise(self) -> Any: ...
    def recover(self) -> None: ...
    def live(self) -> None: ...
    def verify(self) -> None: ...
    def abandon(self) -> None: ...


@dataclass(slots=True)
class Recorded:
    """A recorded workload. `revive` makes a subject that continues on an existing disk, with the
    promise that must hold there.
    """

    name: str
    trace: Trace
    revive: Callable[[FaultyFiles, Any], Subject]


class Workload(Protocol):
    def record(self, name: str, root: Path) -> Recorded: ...


def recorder(subject: Subject) -> RecordingFiles:
    assert isinstance(subject.files, RecordingFiles)
    return subject.files
