"""The client of auth servers: what it asks, what it remembers and for how long, several servers, and servers that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from support.small_web import Question, SmallWeb, said

import zsq.aio
from zsq.actors.nsq import auth
from zsq.actors.nsq.auth import ASKED_MAX, SECRET_MAX, Authenticator, AuthFailed, Who
from zsq.transport.errors import UsageError

WHO = Who("10.0.0.7", False, "", "s3cret")
ALL = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def state(*authorizations: Any, ttl: int = 60, identity: str = "worker") -> bytes:
    return said({"ttl": ttl, "identity": identity, "identity_url": "http://x", "authorizations": list(authorizations)})


def run(main: Coroutine[Any, Any, None]) -> None:
    zsq.aio.run(asyncio.wait_for(main, 60))


@pytest.mark.parametrize("method", ["get", "post"])
def test_what_is_asked(method: str) -> None:
    async def main() -> None:
        async with SmallWeb(lambda _: state(ALL)) as web:
            them = Authenticator([web.address], method)
            found = await them.state(Who("::1", True, "orders-worker", "a&b=c \udcff"))
            assert (found.identity, found.identity_url, found.permission_count) == ("worker", "http://x", 1)
            await them.state(Who("", False, "", ""))
        first, second = web.asked
        assert (first.method, first.path) == (method.upper(), "/auth")
        assert first.parameters == {"remote_ip": "::1", "tls": "true", "secret": "a&b=c \udcff", "common_name": "orders-worker"}
        assert second.parameters == {"remote_ip": "", "tls": "false", "secret": "", "common_name": ""}

    run(main())


def test_it_is_remembered_for_its_ttl() -> None:
    async def main() -> None:
        clock = Clock()
        async with SmallWeb(lambda _: state(ALL, ttl=60)) as web:
            them = Authenticator([web.address], clock=clock)
            assert them.known(WHO) is None
            assert await them.permitted(WHO, "publish", "t")
            clock.now += 59.9
            assert them.known(WHO) is not None
            assert await them.permitted(WHO, "subscribe", "t", "c")
            assert len(web.asked) == 1
            clock.now += 0.1
            assert them.known(WHO) is None
            web.answer = lambda _: state()
            assert not await them.permitted(WHO, "publish", "t")  # asked again, and taken back
            assert len(web.asked) == 2

    run(main())


def test_somebody_else_is_asked_for_apart() -> None:
    async def main() -> None:
        async with SmallWeb(lambda question: state(ALL) if question.parameters["secret"] == "s3cret" else state()) as web:
            them = Authenticator([web.address])
            assert await them.permitted(WHO, "publish", "t")
            for other in (WHO._replace(secret="x"), WHO._replace(tls=True), WHO._replace(remote_ip="::1"), WHO._replace(common_name="n")):
                assert them.known(other) is None
            assert not await them.permitted(WHO._replace(secret="x"), "publish", "t")

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
            assert (await them.state(WHO)).permission_count == 1  # for others it holds as long as was said
            them.forget()
            assert them.known(WHO) is None

    run(main())


def test_many_wait_for_one_question() -> None:
    async def main() -> None:
        async with SmallWeb(lambda _: state(ALL)) as web:
            them = Authenticator([web.address])
            waiting = [asyncio.create_task(them.state(WHO, fresh=bool(number % 2))) for number in range(50)]
            await asyncio.wait(waiting, timeout=0)  # they have asked
            waiting[0].cancel()  # who gives up takes nobody along
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert isinstance(found[0], asyncio.CancelledError)
            assert {one.identity for one in found[1:] if not isinstance(one, BaseException)} == {"worker"}
            assert len(web.asked) == 1
            assert them.statistics() == {"known": 1, "asking": 0, "asked": 1, "failed": 0}

    run(main())


def test_servers_in_their_order() -> None:
    async def main() -> None:
        async with SmallWeb(lambda _: state(ALL, identity="a")) as near, SmallWeb(lambda _: state(ALL, identity="b")) as far:
            them = Authenticator([near.address, f"http://{far.address}/other/path"])
            for number in range(5):
                assert (await them.state(WHO._replace(secret=str(number)))).identity == "a"
            assert not far.asked
            near.answer = lambda _: said(b"{", "200 OK")
            assert (await them.state(WHO)).identity == "b"
            assert far.asked[0].path == "/other/path"
            assert them.statistics()["failed"] == 1

    run(main())


def test_nobody_is_let_in_when_nobody_answers() -> None:
    async def main() -> None:
        clock = Clock()
        async with SmallWeb(lambda _: state(ALL)) as gone:
            pass
        async with SmallWeb(lambda _: state(ALL)) as web:
            them = Authenticator([gone.address, web.address], request_s=0.2, clock=clock)
            assert await them.permitted(WHO, "publish", "t")
            clock.now += 61
            for answer, text in (
                (None, "no answer within"),
                (said(b"", "403 Forbidden"), "answered 403"),
                (b"garbage", "no whole answer"),
                (said({"ttl": 0}), "ttl"),
                (state({"topic": "(((", "permissions": ["publish"]}), "cannot be used"),
            ):
                web.answer = lambda _, answer=answer: answer  # type: ignore[misc]
                with pytest.raises(AuthFailed, match=text) as caught:
                    await them.permitted(WHO, "publish", "t")
                assert f"{gone.address}: no connection" in str(caught.value)
                assert "s3cret" not in str(caught.value)

    run(main())


def test_secrets_have_a_largest_size() -> None:
    async def main() -> None:
        async with SmallWeb(lambda _: state(ALL)) as web:
            them = Authenticator([web.address])
            assert (await them.state(WHO._replace(secret="é" * (SECRET_MAX // 2)))).permission_count == 1
            with pytest.raises(AuthFailed, match="longer than"):
                await them.state(WHO._replace(secret="é" * (SECRET_MAX // 2) + "x"))
            assert len(web.asked) == 1

    run(main())


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "KNOWN_MAX", 3)

    async def main() -> None:
        async with SmallWeb(lambda _: state(ALL)) as web:
            them = Authenticator([web.address])
            for secret in "abc":
                await them.state(WHO._replace(secret=secret))
            assert them.known(WHO._replace(secret="a"))  # used last, so it stays
            await them.state(WHO._replace(secret="d"))
            assert [secret for secret in "abcd" if them.known(WHO._replace(secret=secret))] == ["a", "c", "d"]

    run(main())


def test_questions_at_a_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "WAITING_MAX", ASKED_MAX + 10)

    async def main() -> None:
        full = asyncio.Event()

        def answer(_: Question) -> None:
            if len(web.asked) == ASKED_MAX:
                full.set()

        async with SmallWeb(answer) as web:
            them = Authenticator([web.address])
            waiting = [asyncio.create_task(them.state(WHO._replace(secret=str(number)))) for number in range(ASKED_MAX + 10)]
            await full.wait()
            assert them.statistics()["asked"] == ASKED_MAX
            with pytest.raises(AuthFailed, match="waiting already"):
                await them.state(WHO)
            await them.close()
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in found)
            assert len(web.asked) == ASKED_MAX
            assert them.statistics()["asking"] == 0

    run(main())


def test_options() -> None:
    assert not Authenticator([]).needed
    assert Authenticator(["127.0.0.1:4181"]).needed
    for addresses, method in ((["127.0.0.1:4181"], "put"), (["ftp://host"], "get"), (["host:99999"], "get"), ([""], "get")):
        with pytest.raises(UsageError):
            Authenticator(addresses, method)
