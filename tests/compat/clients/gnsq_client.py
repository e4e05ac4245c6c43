"""A program that runs gnsq, a client for Python on gevent."""

from __future__ import annotations

import logging
import ssl
from typing import Any

import gevent  # type: ignore
import gevent.os  # type: ignore
import gnsq  # type: ignore

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
    return options


class Producer:
    def __init__(self, config: dict[str, Any]) -> None:
        self.producer = gnsq.Producer(config["nsqd"], **options_of(config))
        self.producer.start()
        say("ready")

    def take(self, order: Order) -> None:
        if order["op"] == "close":
            self.producer.close()
            self.producer.join(5)
            return
        gevent.spawn(self.publish, order)

    def publish(self, order: Order) -> None:
        bodies = bodies_of(order)
        try:
            if order["op"] == "mpub":
                self.producer.multipublish(order["topic"], bodies)
            else:
                self.producer.publish(order["topic"], bodies[0], defer=order.get("delay_ms"))
        except gnsq.errors.NSQException as error:
            say("failed", why=str(error))
        else:
            say("stored")


class Consumer:
    def __init__(self, config: dict[str, Any]) -> None:
        where = (
            {"lookupd_http_addresses": [config["lookupd"]]}
            if config["lookupd"]
            else {"nsqd_tcp_addresses": [config["nsqd"]]}
        )
        self.auto = config["auto"]
        # The last OK is the answer to SUB.
        self.awaited = 1 + bool(config["tls_ca"]) + (config["deflate"] or config["snappy"])
        self.held: dict[tuple[str, int], Any] = {}
        self.consumer = gnsq.Consumer(
            config["topic"], config["channel"], message_handler=self.on_message, max_tries=0, max_in_flight=config["in_flight"],
            lookupd_poll_interval=1, **where, **options_of(config),
        )  # fmt: skip
        self.consumer.on_error.connect(self.on_error)
        self.consumer.on_response.connect(self.on_response)
        self.consumer.start(block=False)

    def on_response(self, consumer: object, response: bytes) -> None:
        if response == b"OK":
            self.awaited -= 1
            if not self.awaited:
                say("ready")

    def on_error(self, consumer: object, error: object) -> None:
        say("error", why=f"{type(error).__name__} {error}")

    def on_message(self, consumer: object, message: Any) -> None:
        say_message(message.id, message.attempts, message.timestamp, message.body)
        if not self.auto:
            message.enable_async()
            self.held[message.id.decode(), message.attempts] = message

    def take(self, order: Order) -> None:
        if order["op"] == "close":
            self.consumer.close()
            self.consumer.join(5)
            return
        message = self.held[key_of(order)]
        if order["op"] == "finish":
            message.finish()
        elif order["op"] == "requeue":
            message.requeue(order["delay_ms"], backoff=False)
        else:
            message.touch()


def main() -> None:
    role, config = arguments()
    client = Producer(config) if role == "produce" else Consumer(config)
    going = True

    def take(order: Order) -> None:
        nonlocal going
        client.take(order)
        going = order["op"] != "close"

    orders = Orders(take)
    gevent.os.make_nonblocking(0)
    while going:
        orders.take(gevent.os.nb_read(0, 65536))
    say("closed")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main()
