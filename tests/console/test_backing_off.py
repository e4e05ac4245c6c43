"""Test of the console's page of a channel whose consumer backs off."""

from __future__ import annotations

import threading

from support.broker import Broker
from support.browser import Window

import zsq


def test_a_channels_page_shows_a_consumer_that_backs_off(window: Window, broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("failing", "c", backoff_s=0)
        producer.publish_many("failing", [b"x"] * 30)

    def fail(message: zsq.Message) -> None:
        raise ValueError

    with zsq.Consumer("failing", "c", url=broker.ipc) as consumer:
        backoff = zsq.Backoff(500, 3600)
        options = {"signals": False, "on_error": lambda *_: None, "backoff": backoff}
        thread = threading.Thread(target=consumer.run, args=(fail,), kwargs=options)
        thread.start()
        try:
            page = window.open("#/topics/failing/channels/c")
            page.get_by_text("backing off, next probe in").wait_for()
        finally:
            consumer.close()
            thread.join()
