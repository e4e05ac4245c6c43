"""The alias `zsq` in Kombu's table of transports, so that `zsq://host:4153` is a URL of Kombu.

Kombu has no entry point for transports, and takes no import path from a URL. It does import
everything that is registered in the group `kombu.serializers`, when its module `serialization` is
imported. `pyproject.toml` registers `SERIALIZER` there. Loading it runs this module, which adds the
alias. Celery imports `serialization`, and so do Kombu's `Producer`, `Consumer`, `Queue` and
`Exchange`. A program that has only imported `Connection` must import `zsq.apps.integrations.kombu`.

Kombu is only half imported at that time. So this module imports nothing of Kombu but the table, and
it is not in the package `kombu`, which imports the transport. If a later Kombu has no such table,
its import must not fail because ZSQ is installed.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

with contextlib.suppress(ImportError):
    from kombu.transport import TRANSPORT_ALIASES

    TRANSPORT_ALIASES.setdefault("zsq", "zsq.apps.integrations.kombu:Transport")


def encode(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# Kombu expects a serializer: encoder, decoder, content type and content encoding. It is plain JSON.
SERIALIZER: Final = (encode, json.loads, "application/x-zsq-json", "utf-8")
