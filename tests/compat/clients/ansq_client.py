"""A program that runs ansq, an asyncio client for Python. ansq has no TLS and no compression, and
uses a RDY of 1 when it uses lookups.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ansq
from ansq.tcp.connection import NSQConnection
from ansq.tcp.types import ConnectionFeatures, ConnectionOptions

from .lines import Order, Orders, arguments, bodies_of, key_of, say, say_message


def options_of(config: dict[str, Any]) -> Any:
    features = ConnectionFeatures(
        heartbeat_interval=config["heartbeat_s"] * 1000,
        msg_timeout=config["msg_timeout_ms"] or 60_000,
    )
    return ConnectionOptions(
        features=features, auto_reconnect=False, on_close=lambda connection: say("lost")
    )


async def produce(config: dict[str, Any], orders: asyncio.Queue[Order]) -> None:
    writer = await ansq.create_writer([config["nsqd"]], options_of(config))
    say("ready")
    while (order := await orders.get())["op"] != "close":
        bodies = bodies_of(order)
        if order["op"] == "mpub":
            answer = await writer.mpub(order["topic"], *bodies)
        elif order["op"] == "dpub":
            answer = await writer.dpub(order["topic"], bodies[0], order["delay_ms"])
        else:
            answer = await writer.pub(order["topic"], bodies[0])
        say("stored") if answer is not None and answer.is_ok else say("failed", why=str(answer))
    await writer.close()


async def consume(config: dict[str, Any], orders: asyncio.Queue[Order]) -> None:
    held: dict[tuple[str, int], Any] = {}
    client: Any
    if config["lookupd"]:
        client = await ansq.create_reader(
            config["topic"], config["channel"], lookupd_http_addresses=[config["lookupd"]], lookupd_poll_interval=500,
            connection_options=options_of(config),
        )  # fmt: skip
    else:
        host, _, port = config["nsqd"].partition(":")
        client = NSQConnection(host, int(port), connection_options=options_of(config))
        await client.connect()
        await client.identify()
        await client.subscribe(config["topic"], config["channel"], config["in_flight"])
    say("ready")

    async def hear() -> None:
        while (message := await client.wait_for_message()) is not None:
            say_message(message.id.encode(), message.attempts, message.timestamp, message.body)
            if config["auto"]:
                await message.fin()
            else:
                held[message.id, message.attempts] = message

    async with asyncio.TaskGroup() as group:
        hearing = group.create_task(hear())
        while (order := await orders.get())["op"] != "close":
            message = held[key_of(order)]
            # The methods of the message would use this connection, too. It is used directly here,
            # to bypass ansq's own check for late answers.
            connection = message._connection
            if order["op"] == "finish":
                await connection.fin(message.id)
            elif order["op"] == "requeue":
                await connection.req(message.id, order["delay_ms"])
            else:
                await connection.touch(message.id)
        hearing.cancel()
    await client.close()


async def main() -> None:
    role, config = arguments()
    orders: asyncio.Queue[Order] = asyncio.Queue()
    asyncio.get_running_loop().add_reader(0, Orders(orders.put_nowait).read)
    await (produce if role == "produce" else consume)(config, orders)
    say("closed")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
