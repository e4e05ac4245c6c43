"""Test of the HTTP API with random requests: no answer is a 500, each request gets an answer, each
answer is documented, and nothing is left behind.

The requests consist of words of the API and of garbage. A failure names the seed. The broker is a
fake that also refuses requests. tests/process/test_http_api.py makes the same test, with fewer
requests, against a real broker.
"""

from __future__ import annotations

from contextlib import closing

import pytest
from support.http_api import Site
from support.http_fuzz import Requests, check

from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.transport import errors

pytestmark = pytest.mark.slow

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
        assert site.app.active == site.limiters.bodies.taken == 0
    assert site.broker.published, "some of it did something"
    assert site.get("/ping").status_code in (200, 500)
