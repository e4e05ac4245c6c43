"""The query of a request, parsed as strictly as nsqd does. Pure.

A query is refused where Go's parser refuses it: `%` without two hexadecimal digits, and `;`. Of a parameter given twice the first counts.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl

from ...transport.errors import UsageError
from ...transport.names import check_name
from .errors import api_error

FIELDS_MAX: Final = 64
_BROKEN: Final = re.compile(rb"%(?![0-9a-fA-F]{2})|;")
BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}
_INT: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def legal(name: str, what: str = "topic") -> bool:
    try:
        check_name(name, what)
    except UsageError:
        return False
    return True


class Parameters:
    """By name, the first of each."""

    def __init__(self, query: bytes) -> None:
        if _BROKEN.search(query):
            raise api_error("INVALID_REQUEST")
        try:
            pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="replace", max_num_fields=FIELDS_MAX)
        except ValueError:
            raise api_error("INVALID_REQUEST") from None
        self._values: dict[str, str] = {}
        self._names = [name for name, _ in pairs]
        for name, value in pairs:
            self._values.setdefault(name, value)

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def count(self, name: str) -> int:
        return self._names.count(name)

    def topic(self, invalid: str = "INVALID_TOPIC") -> str:
        """`invalid`: the code for a name that is not legal."""
        return self._name("topic", "MISSING_ARG_TOPIC", invalid)

    def existing_topic(self) -> str:
        """Of commands for which nsqd does not look at the name: one that cannot be there is not found."""
        return self._name("topic", "MISSING_ARG_TOPIC", "TOPIC_NOT_FOUND")

    def topic_and_channel(self) -> tuple[str, str]:
        return self.topic("INVALID_ARG_TOPIC"), self._name("channel", "MISSING_ARG_CHANNEL", "INVALID_ARG_CHANNEL")

    def _name(self, parameter: str, missing: str, invalid: str) -> str:
        value = self._values.get(parameter)
        if value is None:
            raise api_error(missing)
        if not legal(value, parameter):
            raise api_error(invalid)
        return value

    def defer_ms(self, defer_ms_max: int) -> int:
        value = self._values.get("defer")
        if value is None:
            return 0
        if not _INT.fullmatch(value) or not 0 <= int(value) <= defer_ms_max:
            raise api_error("INVALID_DEFER")
        return int(value)

    def binary(self) -> bool:
        """Anything but false and 0 means it, as with nsqd, which calls the others deprecated."""
        value = self._values.get("binary")
        return value is not None and BOOLS.get(value, True)

    def flag(self, name: str, otherwise: bool) -> bool:
        return BOOLS.get(self._values.get(name) or "", otherwise)
