"""Tests of the options of `zsq serve` about the cluster: --cluster and --advertise."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from zsq.actors.runtime.process import advertised
from zsq.actors.settings.options import ServeOptions
from zsq.apps.cli import app
from zsq.apps.cli.run.broker_options import ADDRESS_CHARS_MAX, ADVERTISED_MAX, serve_options
from zsq.apps.cli.run.option_table import GivenOptions
from zsq.apps.cli.run.serve import serve
from zsq.storage.cluster import directory
from zsq.transport.errors import UsageError

ALONE = ("--no-nsq", "--no-http")
BUCKET = ("--bucket", "file:///b/one")
CLUSTER = (*BUCKET, "--cluster", "file:///b")


def given(*arguments: str) -> ServeOptions:
    with serve.make_context("serve", ["--data-dir", "d", *ALONE, *arguments]) as context:
        return serve_options(GivenOptions.of(context.params), {})


def test_a_broker_alone_has_neither() -> None:
    assert (given(*BUCKET).cluster, given(*BUCKET).advertise) == ("", ())


def test_a_cluster_is_the_url_of_a_bucket() -> None:
    assert given(*CLUSTER).cluster == "file:///b"
    assert given(*BUCKET, "--cluster", "file:///b/").cluster == "file:///b"
    with pytest.raises(UsageError, match="'ftp://b' is not valid"):
        given(*BUCKET, "--cluster", "ftp://b")


def test_a_cluster_needs_a_bucket_of_the_broker_alone() -> None:
    with pytest.raises(click.UsageError, match="--cluster needs --bucket with a prefix"):
        given("--cluster", "file:///b")
    with pytest.raises(click.UsageError, match="--cluster and --bucket are both file:///b/one"):
        given(*BUCKET, "--cluster", "file:///b/one")


def test_a_cluster_needs_an_address() -> None:
    with pytest.raises(click.UsageError, match="remove --no-listen, or give --advertise"):
        given(*CLUSTER, "--no-listen")
    assert given(*CLUSTER, "--no-listen", "--advertise", "tcp://a:1").advertise == ("tcp://a:1",)


def test_addresses_are_separated_by_commas() -> None:
    found = given("--advertise", "tcp://a:4153, tcp://[::1]:5153")
    assert found.advertise == ("tcp://a:4153", "tcp://[::1]:5153")
    assert advertised(found.gateway, found.advertise) == found.advertise
    assert advertised("10.0.0.1:4153") == ("tcp://10.0.0.1:4153",)


@pytest.mark.parametrize(
    "text",
    ["a:1", "tcp://a", "tcp://a:0", "tcp://a:65536", "tcp://:1", "tcp://a:x", "tcp://a b:1", ",",
     "tcp://a:1,", "ipc:///run", "tcp://a/b:1", "tcp://a:\u0661"],
)  # fmt: skip
def test_other_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not an address; use tcp://HOST:PORT"):
        given("--advertise", text)


def test_addresses_are_few_and_short() -> None:
    addresses = [f"tcp://a:{port}" for port in range(1, ADVERTISED_MAX + 2)]
    with pytest.raises(click.BadParameter, match="5 addresses are too many"):
        given("--advertise", ",".join(addresses))
    with pytest.raises(click.BadParameter, match="at most 200 characters, not 201"):
        given("--advertise", f"tcp://{'a' * 193}:1")
    assert ADVERTISED_MAX <= directory.ADDRESSES_MAX
    assert ADDRESS_CHARS_MAX <= directory.ADDRESS_CHARS_MAX


def test_the_file_sets_them_and_zsq_config_shows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "zsq.toml"
    file.write_text('bucket = "file:///b/one"\ncluster = "file:///b"\nadvertise = "tcp://a:4153"')
    assert app.run(["config", "--json", "--config", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)["options"]
    assert found["cluster"]["value"] == "file:///b"
    assert found["advertise"]["value"] == "tcp://a:4153"
