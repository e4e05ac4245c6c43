"""Tests of the lease as a channel sees it: when consumers are turned away."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsq.actors.bucket.channel_lease import ChannelLease
from zsq.actors.bucket.lease_cell import OVER, LeaseCell
from zsq.actors.channel.serving_policy import ServingPolicy, serving_policy_class
from zsq.actors.settings.starts import ChannelStart
from zsq.transport.errors import E_STANDBY, Refused


def lease_of(run_dir: Path, *, replaceable: bool) -> ServingPolicy:
    start = ChannelStart(
        front=f"ipc://{run_dir}/7", topic="", storage="", scan="", channel="c", closed=False,
        replaceable=replaceable,
    )  # fmt: skip
    return serving_policy_class()(start)


def test_the_bucket_decides_for_channels() -> None:
    assert serving_policy_class() is ChannelLease


def test_consumers_are_turned_away_when_the_lease_is_over_for_the_patience(tmp_path: Path) -> None:
    lease, alone = (lease_of(tmp_path, replaceable=choice) for choice in (True, False))
    assert lease.look_ms > 0
    assert alone.look_ms == 0
    assert lease.refusal() is None, "there is no cell yet"
    cell = LeaseCell(str(tmp_path), make=True)
    cell.write_patience(1)
    lease.check()
    cell.write(OVER)
    assert lease.refusal() is not None
    with pytest.raises(Refused) as caught:
        lease.check()
    assert caught.value.code == E_STANDBY
    assert alone.refusal() is None
    cell.close()
