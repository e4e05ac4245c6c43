"""Attempt: one try of a link to reach its target, and how far it has come. It sends nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ...system import why_no_more_files
from ...wire import sockets
from ...wire.address import Address
from ...wire.handshake import HANDSHAKE_EVENTS


class Contact(IntEnum):
    """Progress of an attempt. Each step includes those before it."""

    NONE = 0
    CONNECTED = 1  # what was sent may have arrived
    HANDSHAKEN = 2  # the peer has completed ZeroMQ's handshake
    ANSWERED = 3  # a message has arrived


@dataclass(slots=True)
class Attempt:
    """One try to find, open and greet the target.

    - `given`: The address, as the user gave it.
    - `address`: The given one, or the run directory that the gateway there named.
    - `number`: The number of its request. Only the answer to this one counts.
    - `sent_ns`: When something was sent last, or the attempt began.
    - `creates`: True if it may create the target.
    - `unheard`: True if the last connection was refused.
    """

    given: Address
    address: Address
    number: int
    began_ns: int
    sent_ns: int
    creates: bool
    unheard: bool = False
    contact: Contact = Contact.NONE
    arrived: bool = False  # True if it has led to the broker
    supervisor: str = ""  # the endpoint of the supervisor, over ipc

    def note_events(self, events: int) -> None:
        """Note what the monitor of the connection has reported."""
        connected = bool(events & sockets.CONNECTED_EVENTS)
        if events:
            # ZeroMQ also tries again after a failed handshake, but then something listens there.
            self.unheard = (
                bool(events & sockets.RETRY_EVENTS)
                and not connected
                and not events & HANDSHAKE_EVENTS
            )
        if connected:
            self.contact = max(self.contact, Contact.CONNECTED)
        if events & sockets.GREETED_EVENTS:
            self.contact = max(self.contact, Contact.HANDSHAKEN)

    def silence(self, place: str) -> str:
        """Return what has been found out while there was no answer. `place`: the address."""
        if self.unheard:
            return self.refused(place)
        if self.address.direct:
            return f"the broker at {place} does not answer"
        if self.contact is Contact.NONE:
            return (
                f"no connection to {place}: its machine, or a firewall before it, does not answer"
            )
        if self.contact is Contact.CONNECTED:
            return f"{place} accepts the connection and sends nothing: it is no broker, or it hangs"
        return f"{place} speaks ZeroMQ and does not answer: the broker is overloaded, or it hangs"

    def refused(self, place: str) -> str:
        """Return the reason of a connection that was refused.

        ZeroMQ reports a connection for which it had no descriptor in the same way.
        """
        refused = f"nothing {'listens' if self.address.local else 'answers'} at {place}"
        return why_no_more_files() or refused
