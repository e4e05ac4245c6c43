"""Tests of the addresses at which gateways listen: HOST:PORT of IPv4 and IPv6, and names."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from zsq.actors.runtime.listening import join_place, numeric_hosts, open_sockets, split_place
from zsq.actors.runtime.process import advertised
from zsq.transport.errors import UsageError


def test_places_are_split_and_bad_ones_are_refused() -> None:
    assert split_place("127.0.0.1:4151") == ("127.0.0.1", 4151)
    assert split_place("[::1]:4151") == ("::1", 4151)
    assert split_place(":0") == ("", 0)
    for wrong in ("4151", "a:b", "::1:4151", "a:65536", "a:-1", ""):
        with pytest.raises(UsageError, match="is not an address to listen at; write HOST:PORT"):
            split_place(wrong)


@pytest.mark.parametrize("place", ["127.0.0.1:4151", "[::1]:4151", "box.example:1"])
def test_a_place_is_joined_as_it_was_split(place: str) -> None:
    assert join_place(*split_place(place)) == place


def names(*addresses: str) -> Any:
    def get_addresses(host: str, port: None, **_: object) -> list[tuple[Any, ...]]:
        return [(0, 0, 0, "", (address, 0)) for address in addresses]

    return get_addresses


def test_a_name_may_have_only_addresses_of_ipv6() -> None:
    assert numeric_hosts("six.example", names("fd00::7")) == ("fd00::7",)
    assert numeric_hosts("both.example", names("::1", "127.0.0.1", "::1")) == ("::1", "127.0.0.1")
    assert numeric_hosts("::1", names("not asked")) == ("::1",)


@pytest.mark.parametrize("place", ["*:0", "[::]:0"])
def test_all_interfaces_are_those_of_ipv4_too(place: str) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    [listener] = open_sockets(place, 1)
    with listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), 10).close()


def test_the_advertised_address_keeps_its_brackets() -> None:
    assert advertised("[fd00::7]:4153") == ("tcp://[fd00::7]:4153",)
    assert advertised("[::]:4153") == (f"tcp://{socket.gethostname()}:4153",)
    assert advertised("127.0.0.1:0") == advertised("") == ()
