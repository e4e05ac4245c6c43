"""What `zsq serve` is told about who may come in. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """Paths, so that what they hold is read by the process that needs it and is in no message.

    `access_file`: who may do what (`access.py`), "" for everybody everything. `curve_key_file`: the ZeroMQ gateway's own key pair, made by
    `zsq keys server`; with it its clients must encrypt. `insecure`: listen beyond loopback without authentication.
    """

    access_file: str = ""
    curve_key_file: str = ""
    insecure: bool = False
