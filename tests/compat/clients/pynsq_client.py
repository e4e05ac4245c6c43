"""A program that runs pynsq, NSQ's official client for Python, on tornado."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from typing import Any

import nsq  # type: ignore
from tornado.ioloop import IOLoop

from .lines import Order, Orders, arguments, bodies_of, key_of, say, say_message


def options_of(config: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "deflate": config["deflate"],
        "snappy": config["snappy"],
        "heartbeat_interval": config["heartbeat_s"],
    }
    if config["tls_ca"]:
        options |= {
            "tls_v1": True,
            "tls_options": {"ca_certs": config["tls_ca"], "cert_reqs": ssl.CERT_REQUIRED},
        }
    if config["msg_timeout_ms"]:
        options["msg_timeout"] = config["msg_timeout_ms"] / 1000
    return options


def end() -> None:
    say("closed")
    # Without this call, pynsq would connect again. Programs that use pynsq end in this way, too.
    os._exit(0)


class Producer:
    def __init__(self, config: dict[str, Any]) -> None:
        self.writer = nsq.Writer([config["nsqd"]], **options_of(config))
        ready = self.writer._on_connection_ready

        def on_ready(conn: Any, **more: Any) -> None:
            ready(conn, **more)
            say("ready")

        self.writer._on_connection_ready = on_ready

    def take(self, order: Order) -> None:
        if order["op"] == "close":
            for conn in list(self.writer.conns.values()):
                conn.close()
            IOLoop.current().call_later(0.05, end)
            return
        bodies = bodies_of(order)
        if order["op"] == "mpub":
            self.writer.mpub(order["topic"], bodies, callback=self.stored)
        elif order["op"] == "dpub":
            self.writer.dpub(order["topic"], order["delay_ms"], bodies[0], callback=self.stored)
        else:
            self.writer.pub(order["topic"], bodies[0], callback=self.stored)

    def stored(self, conn: object, data: object) -> None:
        if isinstance(data, nsq.Error):
            say("failed", why=str(data))
        else:
            say("stored")


class Consumer(nsq.Reader):  # type: ignore
    def __init__(self, config: dict[str, Any]) -> None:
        where = (
            {"lookupd_http_addresses": [config["lookupd"]]}
            if config["lookupd"]
            else {"nsqd_tcp_addresses": [config["nsqd"]]}
        )
        self.auto = config["auto"]
        self.held: dict[tuple[str, int], Any] = {}
        super().__init__(
            config["topic"], config["channel"], message_handler=self.on_message, max_tries=0, max_in_flight=config["in_flight"],
            lookupd_poll_interval=1, max_backoff_duration=0.1, **where, **options_of(config),
        )  # fmt: skip

    def _on_connection_ready(self, conn: Any, **more: Any) -> None:
        super()._on_connection_ready(conn, **more)
        conn.on("response", self.on_response)  # The answer to SUB. RDY has no answer.

    def on_response(self, conn: object, data: bytes, **more: Any) -> None:
        say("ready" if data == b"OK" else "error", why=data.decode())

    def _on_connection_error(self, conn: Any, error: Any, **more: Any) -> None:
        super()._on_connection_error(conn, error, **more)
        say("error", why=str(error))

    def _on_connection_close(self, conn: Any, **more: Any) -> None:
        super()._on_connection_close(conn, **more)
        say("lost")

    def on_message(self, message: Any) -> bool | None:
        say_message(message.id, message.attempts, message.timestamp, message.body)
        if self.auto:
            return True
        message.enable_async()
        self.held[message.id.decode(), message.attempts] = message
        return None

    def take(self, order: Order) -> None:
        if order["op"] == "close":
            self.close()
            IOLoop.current().call_later(0.05, end)
            return
        message = self.held[key_of(order)]
        if order["op"] == "finish":
            message.finish()
        elif order["op"] == "requeue":
            message.requeue(backoff=False, time_ms=order["delay_ms"])
        else:
            message.touch()


async def main() -> None:
    role, config = arguments()
    client = Producer(config) if role == "produce" else Consumer(config)
    asyncio.get_running_loop().add_reader(0, Orders(client.take).read)
    await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
