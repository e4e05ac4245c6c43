"""Properties of the plan that drains and balances a cluster."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from zsq.storage.cluster.balance import BrokerLoad, PartLoad, Plan, adopters, plan
from zsq.storage.cluster.directory import NOBODY


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[BrokerLoad], list[PartLoad]]:
    count = draw(st.integers(1, 5))
    brokers = []
    for number in range(count):
        is_draining = draw(st.booleans())
        is_up = draw(st.integers(0, 4)) > 0
        brokers.append(BrokerLoad(number, not is_draining, is_draining, is_up))
    numbers = st.integers(0, count - 1)
    parts = []
    for number in range(draw(st.integers(0, 12))):
        to = draw(st.one_of(st.just(NOBODY), numbers))
        at = draw(numbers)
        to = NOBODY if to == at else to
        is_ready = to != NOBODY and draw(st.booleans())
        is_coming = to == NOBODY and draw(st.booleans())
        size = draw(st.integers(0, 9))
        topic = draw(st.sampled_from("ab"))
        parts.append(PartLoad(f"{topic}#{number}", topic, at, to, is_ready, is_coming, size))
    return brokers, parts


def carried_out(parts: list[PartLoad], made: Plan) -> list[PartLoad]:
    """Return the parts when all moves have ended."""
    targets = {move.name: move.target for move in made.moves}
    after = []
    for part in parts:
        at = targets.get(part.name, part.broker if part.to == NOBODY else part.to)
        after.append(part._replace(broker=at, to=NOBODY, is_ready=False, is_coming=False))
    return after


@given(clusters(), st.booleans())
def test_a_plan_moves_each_part_at_most_once_and_only_to_brokers_that_take_parts(
    cluster: tuple[list[BrokerLoad], list[PartLoad]], balances: bool
) -> None:
    brokers, parts = cluster
    made = plan(brokers, parts, balances=balances)
    of = {part.name: part for part in parts}
    assert max(Counter(move.name for move in made.moves).values(), default=1) == 1
    for move in made.moves:
        assert brokers[move.target].is_target
        assert move.target != move.source == of[move.name].broker
        assert brokers[move.source].is_up, "a broker that is away cannot give a part"
        assert not of[move.name].is_ready
        assert not of[move.name].is_coming
        assert move.name not in made.moving


@given(clusters())
def test_nothing_is_left_to_do_after_a_plan(
    cluster: tuple[list[BrokerLoad], list[PartLoad]],
) -> None:
    """Moves that were on their way have ended, and what they brought is moved on by one more."""
    brokers, parts = cluster
    after = carried_out(parts, plan(brokers, parts, balances=True))
    after = carried_out(after, plan(brokers, after, balances=True))
    again = plan(brokers, after, balances=True)
    assert not again.moves
    targets = [broker.number for broker in brokers if broker.is_target]
    counts = Counter(part.broker for part in after)
    if targets:
        assert not any(counts[b.number] for b in brokers if b.is_draining and b.is_up)
        assert not again.stuck
        spread = [counts[number] for number in targets]
        assert max(spread) - min(spread) <= 1
    else:
        assert {name for name, _ in again.stuck} == {
            part.name for part in after if brokers[part.broker].is_draining
        } - {part.name for part in after if not brokers[part.broker].is_up}


@given(clusters())
def test_without_balance_only_parts_of_draining_brokers_move(
    cluster: tuple[list[BrokerLoad], list[PartLoad]],
) -> None:
    brokers, parts = cluster
    to = {part.name: part.to for part in parts}
    for move in plan(brokers, parts, balances=False).moves:
        is_retargeted = to[move.name] != NOBODY and brokers[to[move.name]].is_draining
        assert brokers[move.source].is_draining or is_retargeted


@given(st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=2, max_size=3))
def test_a_balance_moves_the_fewest_parts_and_of_them_the_fewest_bytes(
    sizes: list[list[int]],
) -> None:
    brokers = [BrokerLoad(number, True) for number in range(len(sizes))]
    parts = [
        PartLoad(f"t{at}#{number}", f"t{at}", at, bytes=size)
        for at, own in enumerate(sizes)
        for number, size in enumerate(own)
    ]
    made = plan(brokers, parts, balances=True)
    low, more = divmod(len(parts), len(brokers))
    best = None
    # Each choice of the brokers that have one part more than the others.
    for full in combinations(range(len(brokers)), more):
        goal = [low + (number in full) for number in range(len(brokers))]
        gone = [sorted(own)[: max(0, len(own) - goal[at])] for at, own in enumerate(sizes)]
        cost = sum(map(len, gone)), sum(map(sum, gone))
        best = cost if best is None else min(best, cost)
    assert (len(made.moves), made.bytes) == best


def test_a_difference_of_one_moves_nothing() -> None:
    brokers = [BrokerLoad(0, True), BrokerLoad(1, True), BrokerLoad(2, True)]
    parts = [PartLoad(f"t#{n}", "t", n % 2, bytes=10**9 * n) for n in range(2)]
    assert plan(brokers, parts, balances=True) == Plan((), (), ())


def test_parts_of_one_topic_are_spread() -> None:
    brokers = [BrokerLoad(0, False, True), BrokerLoad(1, True), BrokerLoad(2, True)]
    parts = [PartLoad(f"{t}#{n}", t, 0) for t in "ab" for n in range(2)]
    moves = plan(brokers, parts, balances=False).moves
    assert sorted(Counter((m.name[0], m.target) for m in moves).values()) == [1, 1, 1, 1]


def test_a_part_goes_only_where_it_has_room() -> None:
    brokers = [
        BrokerLoad(0, False, True),
        BrokerLoad(1, True, free=30, total=100),
        BrokerLoad(2, True, free=100, total=100),
    ]
    parts = [PartLoad(f"t#{n}", "t", 0, bytes=n) for n in (15, 40, 45, 80)]
    made = plan(brokers, parts, balances=False)
    assert {move.name: move.target for move in made.moves} == {"t#80": 2, "t#15": 1}
    assert made.stuck == (
        ("t#45", "no broker has room for it"),
        ("t#40", "no broker has room for it"),
    )


def test_a_part_that_cannot_move_holds_up_no_other() -> None:
    brokers = [BrokerLoad(0, False, True), BrokerLoad(1, True), BrokerLoad(2, True)]
    parts = [
        PartLoad(f"t#{n}", "t", n // 4, fixed="" if n % 2 else "it is fixed") for n in range(8)
    ]
    made = plan(brokers, parts, balances=True)
    assert {move.name for move in made.moves} >= {"t#1", "t#3"}
    assert not {move.name for move in made.moves} & {part.name for part in parts if part.fixed}
    assert made.stuck == (("t#0", "it is fixed"), ("t#2", "it is fixed"))


def test_a_move_to_a_broker_that_drains_meanwhile_gets_another_target() -> None:
    brokers = [BrokerLoad(0, True), BrokerLoad(1, False, True), BrokerLoad(2, True)]
    parts = [PartLoad("t#0", "t", 0, to=1), PartLoad("t#1", "t", 0, to=1, is_ready=True)]
    made = plan(brokers, parts, balances=False)
    assert [(move.name, move.target) for move in made.moves] == [("t#0", 2)]
    assert made.moving == ("t#1",)


def test_a_move_that_an_operator_ordered_waits_for_a_broker_that_is_away() -> None:
    brokers = [BrokerLoad(0, True), BrokerLoad(1, True, is_up=False), BrokerLoad(2, True)]
    parts = [PartLoad("t#0", "t", 0, to=1)]
    assert plan(brokers, parts, balances=False).moves == ()
    assert [m.target for m in plan(brokers, parts, balances=True).moves] == [2]


def test_parts_of_a_forgotten_broker_are_adopted_evenly() -> None:
    brokers = [BrokerLoad(1, True), BrokerLoad(2, True), BrokerLoad(3, False, True)]
    parts = [PartLoad(f"t#{n}", "t", 0) for n in range(4)] + [PartLoad("t#4", "t", 1)]
    found = adopters(brokers, parts)
    assert found.keys() == {f"t#{n}" for n in range(4)}
    assert Counter(found.values()) == {1: 2, 2: 2}
    assert adopters(brokers[2:], parts) == {}
