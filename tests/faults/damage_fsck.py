"""Checks of `zsq fsck`: it finds all damage that a start and reads find, a check changes nothing,
and a repair loses nothing more.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest import mock

from zsq.storage.checks.fsck import DAMAGE, TopicReport, check_topic
from zsq.storage.errors import StorageError

from .damage_check import Expected, Seen, examine, need
from .damage_specimens import EPOCH_NS, Bench, SeededFiles, Specimen, Tree, capture


@dataclass(slots=True)
class Opinion:
    """The result of fsck: sentences about damage, and sentences that only inform."""

    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@contextmanager
def sound_environments(sound: bool) -> Iterator[None]:
    """Skip the check of LMDB's files if they were not touched. It takes three processes each
    time.
    """
    if not sound:
        yield
        return
    with (
        mock.patch("zsq.storage.checks.fsck.check_environment", return_value=[]),
        mock.patch("zsq.storage.checks.fsck.check_delayed", return_value=[]),
    ):
        yield


def look(specimen: Specimen, directory: str, *, repair: bool = False) -> TopicReport:
    return check_topic(
        SeededFiles(random.Random(3)), directory, specimen.identity, EPOCH_NS * 2, repair=repair
    )


def opinion(specimen: Specimen, tree: Tree, directory: str, *, sound: bool) -> Opinion:
    """Return what fsck says about the directory, which must stay unchanged."""
    with sound_environments(sound):
        report = look(specimen, directory)
    need(capture(directory) == tree, "looking has changed something")
    said = Opinion()
    for finding in report.findings:
        (said.damage if finding.level == DAMAGE else said.notes).append(
            f"{finding.path}: {finding.text}"
        )
    return said


def compare(said: Opinion, seen: Seen, want: Expected) -> None:
    """Check that fsck has found the damage that a start or a read has reported."""
    found = said.damage or said.notes
    need(
        not seen.refused or said.damage,
        f"the start is refused, and fsck finds nothing: {seen.refused}",
    )
    need(not seen.alarms or found, f"fsck finds nothing, and a start says {seen.alarms}")
    lost = {offset for offset in seen.lost if want.cut_from < 0 or offset < want.cut_from}
    need(not lost or found, f"blocks {sorted(lost)} are lost, and fsck finds nothing")
    need(
        not seen.read_damage or said.damage, f"a read found damage that fsck did not: {said.notes}"
    )


def repair(
    specimen: Specimen, tree: Tree, bench: Bench, want: Expected, before: Seen, *, sound: bool
) -> None:
    """Check that a repaired topic returns no less than before, and that what was repaired is not
    reported again.
    """
    bench.lay(tree)
    with sound_environments(sound):
        try:
            report = look(specimen, bench.directory, repair=True)
        except StorageError as error:
            need(before.refused, f"the repair is refused: {error!r}")
            return
        left = {finding.text for finding in look(specimen, bench.directory).damaged}
    known = {finding.text for finding in report.damaged}
    need(left <= known or not left, f"after the repair there is damage: {left - known}")
    # The repair has reported the bytes that it cut off. They need not be reported again.
    after = examine(specimen, bench.directory, replace(want, silent=True))
    need(after.lost <= before.lost, f"the repair lost blocks {sorted(after.lost - before.lost)}")
    need(
        not after.refused or before.refused,
        f"after the repair the start is refused: {after.refused}",
    )
    need(not after.read_damage or report.damaged, "a read finds damage after the repair")
