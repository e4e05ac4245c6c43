"""Test of how long an NSQ client may hold a message if the broker has an option for it."""

from __future__ import annotations

import time
from pathlib import Path

from support.broker import Broker
from support.nsq_socket import NsqSocket


def test_touches_keep_a_message_up_to_the_longest_timeout(tmp_path: Path) -> None:
    with (
        Broker(
            tmp_path / "data", "--nsq-msg-timeout", "1s", "--nsq-max-msg-timeout", "2s", nsq=True
        ) as broker,
        NsqSocket(broker.nsq) as client,
    ):
        assert client.identify()["max_msg_timeout"] == 2_000
        assert client.ask("PUB t", b"a") == "OK"
        client.subscribe("t", "c", ready=2)
        message = client.message()
        client.socket.settimeout(0.3)
        began = time.monotonic()
        while True:
            client.answer("TOUCH", message)
            assert time.monotonic() - began < 15, "it is touched, and nothing else happens"
            try:
                kind, data = client.frame()
            except TimeoutError:
                continue
            break
        assert time.monotonic() - began >= 1.9
        assert (
            kind == 2 and data[8:10] == b"\0\2"
        ) or data == b"E_TOUCH_FAILED TOUCH " + message.id + b" failed ID not in flight"
