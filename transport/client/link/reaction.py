"""Reaction: what a session wants its link to do after a message."""

from __future__ import annotations

from enum import Enum


class Reaction(Enum):
    """The link's next step after a message."""

    NOTHING = "nothing"
    UP = "up"  # the greeting is answered
    RENEW = "renew"  # close this link and open a new one at once
    RESTART = "restart"  # close this link and open a new one after a pause
    LATER = "later"  # as RESTART, but after a longer pause, because there was no room
