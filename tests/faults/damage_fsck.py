"""`zsq fsck` and damage: it finds all that a start and reads find, changes nothing by looking, and
a repair loses nothing more.
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
    """What fsck said: sentences of what is damaged, and of what is only noted."""

    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@contextmanager
def sound_environments(sound: bool) -> Iterator[None]:
    """LMDB's files were not touched: they need not be looked through again, which takes three
    processes each.
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
    """Of what lies there, which stays as it is."""
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
    """What was met must have been found."""
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
    """Repaired, it gives no less than it did, and what is repaired is not damaged the next time."""
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
    # What was cut off the repair has told.
    after = examine(specimen, bench.directory, replace(want, silent=True))
    need(after.lost <= before.lost, f"the repair lost blocks {sorted(after.lost - before.lost)}")
    need(
        not after.refused or before.refused,
        f"after the repair the start is refused: {after.refused}",
    )
    need(not after.read_damage or report.damaged, "a read finds damage after the repair")
