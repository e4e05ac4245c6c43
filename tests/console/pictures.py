"""Take the pictures of the console for docs/pictures, with a busy broker and a browser.

python tests/console/pictures.py [--seconds 240] [--into docs/pictures]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.broker import Broker  # noqa: E402
from support.browser import Window, chromium  # noqa: E402

import zsq  # noqa: E402

BYTES_MAX: Final = 250_000  # the largest size of a picture
SIZE: Final = {"width": 1280, "height": 800}
RATES: Final = {
    "clicks": 500,
    "orders": 90,
    "payments": 45,
    "emails": 20,
    "sensor.readings": 220,
    "thumbnails": 8,
    "search.index": 15,
}
CONSUMERS: Final = {  # for each topic and channel: seconds per message
    "clicks": {"archive": 0.0, "fraud-check": 0.0012, "warehouse": 0.0},
    "orders": {"billing": 0.002, "mailer": 0.0},
    "payments": {"ledger": 0.001, "risk": 0.03},
    "emails": {"smtp": 0.01},
    "sensor.readings": {"rollup": 0.0, "live#ephemeral": 0.0},
    "thumbnails": {"resize": 0.05},
    "search.index": {"elastic": 0.0},
}
PICTURES: Final = {
    "console-topics": ("#/", "light"),
    "console-topics-dark": ("#/", "dark"),
    "console-chunks": ("#/topics/sensor.readings/chunks", "light"),
    "console-messages": ("#/topics/orders/messages", "light"),
    "console-channel": ("#/topics/payments/channels/risk", "dark"),
    "console-removal": ("#/topics/thumbnails/removal", "light"),
}


class Work:
    """Producers and consumers, each in a thread, until `over` is set."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        with zsq.Admin(self.broker.ipc) as admin:
            for topic in RATES:
                admin.create_topic(topic)
            admin.pause("search.index")
        jobs: list[tuple[Any, ...]] = [(self.produce, topic, rate) for topic, rate in RATES.items()]
        jobs += [
            (self.consume, topic, channel, takes_s)
            for topic, all_of in CONSUMERS.items()
            for channel, takes_s in all_of.items()
        ]
        self.threads = [threading.Thread(target=job[0], args=job[1:], daemon=True) for job in jobs]
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(10)

    def produce(self, topic: str, rate: int) -> None:
        dice = random.Random(topic)
        with zsq.Producer(self.broker.ipc, linger_ms=5) as producer:
            number = 0
            began = time.monotonic()
            while not self.over.wait(0.1):
                wave = (
                    1
                    + 0.35 * math.sin((time.monotonic() - began) / 17 + len(topic))
                    + dice.gauss(0, 0.06)
                )
                for _ in range(max(0, round(rate * wave / 10))):
                    number += 1
                    body = {
                        "user": dice.randrange(10_000),
                        "page": f"/product/{dice.randrange(400)}",
                        "cents": dice.randrange(99_999),
                        "new": number % 3 == 0,
                    }
                    producer.publish(
                        topic,
                        json.dumps(body).encode(),
                        key=b"user-%d" % (number % 977),
                        tag=("eu", "us")[number % 2],
                    )

    def consume(self, topic: str, channel: str, takes_s: float) -> None:
        dice = random.Random(channel)
        with zsq.Consumer(
            topic,
            channel,
            url=self.broker.ipc,
            ready=200,
            label=f"{channel.split('#')[0]}-{dice.randrange(1, 9)}",
        ) as consumer:
            while not self.over.is_set():
                message = consumer.receive(timeout=0.2)
                if message is None:
                    continue
                if takes_s:
                    self.over.wait(takes_s)
                if dice.random() < 0.002:
                    message.requeue(2)
                else:
                    message.finish()


@contextmanager
def working(folder: Path) -> Iterator[Broker]:
    broker = Broker(
        folder / "data",
        "--alarm-depth",
        "400",
        "--alarm-hold",
        "2s",
        "--chunk-bytes",
        "1048576",
        http=True,
    )
    work = Work(broker)
    try:
        broker.start()
        work.start()
        yield broker
    finally:
        work.stop()
        broker.close()


def take(into: Path, seconds: float) -> list[Path]:
    """Take all pictures after `seconds` seconds of work."""
    into.mkdir(parents=True, exist_ok=True)
    taken = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(working(folder))
        browser = stack.enter_context(chromium())
        threading.Event().wait(seconds)
        for name, (place, theme) in PICTURES.items():
            window = Window(
                browser, f"http://127.0.0.1:{broker.http}", viewport=SIZE, color_scheme=theme
            )
            page = window.open(place)
            page.locator("#page .panel").first.wait_for()
            # Wait for the charts, and for data that is requested every few seconds.
            page.wait_for_timeout(2500)
            assert not window.complaints, window.complaints
            taken.append(into / f"{name}.png")
            page.screenshot(path=taken[-1])
            window.close()
    return taken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--into", type=Path, default=ROOT / "docs/pictures")
    options = parser.parse_args()
    for picture in take(options.into, options.seconds):
        print(f"{picture} {picture.stat().st_size:,} bytes")
