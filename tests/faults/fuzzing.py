"""Runner of fuzz targets: it makes a batch of inputs from a seed, and checks the exceptions, the
time and the memory of each input.
"""

from __future__ import annotations

import logging
import signal
import traceback
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple, Protocol, Self

from faults.mutation import Mutator

BATCH: Final = 500
LINE_MAX: Final = 4_096
MEMORY_MAX: Final = 64 * 1024 * 1024
TIME_MAX_S: Final = 1.0
_SHOWN: Final = 400

Make = Callable[[], Any]
Run = Callable[[Any], bool]


def _nothing() -> None:
    pass


class Trial(NamedTuple):
    """One batch of a target. `make` returns an input. `run` tries the input. It returns True if the
    input was accepted, and False if it was refused with the documented error. Any exception is a
    violation. `close` is called at the end.
    """

    make: Make
    run: Run
    close: Callable[[], None] = _nothing


class Target(NamedTuple):
    """Code that is tested with nearly correct inputs. `begin` is called for each batch. `share`:
    the weight of this target when inputs are distributed over all targets.
    """

    name: str
    begin: Callable[[Mutator], Trial]
    share: int = 1


class Violation(NamedTuple):
    target: str
    batch: int
    number: int
    what: str

    def replay(self, seed: int) -> str:
        return f"scripts/prove fuzz --seed {seed} --target {self.target} --batch {self.batch}"


class Tried(NamedTuple):
    """The result of one or more batches."""

    inputs: int = 0
    taken: int = 0
    violations: tuple[Violation, ...] = ()

    def plus(self, other: Tried) -> Tried:
        return Tried(
            self.inputs + other.inputs, self.taken + other.taken, self.violations + other.violations
        )


class TooSlowError(Exception):
    """One input used the CPU for longer than `TIME_MAX_S`."""


class TooLargeError(Exception):
    """One input made the process larger by more than `MEMORY_MAX`."""


class Guard:
    """Notices an input that needs the CPU for too long. A timer looks at the number of the input,
    so there is no extra work for each input. The timer measures CPU time, so a busy machine does
    not matter.
    """

    def __init__(self) -> None:
        self.number = -1
        self._seen = -2

    def __enter__(self) -> Self:
        signal.signal(signal.SIGVTALRM, self._look)
        signal.setitimer(signal.ITIMER_VIRTUAL, TIME_MAX_S, TIME_MAX_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)

    def _look(self, signum: int, frame: object) -> None:
        if self._seen == self.number >= 0:
            raise TooSlowError(f"more than {TIME_MAX_S:g} s of computing for one input")
        self._seen = self.number


class Lines(logging.Handler):
    """A log handler that checks the size of each line: a peer must not be able to fill a disk with
    logged messages.
    """

    def emit(self, record: logging.LogRecord) -> None:
        length = len(self.format(record))
        if length > LINE_MAX:
            raise TooLargeError(f"a line of {length} characters in the log: {record.msg}")

    def __enter__(self) -> Self:
        found = logging.getLogger("zsq")
        self._before = found.propagate
        found.propagate = False
        found.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        found = logging.getLogger("zsq")
        found.removeHandler(self)
        found.propagate = self._before


def peak_bytes() -> int:
    """Return the largest memory use of this process since the last `forget_peak`."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


def run_batch(target: Target, seed: int, batch: int, inputs: int = BATCH) -> Tried:
    """Run one batch, up to its first violation. If the memory grew, run it again and measure after
    each input.
    """
    forget_peak()
    before = peak_bytes()
    found = _run(target, seed, batch, inputs, watch=False)
    grown = peak_bytes() - before
    if found.violations or grown <= MEMORY_MAX:
        return found
    found = _run(target, seed, batch, inputs, watch=True)
    text = f"memory grew by {grown >> 20} MiB within a batch, by all its inputs together"
    return (
        found
        if found.violations
        else found._replace(violations=(Violation(target.name, batch, -1, text),))
    )


def _run(target: Target, seed: int, batch: int, inputs: int, *, watch: bool) -> Tried:
    trial = target.begin(Mutator(Random(f"{seed} {target.name} {batch}")))
    try:
        return _try(target, trial, batch, inputs, watch=watch)
    finally:
        trial.close()


def _try(target: Target, trial: Trial, batch: int, inputs: int, *, watch: bool) -> Tried:
    make, run, _ = trial
    taken = 0
    given: Any = None
    with Guard() as guard, Lines():
        for number in range(inputs):
            try:
                given = make()
                if watch:
                    forget_peak()
                    before = peak_bytes()
                guard.number = number
                taken += run(given)
                if watch and peak_bytes() - before > MEMORY_MAX:
                    raise TooLargeError(f"memory grew by {(peak_bytes() - before) >> 20} MiB")
            except Exception as error:
                guard.number = -1
                where = "".join(traceback.format_exception(error)[-9:])
                text = (
                    f"{type(error).__name__}: {str(error)[:_SHOWN]}\ninput: {_short(given)}\n"
                    f"{where}"
                )
                return Tried(number + 1, taken, (Violation(target.name, batch, number, text),))
            finally:
                guard.number = -1
    return Tried(inputs, taken)


def _short(given: Any) -> str:
    try:
        text = repr(given)
    except RecursionError:
        text = "nested too far to be shown"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def plan(targets: Sequence[Target], count: int) -> dict[str, int]:
    """Return how many batches of each target make `count` inputs in all. Each target has at least
    one.
    """
    shares = sum(target.share for target in targets)
    return {target.name: max(1, -(-count * target.share // shares // BATCH)) for target in targets}


class Rig(Protocol):
    """A target that keeps a state between inputs."""

    def draw(self) -> Any: ...

    def hear(self, given: Any) -> bool: ...

    def close(self) -> None: ...


def with_rig(rig_of: Callable[[Mutator], Rig]) -> Callable[[Mutator], Trial]:
    """Return a `begin` that makes a rig for each batch."""

    def begin(mutator: Mutator) -> Trial:
        made = rig_of(mutator)
        return Trial(made.draw, made.hear, made.close)

    return begin
