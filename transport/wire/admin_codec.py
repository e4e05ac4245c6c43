"""Codec of administrative requests: converts them to `Manage` and back.

This is the only place that reads the options of `Manage`. What it lets through has the types that
the class of the request names. Whether a value is in its range is checked by the request or by its
handler.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

from ..errors import E_BAD_ARGUMENT, E_BAD_COMMAND, UsageError
from ..records import field_names
from .admin_requests import REQUESTS, ROW_OF, AdminRequest, RequestRow, Scope
from .protocol import Manage

SETTINGS: Final = "settings"  # the field that takes all options without a field
_BASE: Final = frozenset(field_names(AdminRequest))
_ON: Final = {
    Scope.BROKER: "about the broker, and not about a topic",
    Scope.TOPIC: "for a topic, and not for a channel",
    Scope.CHANNEL: "for a channel: name one",
}
# How an error names the types of options.
_TYPE_NAMES: Final[Mapping[Any, str]] = {
    bool: "true or false",
    bytes: "bytes",
    dict: "a map of texts",
    float: "a number",
    int: "a whole number",
    str: "a text",
    tuple: "a list",
}


class _Option(NamedTuple):
    """A field of a request. `default` is MISSING if the option is required."""

    hint: Any
    default: object


# They are made at their first use. For all requests together they would delay each start.
_OPTIONS: Final[dict[type, dict[str, _Option]]] = {}


def _options(kind: type[AdminRequest[Any]]) -> dict[str, _Option]:
    if kind in _OPTIONS:
        return _OPTIONS[kind]
    hints = get_type_hints(kind)
    options: dict[str, _Option] = {}
    for field in dataclasses.fields(kind):
        if field.name not in _BASE:
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            options[field.name] = _Option(hints[field.name], default)
    _OPTIONS[kind] = options
    return options


# Two actions have a request for topics and another one for channels.
_ROWS: Final = {(row.name, row.scope is Scope.CHANNEL): row for row in REQUESTS}
_NAMES: Final = frozenset(row.name for row in REQUESTS)
_VARIANTS: Final = {
    action: [name.partition(" ")[2] for name in sorted(_NAMES) if name.startswith(f"{action} ")]
    for action in {name.partition(" ")[0] for name in _NAMES if " " in name}
}


def options_of(request: AdminRequest[Any]) -> dict[str, Any]:
    """Return the options of a request in the form of `Manage`, without those that have their
    default values.
    """
    options: dict[str, Any] = {}
    for name, option in _options(type(request)).items():
        value = getattr(request, name)
        if name == SETTINGS:
            options |= value
        elif value != option.default:
            options[name] = value
    return options


def manage_of(request: AdminRequest[Any]) -> Manage:
    action, _, variant = ROW_OF[type(request)].name.partition(" ")
    options = {**({"do": variant} if variant else {}), **options_of(request)}
    return Manage(request.request, action, request.topic, request.channel, options, {**request.by})


def name_of(message: Manage) -> str:
    """Return the name of the action, with its `do` if it has one, as the table has it."""
    do = message.options.get("do") if message.action in _VARIANTS else None
    return f"{message.action} {do:.40}" if type(do) is str else message.action


def row_of(message: Manage) -> RequestRow | None:
    """Return the row of the request, or None if the table has none."""
    if " " in message.action:  # the second word of a name belongs in the option `do`
        return None
    name, with_channel = name_of(message), bool(message.channel)
    return _ROWS.get((name, with_channel)) or _ROWS.get((name, not with_channel))


def request_of(message: Manage) -> AdminRequest[Any]:
    """Return the request in a message.

    Raises `UsageError` if the action does not exist (E_BAD_COMMAND), or if its names or options are
    not those of the request (E_BAD_ARGUMENT).
    """
    row = row_of(message)
    if row is None:
        raise _unknown(message)
    name, scope = row.name, row.scope
    with_topic, with_channel = bool(message.topic), bool(message.channel)
    if (
        (scope is Scope.BROKER and (with_topic or with_channel))
        or (scope is Scope.TOPIC and with_channel)
        or (scope is Scope.CHANNEL and not with_channel)
    ):
        raise UsageError(E_BAD_ARGUMENT, f"{name} is {_ON[scope]}")
    options = _options(row.kind)
    values: dict[str, Any] = {SETTINGS: {}} if SETTINGS in options else {}
    for key, value in message.options.items():
        if key == "do" and message.action in _VARIANTS:
            continue
        if key in options and key != SETTINGS:
            if not _fits(value, options[key].hint):
                text = f"must be {_type_text(options[key].hint)}, not {reprlib.repr(value):.40}"
                raise UsageError(E_BAD_ARGUMENT, f"option `{key}` of {name} {text}")
            values[key] = value
        elif type(key) is str and SETTINGS in options:
            values[SETTINGS][key] = value
        else:
            known = f"its options are {', '.join(options)}" if options else "it has none"
            raise UsageError(E_BAD_ARGUMENT, f"{name} has no option {key!r:.40}; {known}")
    for key, option in options.items():
        if option.default is dataclasses.MISSING and key not in values:
            raise UsageError(E_BAD_ARGUMENT, f"{name} needs option `{key}`")
    return row.kind(message.topic, message.channel, message.request, message.by, **values)


def _unknown(message: Manage) -> UsageError:
    if message.action in _VARIANTS:
        known = ", ".join(_VARIANTS[message.action])
        do = message.options.get("do")
        text = f"option `do` of {message.action} must be one of {known}, not {reprlib.repr(do):.40}"
        return UsageError(E_BAD_ARGUMENT, text)
    text = f"unknown action {message.action!r:.40}; use the same version of ZSQ on both sides"
    return UsageError(E_BAD_COMMAND, text)


def _fits(value: object, hint: Any) -> bool:
    """Return True if a value that msgpack unpacked has the type of a field."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is float:
        return type(value) in (int, float)
    if origin is Literal:
        return type(value) is str and value in args
    if origin is Mapping:
        return type(value) is dict and all(type(key) is str for key in value)
    if origin is tuple:
        if not isinstance(value, tuple) or (args[-1] is not Ellipsis and len(value) != len(args)):
            return False
        return {*map(type, value)} <= {args[0]}  # cheap, because any client may send a long list
    if args:  # a union
        return any(_fits(value, member) for member in args)
    return type(value) is hint


def _type_text(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(args)
    if origin is Mapping:
        return _TYPE_NAMES[dict]
    if origin is tuple:
        size = "" if args[-1] is Ellipsis else f" of {len(args)} items"
        return f"a list{size}, each item {_type_text(args[0])}"
    if args:
        return _type_text(next(member for member in args if member is not NoneType))
    return _TYPE_NAMES[hint]
