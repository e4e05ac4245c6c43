"""Places: the numeric addresses of one gateway, in the order in which a link tries them.

A name may have several addresses: of IPv4 and IPv6, or of several machines. Only some of them may
lead to the broker. A link tries all of them, one in each attempt, before the gateway counts as
failed. It resolves the name again when it has tried them all, and after each link that was up.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...resolver import Resolution, Resolver, is_numeric
from ...wire.address import Address, space_of, tcp_endpoint


class NotAccepted(OSError):
    """A broker has named an address to which this client does not go."""

    def __init__(self, gateway: Address, hosts: Sequence[str]) -> None:
        super().__init__(
            f"a broker has named this address, which leads to {', '.join(hosts)}: it reaches less "
            f"far than the broker's own address ({gateway.least.name.lower()}). If it is right, "
            "give it to the client, too"
        )


class Places:
    """The places of the gateway that one link goes to.

    - `host`: The place of the present attempt, or "" before the first one.
    - `several`: True if the name has several addresses. The link then leaves one that is silent.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._gateway: Address | None = None
        self._resolution: Resolution | None = None
        self._untried: list[str] = []
        self._good = ""  # the place over which the broker was reached last
        self.host = ""
        self.several = False

    def begin(self, gateway: Address) -> None:
        """Begin an attempt at this gateway: at its next place, or after a new resolution."""
        if gateway != self._gateway:
            self._gateway, self._untried, self._good = gateway, [], ""
        self._resolution = None
        if self._untried:
            return
        host, _ = gateway.place()
        self.several = False
        if is_numeric(host):
            self._untried = [host]
        else:
            self._resolution = self._resolver.ask(host)

    def take(self) -> str | None:
        """Return the next endpoint, or None while the name is being resolved.

        Raises `NotResolved`, or `NotAccepted`.
        """
        assert self._gateway is not None
        if self._resolution is not None:
            if not self._resolution.done:
                return None
            hosts = self._resolution.addresses()
            self._resolution = None
            self._untried = sorted(hosts, key=lambda host: host != self._good)
        gateway = self._gateway
        accepted = [host for host in self._untried if space_of(host) >= gateway.least]
        if not accepted:
            raise NotAccepted(gateway, self._untried)
        self.several = self.several or len(accepted) > 1
        self.host, *self._untried = accepted
        return tcp_endpoint(self.host, self._gateway.place()[1])

    @property
    def more(self) -> bool:
        """True if the name has another address, which was not tried yet."""
        return bool(self._untried)

    def reached(self) -> None:
        """Note that the present place leads to the broker. The next attempt begins anew with it."""
        self._good = self.host
        self._untried.clear()
