"""Records: frozen dataclasses with slots that cost little until they are used.

The wire has two hundred classes of messages and requests, and a process uses a few of them.
`dataclass` compiles six functions for each class, so all of them would delay each start. `record`
makes the slots at once. `__init__` and the fields follow when they are used for the first time. All
records share the methods for comparison, hash and repr.

`__init__` is made here, and not by `dataclass`, which would run its text with `exec`. Some records
are used first while a program ends after Ctrl-C, and CPython forgets Ctrl-C when a text is run: the
exit code would be 1 (`run_eval_code_obj` in pythonrun.c). Compiled code does not have this effect.

The functions of the module `dataclasses` accept records. A field cannot be assigned, as in a frozen
dataclass, but only type checkers refuse it. So an object is made in a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import get_annotations
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform, overload

RecordT = TypeVar("RecordT", bound="Record")

_AT_FIRST_USE: Final = ("__init__", "__dataclass_fields__", "__dataclass_params__")


class Record:
    """The base of all records. `__match_args__` has the names of all fields."""

    __slots__ = ()

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record) or type(self) is not type(other):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), *self._values()))

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr
        ]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _values(self) -> list[object]:
        return [getattr(self, name) for name in self.__match_args__]


@overload
def record(kind: type[RecordT], /) -> type[RecordT]: ...
@overload
def record(*, kw_only: bool) -> Callable[[type[RecordT]], type[RecordT]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(
    kind: type[RecordT] | None = None, /, *, kw_only: bool = False
) -> type[RecordT] | Callable[[type[RecordT]], type[RecordT]]:
    """Make a subclass of `Record` what `dataclass(frozen=True, slots=True)` would make of it.

    Its module must import `annotations` from `__future__`.
    """
    if kind is None:
        return lambda kind: _record(kind, kw_only)
    return _record(kind, kw_only)


def field_names(kind: type[Record]) -> tuple[str, ...]:
    """Return the names of all fields, without making the fields."""
    return kind.__match_args__


def _record(kind: type[RecordT], kw_only: bool) -> type[RecordT]:
    inherited = kind.__match_args__
    texts = get_annotations(kind).items()
    names = [name for name, text in texts if not text.startswith("ClassVar")]
    new = tuple(name for name in names if name not in inherited)
    written = {
        name: value
        for name, value in kind.__dict__.items()
        if name not in ("__dict__", "__weakref__")
    }
    members = {name: value for name, value in written.items() if name not in names}
    members |= {"__slots__": new, "__match_args__": (*inherited, *new)}
    # A record without fields needs no `__init__`.
    later = _AT_FIRST_USE if members["__match_args__"] else _AT_FIRST_USE[1:]
    members |= {name: _AtFirstUse(name, written, kw_only) for name in later}
    metaclass: Any = type(kind)
    made: type[RecordT] = metaclass(kind.__name__, kind.__bases__, members)
    made.__qualname__ = kind.__qualname__
    return made


class _AtFirstUse:
    """An attribute of a record class that `dataclass` makes when it is used for the first time."""

    __slots__ = ("_kw_only", "_name", "_owner", "_written")

    def __init__(self, name: str, written: dict[str, Any], kw_only: bool) -> None:
        self._name = name
        self._written = written
        self._kw_only = kw_only

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: object, kind: type) -> Any:
        owner = self._owner
        # A new class each time, because two threads may be here, and `dataclass` changes its class.
        copy = type(owner)(owner.__name__, owner.__bases__, dict(self._written))
        made: Any = dataclass(init=False, eq=False, repr=False, kw_only=self._kw_only)(copy)
        made.__init__ = _init(made)
        for name in _AT_FIRST_USE:
            setattr(owner, name, made.__dict__[name])
        return getattr(owner if instance is None else instance, self._name)


def _init(kind: Any) -> Any:
    """Return the function that `dataclass` would make as `__init__`."""
    names: dict[str, Any] = {"MISSING": MISSING}
    parameters: dict[bool, list[str]] = {False: [], True: []}  # by `kw_only`
    body = []
    for each in fields(kind):
        parameter = value = each.name
        if each.default is not MISSING:
            names[f"usual_{each.name}"] = each.default
            parameter += f"=usual_{each.name}"
        elif each.default_factory is not MISSING:
            names[f"new_{each.name}"] = each.default_factory
            parameter += "=MISSING"
            value = f"new_{each.name}() if {each.name} is MISSING else {each.name}"
        parameters[each.kw_only is True].append(parameter)
        body.append(f"    self.{each.name} = {value}\n")
    if hasattr(kind, "__post_init__"):
        body.append("    self.__post_init__()\n")
    keywords = ["*", *parameters[True]] if parameters[True] else []
    head = f"def __init__({', '.join(['self', *parameters[False], *keywords])}):\n"
    exec(compile(head + "".join(body or ["    pass\n"]), "<record>", "exec"), names)
    return names["__init__"]
