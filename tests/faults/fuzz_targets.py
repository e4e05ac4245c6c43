"""All fuzz targets by name."""

from __future__ import annotations

from typing import Final

from faults import fuzz_actors, fuzz_brokers, fuzz_disk, fuzz_storage, fuzz_wire
from faults.fuzzing import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (*fuzz_wire.TARGETS, *fuzz_disk.TARGETS, *fuzz_actors.TARGETS, *fuzz_storage.TARGETS, *fuzz_brokers.TARGETS)
}
