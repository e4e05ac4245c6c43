"""Tests of the scan's rounds, in virtual time: the rounds do not wait for channels that do not
answer, nor for workers that do not report.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from zsq.actors.scan.scan_plan import ScanPlan
from zsq.actors.scan.scan_rounds import CLEAN, DIRTY, LATE, MISSED, ScanRounds, WorkerRequest
from zsq.actors.settings import options

MS = 1_000_000
S = 1_000 * MS
NOW = 100 * S
LATER = NOW + 600 * S


class Bench:
    def __init__(self, channels: int, *workers: str) -> None:
        self.rounds = ScanRounds(ScanPlan())
        self.plan = self.rounds.plan
        self.rounds.set_channels((key, f"ipc://{key}") for key in range(channels))
        self.rounds.set_workers(workers, NOW)
        self.now = NOW
        self.pick = random.Random(1).randrange

    def begin(self, milliseconds: int = 0) -> list[WorkerRequest]:
        self.now += milliseconds * MS
        return self.rounds.begin(self.now, self.pick)

    def report(
        self, order: WorkerRequest, state: int = CLEAN, due_ns: int = LATER, **of: int
    ) -> list[int]:
        """Report all channels of the order as `state`. An argument such as `k7=LATE` sets the state
        of channel 7.
        """
        results = [(key, of.get(f"k{key}", state), due_ns) for key, _ in order.targets]
        return self.rounds.reported(order.request, results, self.now)

    def report_of(self, order: WorkerRequest, *results: tuple[int, int, int]) -> list[int]:
        return self.rounds.reported(order.request, results, self.now)


def keys(orders: list[WorkerRequest]) -> list[int]:
    return sorted(key for order in orders for key, _ in order.targets)


def test_a_round_is_shared_among_the_workers() -> None:
    bench = Bench(20, "a", "b", "c")
    orders = bench.begin()
    assert [order.worker for order in orders] == ["a", "b", "c"]
    assert sorted(len(order.targets) for order in orders) == [6, 7, 7]
    assert keys(orders) == list(range(20))
    assert bench.begin() == [], "one round at a time"
    for order in orders:
        bench.report(order)
    assert bench.begin() == [], "the next one in a second"
    assert bench.rounds.wait_ms(bench.now) == options.SCAN_IDLE_MS
    assert keys(bench.begin(options.SCAN_IDLE_MS)) != []


@pytest.mark.parametrize(
    ("dirty", "asked", "again"),
    [(0, 20, False), (5, 20, False), (6, 20, True), (1, 3, True), (1, 4, False)],
)
def test_a_round_follows_at_once_if_more_than_a_quarter_was_dirty(
    dirty: int, asked: int, again: bool
) -> None:
    bench = Bench(asked, "a", "b")
    number = 0
    for order in bench.begin():
        count = len(order.targets)
        results = [
            (key, int(number + i < dirty), LATER) for i, (key, _) in enumerate(order.targets)
        ]
        bench.report_of(order, *results)
        number += count
    assert bool(bench.begin()) is again


def test_a_scan_loop_without_channels_wakes_once_in_the_interval() -> None:
    """If all topics of a broker sleep, the scan loop has no channels. Its last round ended long
    ago.
    """
    rounds = ScanRounds(ScanPlan())
    rounds.set_workers(["w"], 0)
    for now_ns in (0, 1, 3_600 * 1_000_000_000):
        assert rounds.begin(now_ns, lambda below: 0) == []
        assert rounds.wait_ms(now_ns) == options.SCAN_IDLE_MS


def test_a_due_channel_starts_a_round_before_the_interval_ends() -> None:
    bench = Bench(2, "a")
    bench.report(bench.begin()[0], due_ns=bench.now + 30 * MS)
    assert bench.rounds.wait_ms(bench.now) == 31
    assert bench.begin(30) != []


def test_random_channels_are_asked_once_a_second_however_many_rounds_there_are() -> None:
    """Each consumer's heartbeat makes its channel due. Without this, each of these rounds would ask
    19 other channels, too.
    """
    bench = Bench(20, "a")
    (first,) = bench.begin()
    dues = {f"k{key}": bench.now + (key + 1) * 100 * MS for key in range(3)}
    bench.report_of(first, *[(key, CLEAN, dues.get(f"k{key}", LATER)) for key, _ in first.targets])
    for key in range(3):
        (order,) = bench.begin(100)
        assert keys([order]) == [key]
        bench.report(order)
    (order,) = bench.begin(options.SCAN_IDLE_MS)
    assert len(order.targets) > 1


def test_a_channel_that_hangs_does_not_delay_the_others() -> None:
    """The channel may belong to another topic. Each round continues without it, and most rounds do
    not ask it at all.
    """
    bench = Bench(20, "a")
    (order,) = bench.begin()
    bench.now += options.SCAN_SOON_MS * MS
    bench.report(order, k3=LATE)
    bench.plan.hint(5, bench.now)
    bench.plan.hint(3, bench.now)
    (second,) = bench.begin()
    assert 5 in keys([second])
    assert 3 not in keys([second])
    bench.report(second)
    bench.now = NOW + options.SCAN_ANSWER_MS * MS
    bench.report_of(order, (3, MISSED, 0))
    assert 3 in keys(bench.begin()), "it hinted since"


def test_a_late_answer_is_used_when_it_arrives() -> None:
    bench = Bench(2, "a")
    (order,) = bench.begin()
    bench.report(order, k1=LATE)
    bench.plan.hint(1, bench.now + 40 * MS)
    bench.report_of(order, (1, CLEAN, bench.now + 20 * MS))
    assert bench.rounds.wait_ms(bench.now) == 21
    assert bench.begin(20) != []


def test_channels_of_a_hanging_worker_are_asked_through_another_one() -> None:
    bench = Bench(20, "a", "b")
    first, second = bench.begin()
    bench.report(second)
    assert bench.begin(options.SCAN_REPORT_MS) == []
    (again,) = bench.begin(1)
    assert again.worker == "b"
    assert set(keys([first])) <= set(keys([again]))
    old, new = bench.now + 10 * MS, bench.now + 500 * MS
    bench.report(again, due_ns=new)
    bench.report(first, due_ns=old)  # this worker was only slow, and it gets orders again
    assert bench.rounds.wait_ms(bench.now) == 11, "what it says can only bring a scan forward"
    assert {order.worker for order in bench.begin(100)} == {"a", "b"}


def test_late_reports_count_if_all_workers_are_slow() -> None:
    bench = Bench(2, "a")
    (order,) = bench.begin()
    assert bench.begin(options.SCAN_REPORT_MS + 1) == []
    assert bench.rounds.wait_ms(bench.now) == options.SCAN_INTERVAL_MS, (
        "no busy waiting for a worker"
    )
    bench.report(order, due_ns=LATER)
    assert bench.plan.wait_ms(bench.now) == options.SCAN_IDLE_MS
    assert keys(bench.begin(options.SCAN_IDLE_MS)) != []


def test_a_worker_that_was_slow_gets_orders_as_soon_as_it_reports() -> None:
    bench = Bench(2, "a")
    (order,) = bench.begin()
    assert bench.begin(options.SCAN_REPORT_MS + 1) == []
    bench.report(order, k1=LATE)
    assert 1 in keys(bench.begin(1)), "asked again, for nobody knew"


def test_channels_of_a_worker_that_hangs_after_a_report_are_asked_again() -> None:
    bench = Bench(1, "a", "b")
    (order,) = bench.begin()
    bench.report(order, k0=LATE)
    assert bench.begin(options.SCAN_ANSWER_MS + options.SCAN_REPORT_MS) == []
    (again,) = bench.begin(1)
    assert (again.worker, keys([again])) == ("b", [0])


def test_channels_of_a_removed_worker_are_asked_again() -> None:
    bench = Bench(20, "a", "b")
    first, second = bench.begin()
    bench.rounds.set_workers(["b"], bench.now)
    bench.report(second)
    (again,) = bench.begin()
    assert again.worker == "b"
    assert set(keys([again])) >= set(keys([first]))
    assert bench.report(first, MISSED) == [], "nobody's word"


def test_a_channel_that_hangs_is_reported_once() -> None:
    bench = Bench(1, "a")
    told = []
    while bench.now < NOW + 40 * S:
        for order in bench.begin(50):
            bench.report(order, LATE)
            bench.now += options.SCAN_ANSWER_MS * MS
            told += [(bench.now - NOW) // S for _ in bench.report(order, MISSED)]
    assert 10 <= told[0] <= 20
    assert all(10 <= after - before <= 20 for before, after in pairwise(told))
    assert len(told) > 1


def test_removed_channels_are_named_and_their_answers_ignored() -> None:
    bench = Bench(3, "a")
    (order,) = bench.begin()
    assert sorted(bench.rounds.set_channels([(1, "ipc://1")])) == ["ipc://0", "ipc://2"]
    bench.report(order, DIRTY)
    assert keys(bench.begin()) == [1], "one of one was dirty"


class Machine(RuleBasedStateMachine):
    """Channels answer, hang, appear and are removed, and so are workers. Once all workers work
    again, each channel that is due is asked within 200 ms.
    """

    @initialize(channels=st.integers(1, 30), workers=st.integers(1, 3))
    def start(self, channels: int, workers: int) -> None:
        self.bench = Bench(channels, *(f"w{i}" for i in range(workers)))
        self.rounds, self.plan = self.bench.rounds, self.bench.plan
        self.channels = set(range(channels))
        self.keys = channels
        self.hung: set[int] = set()
        self.stuck: set[str] = set()
        # Request -> order, time at which it was sent, keys of the late channels.
        self.out: dict[int, tuple[WorkerRequest, int, set[int]]] = {}
        self.last: dict[int, int] = {}  # key -> the request by which the channel was asked last
        # Requests of workers that were stuck in the meantime. Their channels are asked again,
        # because nothing is known about them.
        self.held: set[int] = set()
        # Channels that answer: key -> the time since which they have been due.
        self.due: dict[int, int] = {}
        self.free_ns = NOW  # the time since which one worker has been free and nothing is stuck

    @rule(key=st.integers(0, 40))
    def hang(self, key: int) -> None:
        if key in self.channels:
            self.hung.add(key)
            self.due.pop(key, None)

    @rule()
    def go_on(self) -> None:
        self.hung.clear()

    @rule(key=st.integers(0, 40), in_ms=st.integers(0, 300))
    def hint(self, key: int, in_ms: int) -> None:
        if key in self.channels - self.hung:
            self.plan.hint(key, self.bench.now + in_ms * MS)
            self.due[key] = self.bench.now + in_ms * MS

    @rule(worker=st.sampled_from(["w0", "w1", "w2"]), stuck=st.booleans())
    def worker_sticks(self, worker: str, stuck: bool) -> None:
        self.stuck.add(worker) if stuck else self.stuck.discard(worker)

    @rule(worker=st.sampled_from(["w0", "w1", "w2"]), new=st.booleans())
    def worker_ends(self, worker: str, new: bool) -> None:
        if worker in self.rounds.workers:
            self.out = {
                request: out for request, out in self.out.items() if out[0].worker != worker
            }
            others = self.rounds.workers - {worker}
            self.rounds.set_workers(others, self.bench.now)
            self.stuck.discard(worker)
            if new or not others:
                self.rounds.set_workers({*others, worker}, self.bench.now)

    @precondition(lambda self: len(self.channels) > 1)
    @rule(number=st.integers(0, 40))
    def channel_is_replaced(self, number: int) -> None:
        old = sorted(self.channels)[number % len(self.channels)]
        self.channels = self.channels - {old} | {self.keys}
        self.hung.discard(old)
        self.due.pop(old, None)
        self.due[self.keys] = self.bench.now
        self.keys += 1
        assert self.rounds.set_channels((key, f"ipc://{key}") for key in self.channels) == (
            f"ipc://{old}",
        )

    @rule(steps=st.integers(1, 30))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        self.bench.now += 10 * MS
        for request, (order, sent_ns, late) in list(self.out.items()):
            if order.worker in self.stuck:
                self.held.add(request)
            else:
                self.work(request, order, sent_ns, late)
        for order in self.bench.begin():
            assert order.request not in self.out
            assert order.worker in self.rounds.workers
            asked = {
                key
                for other, _, late in self.out.values()
                for key in late
                if self.last[key] == other.request not in self.held
            }
            targets = {key for key, _ in order.targets}
            assert not asked & targets, "who has not answered is not asked again"
            self.last.update(dict.fromkeys(targets, order.request))
            self.out[order.request] = order, self.bench.now, set()

    def work(self, request: int, order: WorkerRequest, sent_ns: int, late: set[int]) -> None:
        """Do one step of a worker: report the channels that have answered, or whose time is
        over.
        """
        alive = {key for key, _ in order.targets if key in self.channels - self.hung}
        passed_ns = self.bench.now - sent_ns
        todo = late or {key for key, _ in order.targets}
        silent = todo - alive
        if late and not alive & todo and passed_ns <= options.SCAN_ANSWER_MS * MS:
            return
        if not late and silent and passed_ns <= options.SCAN_SOON_MS * MS:
            return
        over = passed_ns > options.SCAN_ANSWER_MS * MS
        results = [(key, CLEAN, 0) for key in sorted(alive & todo)]
        results += [
            (key, MISSED if over else LATE, 0) for key in sorted(silent) if over or not late
        ]
        for key in alive & todo:
            self.due.pop(key, None)
        for key in self.rounds.reported(request, results, self.bench.now):
            assert key in self.channels
        if over or not silent:
            del self.out[request]
        else:
            self.out[request] = order, sent_ns, silent

    @invariant()
    def nobody_is_asked_twice_or_forgotten(self) -> None:
        if hasattr(self, "plan"):
            assert not self.plan._asked & {key for _, key in self.plan._due.items()}
            assert self.plan._asked <= self.channels
            assert self.rounds._asked_by.keys() <= self.channels
            assert (
                self.plan._missed.keys()
                <= {key for _, key in self.plan._due.items()} | self.plan._asked
            )

    def teardown(self) -> None:
        """Let everything work for a while: every channel that is due must be asked soon."""
        if not hasattr(self, "plan"):
            return
        self.stuck.clear()
        for _ in range(6):  # the workers send the reports that they held back
            self.step()
        hints = sorted(self.channels - self.hung)[:10]
        for key in hints:
            self.plan.hint(key, self.bench.now)
            self.due[key] = self.bench.now
        for _ in range(20):
            self.step()
        assert not self.due.keys() & set(hints), "late by more than 200 ms"
        for _ in range(1_700):  # enough steps to find all channels that hang
            self.step()
        assert self.plan._missed.keys() <= self.hung


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
