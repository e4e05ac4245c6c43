"""Tests of the calls about brokers of a cluster, at the in-memory broker and at one alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import zsq
from zsq.testing import Namespace
from zsq.transport.errors import E_UNSUPPORTED


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.drain_broker(0),
        lambda admin: admin.drain_broker(0, undo=True),
        lambda admin: admin.forget_broker(0),
        lambda admin: admin.set_auto_balance(True),
    ],
)
def test_a_broker_without_a_cluster_neither_drains_nor_balances(
    space: Namespace, call: Callable[[zsq.Admin], object]
) -> None:
    with space.admin() as admin, pytest.raises(zsq.UsageError) as caught:
        call(admin)
    assert caught.value.code == E_UNSUPPORTED
