"""Tests of the limiter: its bounds for each holder and in all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.gateways.limiter import Bound, Limiter
from zsq.transport.errors import E_LIMIT, Refused

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-4, 4)), max_size=40)


@given(STEPS)
def test_no_bound_is_ever_exceeded_and_what_is_given_back_is_free(
    steps: list[tuple[str, int]],
) -> None:
    limiter, held = Limiter("places", Bound(10, 6)), dict.fromkeys("abc", 0)
    for holder, amount in steps:
        if amount < 0:
            returned = min(-amount, held[holder])
            if returned:
                limiter.give_back(holder, returned)
            held[holder] -= returned
            continue
        fits = held[holder] + amount <= 6 and sum(held.values()) + amount <= 10
        if fits:
            limiter.take(holder, amount)
            held[holder] += amount
        else:
            with pytest.raises(Refused, match=E_LIMIT):
                limiter.take(holder, amount)
    assert limiter.taken == sum(held.values())
    assert {holder: limiter.held_by(holder) for holder in held} == held


def test_a_refusal_says_whose_limit_is_reached_and_what_to_do() -> None:
    limiter = Limiter("live tails", Bound(3, 2), "close some")
    with limiter.place("user a"), limiter.place("user a"):
        with pytest.raises(
            Refused, match="limit of 2 live tails for user a is reached; close some"
        ):
            limiter.take("user a")
        limiter.take("user b")
        with pytest.raises(Refused, match="limit of 3 live tails for all clients together"):
            limiter.take("user b")
        limiter.give_back("user b")
    assert limiter.taken == 0


def test_a_place_that_was_moved_out_lasts_until_it_is_closed() -> None:
    limiter = Limiter("live tails", Bound(3, 2))
    with limiter.place("user a") as held:
        moved = held.pop_all()
    assert limiter.held_by("user a") == 1
    moved.close()
    assert limiter.held_by("user a") == 0
