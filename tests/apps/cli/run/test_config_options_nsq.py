"""Tests of how `zsq serve` uses its options for NSQ's clients."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest

from zsq.actors.settings import options as actors
from zsq.apps.cli.run import broker_options as nsq_options
from zsq.apps.cli.run import option_table
from zsq.apps.cli.run.broker_options import given_gateways, given_nsq
from zsq.apps.cli.run.option_table import GivenOptions
from zsq.apps.cli.run.serve import serve
from zsq.transport.wire.protocol import MESSAGE_TIMEOUT_MS_MAX


def given(*arguments: str) -> actors.NsqOptions | None:
    return given_nsq(taken(*arguments))


def gateways(*arguments: str) -> tuple[actors.NsqOptions | None, actors.HttpOptions | None]:
    return given_gateways(taken(*arguments))


def taken(*arguments: str) -> GivenOptions:
    with serve.make_context("serve", ["--data-dir", "d", *arguments]) as context:
        return GivenOptions.of(context.params)


def test_defaults_are_the_actors() -> None:
    assert given() == actors.NsqOptions()
    assert (option_table.NSQ_LISTEN, option_table.HTTP_LISTEN) == (
        actors.NSQ_LISTEN,
        actors.HTTP_LISTEN,
    )
    assert nsq_options.MSG_TIMEOUT_S_MAX * 1000 == MESSAGE_TIMEOUT_MS_MAX
    longer = given("--nsq-max-msg-timeout", "1h", "--nsq-msg-timeout", "30m")
    assert longer is not None
    assert (longer.max_msg_timeout_ms, longer.msg_timeout_ms) == (3_600_000, 1_800_000)


def test_each_nsq_option_reaches_the_gateway() -> None:
    arguments = (
        "--nsq-msg-timeout 2s --nsq-max-msg-timeout 5m --nsq-max-req-timeout 2h "
        "--nsq-max-heartbeat-interval 90s --nsq-max-rdy-count 7"
        " --nsq-max-output-buffer-timeout 1s --nsq-no-deflate --nsq-auth-http-address a:1 "
        "--nsq-lookupd-tcp-address b:2"
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
        # This value would be negotiated, and then SUB would be refused.
        "--nsq-max-msg-timeout 24h1s",
        "--nsq-max-msg-timeout 0s",
        "--nsq-max-msg-timeout 30s",  # less than the default time-out
        "--nsq-msg-timeout 16m",
        "--nsq-msg-timeout 0s",
        "--nsq-msg-timeout 3s --nsq-max-msg-timeout 2s",
        "--no-nsq --nsq-listen 127.0.0.1:5",
        "--nsq-listen 5",
        "--nsq-tls-required true",
        "--nsq-tls-cert /dev/null",
        (
            "--nsq-tls-cert /dev/null --nsq-tls-key /dev/null --nsq-tls-client-auth-policy "
            "require-verify"
        ),
        "--nsq-auth-http-address host",
        "--nsq-lookupd-tcp-address host:0",
    ],
)
def test_impossible_nsq_options_are_refused_at_once(arguments: str) -> None:
    with pytest.raises(click.UsageError):
        given(*arguments.split())


def test_auth_servers_without_re2_are_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "re2" else name)
    with pytest.raises(click.UsageError, match=r"needs google-re2.*pip install 'zsq\[nsq\]'"):
        given("--nsq-auth-http-address", "a:1")
    assert given("--nsq-listen", "127.0.0.1:5") is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--no-http", "an HTTP port.*--no-http.*--nsq-broadcast-http-port"),
        ("--no-listen --nsq-listen 127.0.0.1:5", "an HTTP port.*--http-listen"),
        ("--nsq-listen unix:/tmp/s", "a TCP port.*--nsq-broadcast-tcp-port"),
        ("--no-nsq", "needs the NSQ gateway"),
    ],
)
def test_a_node_that_no_nsqlookupd_takes_is_refused_at_the_start(arguments: str, said: str) -> None:
    """A real nsqlookupd answers an IDENTIFY without a port with E_BAD_BODY. No client would find
    this node, and the broker would look healthy.
    """
    assert gateways(*arguments.split())
    with pytest.raises(click.UsageError, match=said):
        gateways("--nsq-lookupd-tcp-address", "b:2", *arguments.split())


def test_the_ports_that_nsqlookupd_is_told_are_of_the_gateways_or_given() -> None:
    nsq = gateways("--nsq-lookupd-tcp-address", "b:2", "--http-listen", "127.0.0.1:7")[0]
    assert nsq is not None
    assert (nsq.http_port, nsq.broadcast_http_port) == (7, 0)
    given = (
        "--no-http --nsq-broadcast-http-port 8 --nsq-listen unix:/tmp/s --nsq-broadcast-tcp-port 9"
    )
    nsq = gateways("--nsq-lookupd-tcp-address", "b:2", *given.split())[0]
    assert nsq is not None
    assert (nsq.http_port, nsq.broadcast_http_port, nsq.broadcast_tcp_port) == (0, 8, 9)
