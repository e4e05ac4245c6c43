"""What `zsq serve` makes of its options for NSQ's clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from zsq.actors.nsq import options as actors
from zsq.apps.cli import nsq_options
from zsq.apps.cli.nsq_options import given_nsq, with_nsq
from zsq.transport.protocol import MESSAGE_TIMEOUT_MS_MAX


def given(*arguments: str) -> actors.NsqOptions | None:
    found: list[actors.NsqOptions | None] = []

    def serve(**options: Any) -> None:
        found.append(given_nsq(options | {"no_listen": False}))

    done = CliRunner().invoke(with_nsq(click.command()(serve)), arguments, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return found[0]


def test_defaults_are_the_actors() -> None:
    assert given() == actors.NsqOptions()
    assert (nsq_options.NSQ_LISTEN, nsq_options.HTTP_LISTEN) == (actors.NSQ_LISTEN, actors.HTTP_LISTEN)
    assert actors.NsqOptions().msg_timeout_ms == nsq_options.MSG_TIMEOUT_S * 1000
    assert nsq_options.MSG_TIMEOUT_S_MAX * 1000 == actors.NsqOptions().max_msg_timeout_ms == MESSAGE_TIMEOUT_MS_MAX


def test_each_reaches_the_gateway() -> None:
    arguments = (
        "--nsq-msg-timeout 2s --nsq-max-msg-timeout 5m --nsq-max-req-timeout 2h --nsq-max-heartbeat-interval 90s --nsq-max-rdy-count 7"
        " --nsq-max-output-buffer-timeout 1s --nsq-no-deflate --nsq-auth-http-address a:1 --nsq-lookupd-tcp-address b:2"
        " --nsq-topology-zone z --nsq-listen 127.0.0.1:5 --nsq-listen unix:/tmp/s"
    )
    assert given(*arguments.split()) == replace(
        actors.NsqOptions(), msg_timeout_ms=2_000, max_msg_timeout_ms=300_000, max_req_timeout_ms=7_200_000, max_rdy_count=7,
        max_heartbeat_interval_ms=90_000, max_output_buffer_timeout_ms=1_000, deflate=False, auth_http_addresses=("a:1",),
        lookupd_tcp_addresses=("b:2",), topology_zone="z", listen=("127.0.0.1:5", "unix:/tmp/s"), given=True,
    )  # fmt: skip
    assert given("--no-nsq") is None


@pytest.mark.parametrize(
    "arguments",
    [
        "--nsq-max-msg-timeout 15m1s",  # would be negotiated, and SUB refused
        "--nsq-max-msg-timeout 0s",
        "--nsq-max-msg-timeout 30s",  # less than the usual one
        "--nsq-msg-timeout 16m",
        "--nsq-msg-timeout 0s",
        "--nsq-msg-timeout 3s --nsq-max-msg-timeout 2s",
        "--no-nsq --nsq-listen 127.0.0.1:5",
        "--nsq-listen 5",
        "--nsq-tls-required true",
        "--nsq-tls-cert /dev/null",
        "--nsq-tls-cert /dev/null --nsq-tls-key /dev/null --nsq-tls-client-auth-policy require-verify",
        "--nsq-auth-http-address host",
        "--nsq-lookupd-tcp-address host:0",
    ],
)
def test_what_cannot_be_is_said_at_once(arguments: str) -> None:
    with pytest.raises(click.UsageError):
        given(*arguments.split())
