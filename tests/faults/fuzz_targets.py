"""Table of all fuzz targets by name."""

from __future__ import annotations

from typing import Final

from faults import (
    fuzz_actors,
    fuzz_brokers,
    fuzz_clients,
    fuzz_disk,
    fuzz_files,
    fuzz_nsq,
    fuzz_storage,
    fuzz_wire,
)
from faults.fuzzing import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for file in (
        fuzz_wire,
        fuzz_disk,
        fuzz_files,
        fuzz_actors,
        fuzz_storage,
        fuzz_brokers,
        fuzz_clients,
        fuzz_nsq,
    )
    for target in file.TARGETS
}
