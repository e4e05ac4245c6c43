"""Tests of the fuzz targets with a limited number of inputs each, and of inputs that once caused
errors. `scripts/prove fuzz` tries more.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import Any

import pytest
from crc32c import crc32c
from faults.fuzz import run_batches
from faults.fuzz_targets import TARGETS
from faults.fuzzing import BATCH, MEMORY_MAX, Target, Trial, plan, run_batch
from faults.mutation import Mutator

pytestmark = pytest.mark.slow

INPUTS = 200_000
SEED = 6


@pytest.fixture(scope="module")
def child() -> Iterator[ProcessPoolExecutor]:
    """Run the targets in a child process. Then memory that their inputs leave in use does not
    affect the tests after them.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("name", TARGETS)
def test_each_target_handles_some_inputs(name: str, child: ProcessPoolExecutor) -> None:
    _, found = child.submit(run_batches, name, SEED + 1, 0, 1).result()
    assert not found.violations, found.violations[0].what


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TARGETS)
def test_each_target_returns_values_or_documented_errors(
    name: str, child: ProcessPoolExecutor
) -> None:
    batches = plan(list(TARGETS.values()), INPUTS)[name]
    _, found = child.submit(run_batches, name, SEED, 0, batches).result()
    assert not found.violations, (
        f"{found.violations[0].what}\nagain: {found.violations[0].replay(SEED)}"
    )
    print(f"{name}: {found.inputs} inputs, {found.taken} taken, the others refused")
    assert found.inputs == batches * BATCH
    assert 0 < found.taken < found.inputs, "they are nearly right: some are taken, some are not"


def test_the_counts_are_what_is_claimed() -> None:
    assert sum(plan(list(TARGETS.values()), INPUTS).values()) * BATCH >= INPUTS


def checked(line: bytes, form: bytes = b"%s\n%08x\n") -> bytes:
    return form % (line, crc32c(line))


FOUND: list[tuple[str, Any]] = [
    ("names", "app\udcff"),
    ("names", "tcp://host:" + "1" * 5_000),
    ("names", "q.diskqueue." + "0" * 5_000 + ".dat"),
    ("names", "00000000000000001000-" + "1" * 5_000 + ".bad"),
    ("places", b'{"version": ' + b"[" * 5_000),
    ("words", b"\x91" * 1_010 + b"\x80"),
    ("words", b"\x94\x0a\x01\x02" + b"\x91" * 1_015 + b"\x80"),
    ("words", b"\x92\x34" + b"\x91" * 1_020 + b"\x80"),
    ("headers", b"\x82\xc4\x01x\x01\xa1a\x02"),
    ("nsq-files", b'{"topics":' + b"[" * 5_000),
    *(
        ("snapshots", checked(line))
        for line in (
            b"5",
            b"[]",
            b"{",
            b"[" * 5_000,
            b'{"zsq": "state snapshot", "version": 1, "bytes": 0, "crc": 0}',
        )
    ),
    (
        "snapshots",
        checked(b'{"zsq": "state snapshot", "version": 1, "bytes": 3, "crc": %d}' % crc32c(b"abc"))
        + b"abc",
    ),
    *(
        ("small-files", checked(line))
        for line in (b"5", b"{", b"[" * 5_000, b'{"zsq": "topic", "version": 1}')
    ),
    *(
        ("small-files", checked(line.ljust(502), b"%s %08x\n"))
        for line in (b"5", b'{"zsq": "bad", "version": 1, "chunk": 5}')
    ),
    ("small-files", checked(b'{"commits": "5", "serial": 70, "messages": 3}', b"%s %08x\n")),
    ("small-files", b'{"unproven": 1e999, "starts": []}'),
    ("small-files", b'{"unproven":' + b"[" * 300),
]


@pytest.mark.parametrize(("name", "given"), FOUND)
def test_each_input_that_failed_once_is_handled_now(name: str, given: Any) -> None:
    taken = TARGETS[name].begin(Mutator(Random(1))).run(given)
    assert taken == (name == "headers"), "all but headers of bytes are refused"


# Checks that the fuzzer can fail


def _broken(fault: Any) -> Target:
    def begin(mutator: Mutator) -> Trial:
        return Trial(lambda: mutator.below(100), fault)

    return Target("broken", begin)


def test_an_undocumented_error_is_found_and_named() -> None:
    found = run_batch(_broken(lambda number: 1 // (number - 50) < 5), 1, 3)
    (violation,) = found.violations
    assert "ZeroDivisionError" in violation.what
    assert "input: 50" in violation.what
    assert violation.replay(1).endswith("--seed 1 --target broken --batch 3")


def test_too_much_memory_is_found() -> None:
    found = run_batch(
        _broken(lambda number: len(bytearray(b"x") * (2 * MEMORY_MAX)) > 0), 1, 0, inputs=2
    )
    assert "memory grew by" in found.violations[0].what


def test_an_input_that_computes_too_long_is_found() -> None:
    def spin(number: int) -> bool:
        while True:
            number += 1

    found = run_batch(_broken(spin), 1, 0)
    assert "TooSlowError" in found.violations[0].what
