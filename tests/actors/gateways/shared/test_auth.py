"""Tests of the client of auth servers: what it sends, which answers it remembers and for how long,
several servers, and servers that fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from support.small_web import Question, SmallWeb, said

import zsq.aio
from zsq.actors.gateways.limiter import Bound
from zsq.actors.gateways.shared import auth
from zsq.actors.gateways.shared.auth import (
    ASKED_BY_ADDRESS_MAX,
    ASKED_MAX,
    SECRET_MAX,
    Authenticator,
    AuthFailed,
    Who,
)
from zsq.transport.errors import UsageError
from zsq.transport.wire.actions import Action

WHO = Who("10.0.0.7", False, "", "s3cret")
ALL = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def state(*authorizations: Any, ttl: int = 60, identity: str = "worker") -> bytes:
    return said(
        {
            "ttl": ttl,
            "identity": identity,
            "identity_url": "http://x",
            "authorizations": list(authorizations),
        }
    )


def run(main: Coroutine[Any, Any, None]) -> None:
    zsq.aio.run(asyncio.wait_for(main, 60))


@pytest.mark.parametrize("method", ["get", "post"])
def test_the_auth_server_gets_address_tls_secret_and_common_name(method: str) -> None:
    async def main() -> None:
        async with SmallWeb(lambda _: state(ALL)) as web:
            them = Authenticator([web.address], method)
            found = await them.state(Who("::1", True, "orders-worker", "a&b=c \udcff"))
            assert (found.identity, found.identity_url, found.permission_count) == (
                "worker",
                "http://x",
                1,
            )
            await them.state(Who("", False, "", ""))
        first, second = web.asked
        assert (first.method, first.path) == (method.upper(), "/auth")
        assert first.parameters == {
            "remote_ip": "::1",
            "tls": "true",
            "secret": "a&b=c \udcff",
            "common_name": "orders-worker",
        }
        assert second.parameters == {
            "remote_ip": "",
            "tls": "false",
            "secret": "",
            "common_name": "",
        }

    run(main())


def test_an_authorization_is_remembered_for_its_ttl() -> None:
    async def main() -> None:
        clock = Clock()
        async with SmallWeb(lambda _: state(ALL, ttl=60)) as web:
            them = Authenticator([web.address], clock=clock)
            assert them.known(WHO) is None
            assert (await them.state(WHO)).may(Action.PUBLISH, "t")
            clock.now += 59.9
            assert them.known(WHO) is not None
            assert (await them.state(WHO)).may(Action.CONSUME, "t", "c")
            assert len(web.asked) == 1
            clock.now += 0.1
            assert them.known(WHO) is None
            web.answer = lambda _: state()
            # The server is asked again, and it has withdrawn the permission.
            assert not (await them.state(WHO)).may(Action.PUBLISH, "t")
            assert len(web.asked) == 2

    run(main())


def test_each_different_client_has_its_own_authorization() -> None:
    async def main() -> None:
        async with SmallWeb(
            lambda question: state(ALL) if question.parameters["secret"] == "s3cret" else state()
        ) as web:
            them = Authenticator([web.address])
            assert (await them.state(WHO)).may(Action.PUBLISH, "t")
            for other in (
                WHO._replace(secret="x"),
                WHO._replace(tls=True),
                WHO._replace(remote_ip="::1"),
                WHO._replace(common_name="n"),
            ):
                assert them.known(other) is None
            assert not (await them.state(WHO._replace(secret="x"))).may(Action.PUBLISH, "t")

    run(main())


def test_auth_asks_whatever_is_known() -> None:
    async def main() -> None:
        async with SmallWeb(lambda _: state()) as web:
            them = Authenticator([web.address])
            assert (await them.state(WHO)).permission_count == 0
            web.answer = lambda _: state(ALL)
            assert (await them.state(WHO)).permission_count == 0
            assert (await them.state(WHO, fresh=True)).permission_count == 1
            assert (await them.state(WHO)).permission_count == 1
            web.answer = lambda _: said(b"", "500 Oh")
            with pytest.raises(AuthFailed):
                await them.state(WHO, fresh=True)
            # AUTH failed, but what the server said before still holds for requests that do not ask
            # again.
            assert (await them.state(WHO)).permission_count == 1

    run(main())


def test_many_wait_for_one_question() -> None:
    async def main() -> None:
        async with SmallWeb(lambda _: state(ALL)) as web:
            them = Authenticator([web.address])
            waiting = [
                asyncio.create_task(them.state(WHO, fresh=bool(number % 2))) for number in range(50)
            ]
            await asyncio.wait(waiting, timeout=0)  # all of them have asked
            waiting[0].cancel()  # a cancelled waiter does not cancel the others
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert isinstance(found[0], asyncio.CancelledError)
            assert {one.identity for one in found[1:] if not isinstance(one, BaseException)} == {
                "worker"
            }
            assert len(web.asked) == 1
            assert them.statistics() == {"known": 1, "asking": 0, "asked": 1, "failed": 0}

    run(main())


def test_the_second_auth_server_is_asked_only_when_the_first_fails() -> None:
    async def main() -> None:
        async with (
            SmallWeb(lambda _: state(ALL, identity="a")) as near,
            SmallWeb(lambda _: state(ALL, identity="b")) as far,
        ):
            them = Authenticator([near.address, f"http://{far.address}/other/path"])
            for number in range(5):
                assert (await them.state(WHO._replace(secret=str(number)))).identity == "a"
            assert not far.asked
            near.answer = lambda _: said(b"{", "200 OK")
            assert (await them.state(WHO)).identity == "b"
            assert far.asked[0].path == "/other/path"
            assert them.statistics()["failed"] == 1

    run(main())


def test_no_client_is_authorized_if_no_auth_server_answers() -> None:
    async def main() -> None:
        clock = Clock()
        async with SmallWeb(lambda _: state(ALL)) as gone:
            pass
        async with SmallWeb(lambda _: state(ALL)) as web:
            them = Authenticator([gone.address, web.address], request_s=0.2, clock=clock)
            assert (await them.state(WHO)).may(Action.PUBLISH, "t")
            clock.now += 61
            for answer, text in (
                (None, "no answer within"),
                (said(b"", "403 Forbidden"), "answered with status 403"),
                (b"garbage", "incomplete or invalid answer"),
                (said({"ttl": 0}), "ttl"),
                (state({"topic": "(((", "permissions": ["publish"]}), "cannot be used"),
            ):
                web.answer = lambda _, answer=answer: answer  # type: ignore[misc]
                with pytest.raises(AuthFailed, match=text) as caught:
                    (await them.state(WHO)).may(Action.PUBLISH, "t")
                assert f"{gone.address}: no connection" in str(caught.value)
                assert "s3cret" not in str(caught.value)

    run(main())


def test_secrets_have_a_largest_size() -> None:
    async def main() -> None:
        async with SmallWeb(lambda _: state(ALL)) as web:
            them = Authenticator([web.address])
            assert (
                await them.state(WHO._replace(secret="é" * (SECRET_MAX // 2)))
            ).permission_count == 1
            with pytest.raises(AuthFailed, match=r"the secret has \d+ bytes; the limit is 4096"):
                await them.state(WHO._replace(secret="é" * (SECRET_MAX // 2) + "x"))
            assert len(web.asked) == 1

    run(main())


def test_the_number_of_remembered_authorizations_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth, "KNOWN_MAX", 3)

    async def main() -> None:
        async with SmallWeb(lambda _: state(ALL)) as web:
            them = Authenticator([web.address])
            for secret in "abc":
                await them.state(WHO._replace(secret=secret))
            assert them.known(WHO._replace(secret="a"))  # this one was used last, so it stays
            await them.state(WHO._replace(secret="d"))
            assert [secret for secret in "abcd" if them.known(WHO._replace(secret=secret))] == [
                "a",
                "c",
                "d",
            ]

    run(main())


def test_questions_at_a_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "WAITING", Bound(ASKED_MAX + 10, 5))

    async def main() -> None:
        full = asyncio.Event()

        def answer(_: Question) -> None:
            if len(web.asked) == ASKED_MAX:
                full.set()

        async with SmallWeb(answer) as web:
            them = Authenticator([web.address])
            waiting = [
                asyncio.create_task(them.state(who_from(number)))
                for number in range(ASKED_MAX + 10)
            ]
            await full.wait()
            assert them.statistics()["asked"] == ASKED_MAX
            with pytest.raises(AuthFailed, match=r"the limit of 74 requests .* is reached"):
                await them.state(WHO)
            await them.close()
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in found)
            assert len(web.asked) == ASKED_MAX
            assert them.statistics()["asking"] == 0

    run(main())


def test_one_address_cannot_take_all_places_of_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "WAITING", Bound(10, 2))

    async def main() -> None:
        async with SmallWeb(lambda _: None) as web:
            them = Authenticator([web.address])
            waiting = [
                asyncio.create_task(them.state(who_from(number, "10.0.0.1"))) for number in range(3)
            ]
            with pytest.raises(AuthFailed, match=r"for address 10\.0\.0\.1 is reached"):
                await waiting[2]
            assert them.statistics()["asking"] == 2
            await them.close()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(main())


def who_from(number: int, address: str = "") -> Who:
    return WHO._replace(secret=str(number), remote_ip=address or f"10.0.1.{number}")


def test_one_address_and_what_auth_asks_leave_slots_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many unknown clients at one address wait for an auth server that hangs. There must still be
    slots for clients at other addresses and for clients that authenticated before.
    """

    async def main() -> None:
        here, elsewhere = asyncio.Event(), asyncio.Event()

        def answer(question: Question) -> bytes | None:
            if len(web.asked) == ASKED_BY_ADDRESS_MAX:
                here.set()
            if len(web.asked) == ASKED_MAX + 1:
                elsewhere.set()
            return state(ALL) if question.parameters["secret"] == "s3cret" else None

        async with SmallWeb(answer) as web:
            them = Authenticator([web.address])
            waiting = [
                asyncio.create_task(them.state(who_from(number, "10.6.6.6"), fresh=True))
                for number in range(200)
            ]
            await here.wait()
            assert (await them.state(WHO, fresh=True)).permission_count == 1
            assert len(web.asked) == ASKED_BY_ADDRESS_MAX + 1
            more = [
                asyncio.create_task(them.state(who_from(number), fresh=True))
                for number in range(200)
            ]
            await elsewhere.wait()
            # The same client sends AUTH over another connection.
            again = asyncio.create_task(them.state(WHO._replace(tls=True), fresh=True))
            assert (await them.state(WHO._replace(tls=True))).may(Action.PUBLISH, "t"), (
                "asked again for who authenticated before"
            )
            assert len(web.asked) == ASKED_MAX + 2
            assert not again.done()
            await them.close()
            await asyncio.gather(*waiting, *more, again, return_exceptions=True)

    run(main())


