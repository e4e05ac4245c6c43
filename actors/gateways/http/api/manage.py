"""Handlers that create, delete, empty, pause and unpause topics and channels.

Unlike in nsqd, each command is durable when it is answered, and a delete waits until the topic is
gone. Over HTTP a delete also removes unfinished messages, as NSQ's tools expect. The command line
and the client library refuse that without `force`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from .....transport.client.asyncio.aio import Admin
from .....transport.errors import NotFound
from ..web.body import QueryRequest
from ..web.responses import ApiError, api_error, nothing
from .lookup import Tombstones

Command = Callable[..., Awaitable[object]]


class ManagementHandlers:
    """The handlers of /topic/... and /channel/..., except /topic/tombstone."""

    def __init__(self, broker: Admin, query: QueryRequest, tombstones: Tombstones) -> None:
        self._broker = broker
        self._query = query
        self._tombstones = tombstones

    async def create_topic(self, request: Request) -> Response:
        await self._broker.create_topic((await self._query(request)).topic())
        return nothing()

    async def delete_topic(self, request: Request) -> Response:
        topic = (await self._query(request)).existing_topic()
        try:
            await self._broker.delete_topic(topic, force=True)
        except NotFound:
            raise api_error("TOPIC_NOT_FOUND") from None
        self._tombstones.remove(topic)
        return nothing()

    async def empty_topic(self, request: Request) -> Response:
        topic = (await self._query(request)).topic()
        return await self._of_topic(self._broker.empty, topic)

    async def pause_topic(self, request: Request) -> Response:
        return await self._of_topic(
            self._broker.pause, (await self._query(request)).existing_topic()
        )

    async def unpause_topic(self, request: Request) -> Response:
        return await self._of_topic(
            self._broker.unpause, (await self._query(request)).existing_topic()
        )

    async def create_channel(self, request: Request) -> Response:
        topic, channel = (await self._query(request)).topic_and_channel()
        try:
            # As in nsqd, the topic must exist. The broker's `create_channel` would create it.
            await self._broker.stats(topic)
        except NotFound:
            raise api_error("TOPIC_NOT_FOUND") from None
        await self._broker.create_channel(topic, channel)
        return nothing()

    async def delete_channel(self, request: Request) -> Response:
        topic, channel = (await self._query(request)).topic_and_channel()
        try:
            await self._broker.delete_channel(topic, channel, force=True)
        except NotFound:
            raise await self._missing(topic) from None
        return nothing()

    async def empty_channel(self, request: Request) -> Response:
        return await self._of_channel(self._broker.empty, request)

    async def pause_channel(self, request: Request) -> Response:
        return await self._of_channel(self._broker.pause, request)

    async def unpause_channel(self, request: Request) -> Response:
        return await self._of_channel(self._broker.unpause, request)

    async def _of_topic(self, command: Command, topic: str) -> Response:
        try:
            await command(topic)
        except NotFound:
            raise api_error("TOPIC_NOT_FOUND") from None
        return nothing()

    async def _of_channel(self, command: Command, request: Request) -> Response:
        topic, channel = (await self._query(request)).topic_and_channel()
        try:
            await command(topic, channel)
        except NotFound:
            raise await self._missing(topic) from None
        return nothing()

    async def _missing(self, topic: str) -> ApiError:
        """Return TOPIC_NOT_FOUND or CHANNEL_NOT_FOUND after a command on a channel has failed.

        Only the text of the broker's own error says whether the topic or the channel is missing.
        """
        try:
            await self._broker.stats(topic)
        except NotFound:
            return api_error("TOPIC_NOT_FOUND")
        return api_error("CHANNEL_NOT_FOUND")
