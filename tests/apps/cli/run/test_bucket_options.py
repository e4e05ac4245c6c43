"""Tests of the options of `zsq serve` about shipping to the bucket: their bounds and defaults, and
how they are written in flags and files.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from zsq.actors.settings import options as actors
from zsq.actors.settings.options import ServeOptions
from zsq.apps.cli import app
from zsq.apps.cli.run import option_table
from zsq.apps.cli.run.broker_options import serve_options
from zsq.apps.cli.run.option_table import GivenOptions
from zsq.apps.cli.run.serve import serve

ALONE = ("--no-nsq", "--no-http", "--no-listen")


def given(*arguments: str) -> ServeOptions:
    with serve.make_context("serve", ["--data-dir", "d", *ALONE, *arguments]) as context:
        return serve_options(GivenOptions.of(context.params), {})


def test_the_default_bound_is_the_actors() -> None:
    assert option_table.BUCKET_LAG_S == actors.BUCKET_LAG_S == given().bucket_lag_s
    assert given().bucket_costs == (0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("2s", 2.0), ("0.25", 0.25), ("1h", 3600.0), ("none", 0.0)],
)
def test_a_bound_is_a_time_or_none(text: str, seconds: float) -> None:
    assert given("--bucket-lag", text).bucket_lag_s == seconds


@pytest.mark.parametrize("text", ["49ms", "0", "61m", "7d"])
def test_a_bound_outside_its_limits_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"must be 0\.05s to 1h, or none"):
        given("--bucket-lag", text)


def test_the_costs_of_writes_and_reads_are_two_numbers() -> None:
    assert given("--bucket-cost", "0.005,0.0004").bucket_costs == (0.005, 0.0004)
    assert given("--bucket-cost", "5, 0").bucket_costs == (5.0, 0.0)


@pytest.mark.parametrize("text", ["5", "1,2,3", "a,b", "-1,0", "nan,0", "inf,0", ""])
def test_other_costs_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="two numbers of 0 or more with a comma"):
        given("--bucket-cost", text)


def test_the_mode_bucket_needs_a_bucket_and_a_bound() -> None:
    bucket = ("--sync", "bucket", "--bucket", "file:///b")
    assert given(*bucket).sync == "bucket"
    for arguments in (("--sync", "bucket"), (*bucket, "--bucket-lag", "none")):
        with pytest.raises(click.UsageError, match="give --bucket, and --bucket-lag with a time"):
            given(*arguments)


def test_the_file_sets_them_and_zsq_config_shows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "zsq.toml"
    file.write_text('[bucket]\nlag = 0.5\ncost = "0.005,0.0004"')
    assert app.run(["config", "--json", "--config", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)["options"]
    assert found["bucket-lag"]["value"] == 0.5
    assert found["bucket-cost"]["value"] == [0.005, 0.0004]
    assert app.run(["config", "--config", str(file)]) == 0
    assert "0.005, 0.0004" in capsys.readouterr().out
    file.write_text("bucket-lag = 7200")
    assert app.run(["config", "--config", str(file)]) == 2
    assert "it must be 0.05s to 1h, or none" in capsys.readouterr().err