def test_a_client_that_gets_no_slot_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "WAIT_S", 0.1)

    async def main() -> None:
        full = asyncio.Event()

        def answer(_: Question) -> None:
            if len(web.asked) == ASKED_MAX:
                full.set()

        async with SmallWeb(answer) as web:
            them = Authenticator([web.address])
            waiting = [
                asyncio.create_task(them.state(who_from(number), fresh=True))
                for number in range(ASKED_MAX)
            ]
            await full.wait()
            with pytest.raises(AuthFailed, match=r"not answered within 0\.1 s"):
                await them.state(WHO, fresh=True)
            assert them.statistics()["asking"] == ASKED_MAX
            await them.close()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(main())


def test_answers_that_permit_nothing_do_not_push_out_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth, "DENIED_MAX", 3)

    async def main() -> None:
        async with SmallWeb(
            lambda question: state(ALL) if question.parameters["secret"] == "s3cret" else state()
        ) as web:
            them = Authenticator([web.address])
            assert (await them.state(WHO)).permission_count == 1
            for number in range(10):
                assert (await them.state(who_from(number))).permission_count == 0
            assert them.statistics()["known"] == 4
            assert them.known(WHO) is not None
            assert [number for number in range(10) if them.known(who_from(number))] == [7, 8, 9]
            web.answer = lambda _: state()
            await them.state(WHO, fresh=True)
            known = them.known(WHO)
            assert known is not None
            assert known.permission_count == 0, "the last answer counts"

    run(main())


def test_large_answers_are_remembered_up_to_a_number_of_authorizations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth, "AUTHORIZATIONS_KNOWN_MAX", 25)

    async def main() -> None:
        async with SmallWeb(lambda _: state(*[ALL] * 10)) as web:
            them = Authenticator([web.address])
            for number in range(4):
                await them.state(who_from(number))
            assert [number for number in range(4) if them.known(who_from(number))] == [2, 3]
            web.answer = lambda _: state(*[ALL] * 30)
            await them.state(WHO)
            assert them.known(WHO) is not None
            assert them.statistics()["known"] == 1

    run(main())


def test_a_bad_method_or_address_is_refused() -> None:
    for addresses, method in (
        (["127.0.0.1:4181"], "put"),
        (["ftp://host"], "get"),
        (["host:99999"], "get"),
        ([""], "get"),
    ):
        with pytest.raises(UsageError):
            Authenticator(addresses, method)
