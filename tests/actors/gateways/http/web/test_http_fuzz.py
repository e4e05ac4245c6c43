"""The HTTP API against anything: no 500, no request without its answer, every answer documented,
nothing left behind.

Requests are made of the API's own words and of garbage, with a seed that a failure names. Over a
fake broker, whose refusals are a part of the game; tests/process/test_http_api.py does the same,
shorter, with a real one.
"""

from __future__ import annotations

from contextlib import closing

import pytest
from support.http_api import Site
from support.http_fuzz import Requests, check

from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.transport import errors

LIMITS = HttpLimits(max_msg_size=2_000, max_body_size=8_000, body_s=5.0)
REFUSALS = [name for name in dir(errors) if name.startswith("E_")]


@pytest.mark.parametrize("seed", range(6))
def test_any_request_gets_a_documented_answer(seed: int) -> None:
    with closing(Site(LIMITS)) as site:
        play(site, seed)


def play(site: Site, seed: int) -> None:
    requests = Requests(seed)
    random = requests.random
    for _ in range(400):
        if random.random() < 0.1:
            site.broker.fails = errors.from_wire(
                getattr(errors, random.choice(REFUSALS)), "some reason"
            )
        method, target, body = requests.one()
        answer = site.call(method, target, body)
        check(seed, method, target, body, answer.status_code, answer.headers, answer.content)
        assert site.app.active == site.app._budget.held == 0
    assert site.broker.published, "some of it did something"
    assert site.get("/ping").status_code in (200, 500)
