"""Compare what the code sends with the `TypedDict` that describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)


def required(shape: Any) -> set[str]:
    """Return the names that every dict of this shape has. `__required_keys__` alone does not
    recognize `NotRequired` in a postponed annotation.
    """
    extras = get_type_hints(shape, include_extras=True)
    return {name for name in shape.__required_keys__ if get_origin(extras[name]) is not NotRequired}


def misfits(value: object, shape: Any, place: str = "answer") -> list[str]:
    """Return every place at which a value does not match the shape. A name that the `TypedDict`
    does not have is also reported.
    """
    origin, args = get_origin(shape), get_args(shape)
    if origin in (Union, UnionType):
        return min((misfits(value, one, place) for one in args), key=len)
    if is_typeddict(shape) and isinstance(value, Mapping):
        hints = get_type_hints(shape)
        wrong = [
            f"{place} has {name}, {shape.__name__} has not" for name in value.keys() - hints.keys()
        ]
        wrong += [
            f"{place} lacks {name} of {shape.__name__}" for name in required(shape) - value.keys()
        ]
        return wrong + [
            one
            for name in value.keys() & hints.keys()
            for one in misfits(value[name], hints[name], f"{place}.{name}")
        ]
    if origin in (Mapping, dict) and isinstance(value, Mapping):
        return [
            one for name, part in value.items() for one in misfits(part, args[1], f"{place}.{name}")
        ]
    if origin in (Sequence, list) and isinstance(value, tuple | list):
        return [
            one
            for number, part in enumerate(value)
            for one in misfits(part, args[0], f"{place}[{number}]")
        ]
    if origin is tuple and isinstance(value, tuple | list) and len(value) == len(args):
        parts = enumerate(zip(value, args, strict=True))
        return [
            one
            for number, (part, kind) in parts
            for one in misfits(part, kind, f"{place}[{number}]")
        ]
    if shape in (Any, object) or (origin is Literal and value in args):
        return []
    kinds = (int, float) if shape is float else (shape,)
    plain = (
        origin is None
        and not is_typeddict(shape)
        and isinstance(value, kinds)
        and (shape is bool or not isinstance(value, bool))
    )
    return [] if plain else [f"{place} is {value!r}, not {shape}"]
