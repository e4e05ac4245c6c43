"""Tests of the values that `serve` derives from its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsq.actors.settings.options import ServeOptions, push_listen


@pytest.mark.parametrize(
    ("gateway", "push", "found"),
    [
        ("127.0.0.1:4153", "", "127.0.0.1:4154"),
        ("0.0.0.0:4153", "", "0.0.0.0:4154"),
        ("10.0.0.1:9000", "", "10.0.0.1:0"),
        ("10.0.0.1:9000", "10.0.0.1:9001", "10.0.0.1:9001"),
        ("", "", ""),
    ],
)
def test_the_push_address_follows_from_the_gateways_address(
    gateway: str, push: str, found: str
) -> None:
    assert push_listen(ServeOptions(Path("/d"), gateway=gateway, gateway_push=push)) == found
