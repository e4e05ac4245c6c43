"""A consumer that runs as a service. SIGTERM lets it finish what it handles, and end with code 0."""

import logging

from zsq import Consumer, Message


def handle(message: Message) -> None:
    """Do the work of one message. An exception lets it come again."""
    logging.info("offset %d, attempt %d: %r", message.offset, message.attempts, message.body)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    with Consumer("orders", "billing") as consumer:  # at ZSQ_URL
        consumer.run(handle, concurrency=4)
