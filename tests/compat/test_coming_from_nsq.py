"""Tests of docs/coming-from-nsq.md: its table has every option, and the commands that it suggests
work.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.broker import free_port

from zsq.apps.cli.run.option_table import ROWS, key
from zsq.apps.cli.run.serve import serve

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "coming-from-nsq.md").read_text()


def options_of(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_every_option_stands_beside_nsqds() -> None:
    rows = re.findall(
        r"^\|(.*?)\|(.*?)\|", TEXT.partition("## Options side by side")[2], re.MULTILINE
    )
    ours = {option for _, cell in rows for option in re.findall(r"`(--[a-z-]+)`", cell)}
    ours |= {
        f"--nsq-{name}"
        for cell, same in rows
        if same.strip() == "the same with `--nsq-` before it"
        for name in re.findall(r"`--([a-z-]+)`", cell)
    }
    ours.discard("--nsq-")
    assert {
        f"--{key(name)}" for name in ROWS if name.startswith(("nsq_", "http_", "no_nsq", "no_http"))
    } <= ours
    assert ours <= options_of(serve), "no option that is not there"
    theirs = [option for cell, _ in rows for option in re.findall(r"`(--[a-z0-9.=-]+)`", cell)]
    assert len(theirs) == len(set(theirs)) >= 40


def test_the_commands_that_the_page_suggests_work(tmp_path: Path) -> None:
    pytest.importorskip("nsq")
    (block,) = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    nsq, http = free_port(), free_port()
    listen = (
        f"--listen 127.0.0.1:{free_port()} --nsq-listen 127.0.0.1:{nsq} --http-listen "
        f"127.0.0.1:{http}"
    )
    script = re.sub(r"^pip .*\n", "", block, flags=re.MULTILINE)
    script = script.replace("zsq serve", f"python -m zsq serve {listen}").replace(
        "127.0.0.1:4151", f"127.0.0.1:{http}"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "b'0000000000000000' 1 b'hello'" in done.stdout, (done.stdout, done.stderr)
    assert re.search(r"\[shell +\] depth: 0 ", done.stdout), (done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
