"""A model of a topic whose parts lie at many brokers, and of moves of a part between them.
`explore` visits every state that two brokers can reach with a few messages.

Each broker has its own log, with takeovers: see `shipping_model.py`. Here a log is a sequence to
which only the process with the newest epoch can add. Requests of an older process are refused,
however late they arrive. An older process may go on for any time, and its clients may go on to send
to it. A message is identified by its part and offset. Its producer is answered when its record is
known to be in the log, as with `--sync bucket`.

The directory of a topic is shared by all brokers and programs:

    directory/TOPIC-UUID/NUMBER    an entry. It is created if the number is free, and is never
                                   changed or removed.

Whoever creates an entry reads the entries from 0 on until one is missing, and takes that number. If
it is taken, the next one is tried. A request may take effect late, more than once, and after its
sender was replaced: the directory is not fenced. So no entry gives a right that the log of a broker
has not given before.

| entry | created by | content |
|---|---|---|
| `add` | a program | part, hold 0, its broker. The part's number is the number of parts so far |
| `want` | a program that moves the part | part, hold, the broker that shall have it next |
| `keep` | a program that withdraws a move | part, hold |
| `assign` | the broker that has released the part | part, hold + 1, the next broker, offset, tail |

| record in a log | content |
|---|---|
| `open` | part, hold, offset, tail. Reserves offsets, as each record and each takeover does |
| `message` | part, hold, offset |
| `finish` | part, hold, offset |
| `close` | part, hold. The part takes no new messages, at any broker and for ever |
| `release` | part, hold, offset, tail. The hold is over |

A *hold* is the time for which a broker has a part. Holds of a part are numbered from 0. Hold h + 1
is given by the first `assign` with this number. Later ones are void. The *tail* is the state of the
part: the next sequence of each producer, finished messages and the rest of the channels' rows,
whether the part is closed, and the names of the archived chunks.

A part moves from A to B like this:

1. A program creates `want` for the hold that A has. The last `want` or `keep` of a hold counts. A
   program that asked for something else sees the result in the directory, and may ask again.
2. A reads the directory. It gives out no more offsets of the part, and accepts no finish. Clients
   are refused, and try again later.
3. A waits until all records that it has sent are in its log. Outside the model, it also seals and
   archives the last chunk, so that the tail names all messages and nothing else of A is needed.
4. A adds `release` to its log. The offset is the next one that A would give out. It is behind all
   that A or its former processes may have given out.
5. When A knows that `release` is in its log, it creates `assign` for the broker that the directory
   wants at this moment. If the move was withdrawn, this is A itself.
6. B reads the directory, and adds `open` to its log. When it knows that `open` is there, it gives
   out offsets, and delivers messages that are not finished.

If A dies after step 4, its successor finds a `release` without an `assign`, and continues with step
5. If A dies before, its successor has the part and begins with step 2. If B dies, its successor
finds its `open`, or an `assign` without one. So a broker whose log nobody continues keeps its
parts. The log must be continued by a standby or after a restore. This may be at another machine.

Rules for a broker:

* It opens a hold once. It never forgets the number of its last hold of a part, or that it has
  released it. The tail may go when the `assign` exists. If it forgot the hold, a process that had
  read the directory before the `assign` would open the part again.
* It trusts its log first. The directory that it has read may be old. A hold is over only by the
  broker's own `release`, so no old directory can mislead it.
* It delivers only while it has a lease (`standby_model.py`). Here the process with the newest epoch
  has the lease. Otherwise an old process would deliver what a newer one has finished.

Rules for messages:

* A part accepts exactly the next sequence of a producer. A lower one was stored, and gets the same
  answer. So sequences are numbered for each part.
* A producer sends a message again only to the part that it was sent to first, whoever has that part
  now. There is one exception: the part is closed, and a broker has answered that it never got the
  message. A broker says so only when it knows that `close` is in its log.
* Numbers of parts are never used again, also if a part is closed and empty.

`find_stuck` searches for a state after which a move is never completed, although both brokers are
started again and the store answers.

The tests use small bounds. `Rules(messages=0, starts=2)` takes 13 seconds for 70,380 states, and
finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Final, NamedTuple, TypeVar

from tests.models.search import path, visit

Item = TypeVar("Item")

BROKERS: Final = "AB"
GAP: Final = 2  # offsets that a broker reserves beyond the end of a part; also its records at once

ADD, WANT, KEEP, ASSIGN = "add", "want", "keep", "assign"
TAKEOVER, OPEN, MESSAGE, FINISH = "takeover", "open", "message", "finish"
CLOSE, RELEASE, FORGET = "close", "release", "forget"


# Message 3 has sequence 1 of producer 1.
PRODUCERS: Final = 2
NONE_STORED: Final = (0, 0)


class Rules(NamedTuple):
    """The rules of the protocol, and the bounds of the search. Each rule can be left out.

    `entries` is the largest number of objects in the directory, `starts` counts processes that take
    over the log of a broker.
    """

    first_assignment: bool = True
    assigns_confirmed: bool = True
    successor_assigns: bool = True
    stops_first: bool = True
    ships_first: bool = True
    keeps_hold: bool = True
    opens_once: bool = True
    opens_first: bool = True
    reserves: bool = True
    sequences_go: bool = True
    finishes_go: bool = True
    closed_goes: bool = True
    says_closed_late: bool = True
    exact_sequence: bool = True
    same_part: bool = True
    new_numbers: bool = True
    delivers_with_lease: bool = True
    entries: int = 5
    moves: int = 1
    withdrawals: int = 0
    adds: int = 0
    messages: int = 1
    finishes: int = 0
    closes: int = 0
    starts: int = 1


class Tail(NamedTuple):
    """The state of a part at its end: the next offset, the next sequence of each producer, and
    what is finished.
    """

    offset: int = 0
    sequences: tuple[int, ...] = NONE_STORED
    finished: frozenset[int] = frozenset()
    closed: bool = False


class Entry(NamedTuple):
    """An object of the directory."""

    kind: str
    part: int
    hold: int
    broker: str = ""
    tail: Tail = Tail()


class Record(NamedTuple):
    """A record in the log of a broker."""

    kind: str
    epoch: int
    part: int = 0
    hold: int = 0
    offset: int = 0
    message: int = 0
    tail: Tail = Tail()


class Part(NamedTuple):
    """A part as the log of a broker has it. `epoch` is the one that opened it."""

    hold: int
    epoch: int
    tail: Tail
    is_released: bool = False


class Process(NamedTuple):
    """A process of a broker.

    * `known`: it knows this many records of its log. `out`: records that it has sent behind them.
    * `seen`: it has read this many objects of the directory.
    * `moving`: it gives out no more offsets of part 0.
    """

    epoch: int
    known: int
    out: tuple[Record, ...] = ()
    seen: int = 1
    moving: bool = False


class State(NamedTuple):
    """Everything: the directory, logs, processes, clients, and what was used of the bounds."""

    directory: tuple[Entry, ...]
    logs: tuple[tuple[Record, ...], ...]
    processes: tuple[tuple[Process, ...], ...]
    asked: frozenset[Entry] = frozenset()  # may be created at any time, and again
    given: frozenset[tuple[int, int, int]] = frozenset()
    acknowledged: frozenset[int] = frozenset()
    finished: frozenset[tuple[int, int]] = frozenset()
    refused: frozenset[int] = frozenset()  # producers know that part 0 will never have these
    broken: str = ""
    moves: int = 0
    withdrawals: int = 0
    adds: int = 0
    finishes: int = 0
    closes: int = 0
    starts: int = 0


def first_state() -> State:
    """Return the state in which A has opened part 0."""
    begin = Record(TAKEOVER, 1)
    return State(
        (Entry(ADD, 0, 0, "A"),),
        ((begin, Record(OPEN, 1)), (begin,)),
        ((Process(1, 2),), (Process(1, 1),)),
    )


@cache
def assignments(directory: tuple[Entry, ...], part: int, rules: Rules) -> tuple[Entry, ...]:
    """Return the entries that say who has the part, one for each hold. The last one counts now."""
    found: list[Entry] = []
    for entry in directory:
        if entry.part != part or entry.kind not in (ADD, ASSIGN):
            continue
        if entry.hold == len(found) or not rules.first_assignment:
            found.append(entry)
    return tuple(found)


def wanted(directory: tuple[Entry, ...], part: int, hold: int) -> str:
    """Return the broker that shall have the part after this hold, or ""."""
    broker = ""
    for entry in directory:
        if entry.part == part and entry.hold == hold and entry.kind in (WANT, KEEP):
            broker = entry.broker
    return broker


@cache
def replay(log: tuple[Record, ...], rules: Rules) -> tuple[Part | None, Part | None]:
    """Return the parts that a broker knows from its log."""
    parts: list[Part | None] = [None, None]
    for record in log:
        if record.kind == TAKEOVER:
            for number, part in enumerate(parts):
                if part is not None and rules.reserves:
                    tail = part.tail._replace(offset=part.tail.offset + GAP)
                    parts[number] = part._replace(tail=tail)
        elif record.kind == OPEN:
            parts[record.part] = Part(record.hold, record.epoch, record.tail)
        elif record.kind == FORGET:
            parts[record.part] = None
        else:
            part = parts[record.part]
            assert part is not None
            parts[record.part] = _changed(part, record)
    return parts[0], parts[1]


def _changed(part: Part, record: Record) -> Part:
    tail = part.tail
    if record.kind == MESSAGE:
        sequence, producer = divmod(record.message, PRODUCERS)
        sequences = _put(tail.sequences, producer, sequence + 1)
        tail = tail._replace(offset=record.offset + 1, sequences=sequences)
    elif record.kind == FINISH:
        tail = tail._replace(finished=tail.finished | {record.offset})
    elif record.kind == CLOSE:
        tail = tail._replace(closed=True)
    return part._replace(tail=tail, is_released=record.kind == RELEASE or part.is_released)


def view(state: State, which: int, process: Process, rules: Rules) -> tuple[Part | None, ...]:
    """Return the parts as this process sees them, with what it has sent."""
    return replay(state.logs[which][: process.known] + process.out, rules)


def is_current(state: State, which: int, process: Process) -> bool:
    """Return True if no later process has taken over the log of this broker."""
    return process is state.processes[which][-1]


def serves(state: State, which: int, process: Process, number: int, rules: Rules) -> Part | None:
    """Return the part if this process gives out offsets of it, and None if not."""
    sure = replay(state.logs[which][: process.known], rules)[number]
    part = view(state, which, process, rules)[number]
    if not rules.stops_first and sure is not None and not sure.is_released:
        return part  # it goes on until it knows that the release exists
    if part is None or part.is_released or (number == 0 and process.moving):
        return None
    is_open = sure is not None and sure.hold == part.hold and sure.epoch == part.epoch
    return part if is_open or not rules.opens_first else None


def history(state: State, part: int, rules: Rules) -> list[Record]:
    """Return the messages of a part, in the order of its holds."""
    found: list[Record] = []
    holds = assignments(state.directory, part, rules)
    for place, entry in enumerate(holds):
        end = holds[place + 1].tail.offset if place + 1 < len(holds) else None
        found += [
            record
            for record in state.logs[BROKERS.index(entry.broker)]
            if record.kind == MESSAGE
            and (record.part, record.hold) == (part, entry.hold)
            and (end is None or record.offset < end)
        ]
    return found


def broken_rule(state: State, rules: Rules) -> str:
    """Return the invariant that does not hold, or ""."""
    if state.broken:
        return state.broken
    if len({(part, offset) for part, offset, _ in state.given}) < len(state.given):
        return "two messages have the same offset"
    current = [(which, state.processes[which][-1]) for which in (0, 1)]
    for part in (0, 1):
        if all(serves(state, which, one, part, rules) for which, one in current):
            return "two brokers have the same part"
    found = [[one.message for one in history(state, part, rules)] for part in (0, 1)]
    stored = found[0] + found[1]
    if not state.acknowledged <= set(stored):
        return "an acknowledged message is lost"
    if len(set(stored)) < len(stored):
        return "a message is stored twice"
    for producer in range(PRODUCERS):
        own = [message for message in found[0] if message % PRODUCERS == producer]
        if own != sorted(own):
            return "messages are out of order"
    for which in (0, 1):
        for process in state.processes[which]:
            if rules.delivers_with_lease and not is_current(state, which, process):
                continue
            part0 = view(state, which, process, rules)[0]
            if part0 is None or part0.is_released:
                continue
            for _, offset in state.finished:
                if offset < part0.tail.offset and offset not in part0.tail.finished:
                    return "a finished message is delivered again"
    return ""


def steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Yield each step that is possible, with the state after it."""
    yield from _movers(state, rules)
    for entry in sorted(state.asked):
        if len(state.directory) < rules.entries and state.directory[-1] != entry:
            after = state._replace(directory=(*state.directory, entry))
            yield f"entry {len(state.directory)} is created: {_named(entry)}", after
    for which in (0, 1):
        if state.starts < rules.starts:
            yield _starts(state, which)
        if (after_landing := _lands(state, which)) is not None:
            yield after_landing
        for place in range(len(state.processes[which])):
            yield from _of_process(state, rules, which, place)


def _named(entry: Entry) -> str:
    where = f" at {entry.broker} from {entry.tail.offset}" if entry.kind in (ADD, ASSIGN) else ""
    to = f" to {entry.broker}" if entry.kind == WANT else ""
    return f"{entry.kind} part {entry.part}, hold {entry.hold}{where}{to}"


def _movers(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Programs of operators create objects in the directory."""
    if len(state.directory) >= rules.entries:
        return
    last = assignments(state.directory, 0, rules)[-1]
    made: list[tuple[Entry, State]] = []
    if state.moves < rules.moves:
        to = "B" if last.broker == "A" else "A"
        made.append((Entry(WANT, 0, last.hold, to), state._replace(moves=state.moves + 1)))
    if state.withdrawals < rules.withdrawals and wanted(state.directory, 0, last.hold):
        after = state._replace(withdrawals=state.withdrawals + 1)
        made.append((Entry(KEEP, 0, last.hold), after))
    if state.adds < rules.adds:
        after = state._replace(adds=state.adds + 1)
        made.append((Entry(ADD, 1, 0, "B"), after))
        is_closed = any(record.kind == CLOSE for record in state.logs[0])
        if is_closed and not rules.new_numbers:
            made.append((Entry(ASSIGN, 0, last.hold + 1, "B"), after))
    for entry, after in made:
        text = f"entry {len(state.directory)} is created: {_named(entry)}"
        yield text, after._replace(directory=(*state.directory, entry))


def _starts(state: State, which: int) -> tuple[str, State]:
    log = state.logs[which]
    epoch = log[-1].epoch + 1
    log = (*log, Record(TAKEOVER, epoch))
    process = Process(epoch, len(log))
    after = _with_log(state, which, log)
    processes = (*state.processes[which], process)
    after = after._replace(processes=_put(state.processes, which, processes))
    return f"{BROKERS[which]}{epoch} takes over", after._replace(starts=state.starts + 1)


def _put(items: tuple[Item, ...], place: int, item: Item) -> tuple[Item, ...]:
    return (*items[:place], item, *items[place + 1 :])


def _with_log(state: State, which: int, log: tuple[Record, ...]) -> State:
    return state._replace(logs=_put(state.logs, which, log))


def _with(state: State, which: int, place: int, process: Process) -> State:
    processes = _put(state.processes[which], place, process)
    return state._replace(processes=_put(state.processes, which, processes))


def _lands(state: State, which: int) -> tuple[str, State] | None:
    """Carry out the next request of the current process. Those of earlier ones are refused."""
    process = state.processes[which][-1]
    log = state.logs[which]
    landed = len(log) - process.known
    if landed >= len(process.out):
        return None
    record = process.out[landed]
    after = _with_log(state, which, (*log, record))
    if record.kind == MESSAGE:
        closes = [
            one for log in state.logs for one in log if (one.kind, one.part) == (CLOSE, record.part)
        ]
        if closes:
            after = after._replace(broken="a closed part has a new message")
    return f"the log of {BROKERS[which]} has {record.kind} {record.offset}", after


def _of_process(state: State, rules: Rules, which: int, place: int) -> Iterator[tuple[str, State]]:
    process = state.processes[which][place]
    name = f"{BROKERS[which]}{process.epoch}"
    if process.seen < len(state.directory):
        read = process._replace(seen=len(state.directory))
        yield f"{name} reads the directory", _with(state, which, place, read)
    log = state.logs[which]
    if process.out and process.known < len(log) and log[process.known] == process.out[0]:
        yield _answered(state, which, place)
    for text, after in _assigns(state, rules, which, place):
        yield f"{name} {text}", after
    if len(process.out) == GAP:
        return
    for text, after in _clients(state, rules, which, place):
        yield f"{name} {text}", after
    for text, record, moving in _moves(state, rules, which, process):
        out = process.out if record is None else (*process.out, record)
        after = _with(state, which, place, process._replace(out=out, moving=moving))
        yield f"{name} {text}", after


def _answered(state: State, which: int, place: int) -> tuple[str, State]:
    process = state.processes[which][place]
    record = process.out[0]
    process = process._replace(known=process.known + 1, out=process.out[1:])
    after = _with(state, which, place, process)
    if record.kind == MESSAGE:
        after = after._replace(acknowledged=state.acknowledged | {record.message})
    if record.kind == FINISH:
        after = after._replace(finished=state.finished | {(record.part, record.offset)})
    return f"{BROKERS[which]}{process.epoch} knows that its {record.kind} exists", after


def _clients(state: State, rules: Rules, which: int, place: int) -> Iterator[tuple[str, State]]:
    """Messages arrive, also again and also at a process that was stopped. Consumers finish them."""
    process = state.processes[which][place]
    sure = replay(state.logs[which][: process.known], rules)
    for number in (0, 1):
        part = serves(state, which, process, number, rules)
        if part is None:
            continue
        tail = part.tail
        for message in range(rules.messages):
            if number == 1 and rules.same_part and message not in state.refused:
                continue
            known = sure[number]
            sequence, producer = divmod(message, PRODUCERS)
            expected = tail.sequences[producer]
            if sequence < expected:
                if known is not None and sequence < known.tail.sequences[producer]:
                    after = state._replace(acknowledged=state.acknowledged | {message})
                    yield f"acknowledges message {message} as stored before", after
            elif not tail.closed and (sequence == expected or not rules.exact_sequence):
                record = Record(MESSAGE, process.epoch, number, part.hold, tail.offset, message)
                after = _sends(state, which, place, record)
                given = state.given | {(number, tail.offset, message)}
                text = f"gives offset {tail.offset} of part {number} to message {message}"
                yield text, after._replace(given=given)
    closed = sure[0] if rules.says_closed_late else view(state, which, process, rules)[0]
    if closed is not None and closed.tail.closed and rules.adds:
        for message in set(range(rules.messages)) - state.refused:
            sequence, producer = divmod(message, PRODUCERS)
            if sequence >= closed.tail.sequences[producer]:
                refused = state.refused | {message}
                yield f"refuses message {message}: closed", state._replace(refused=refused)
    part = serves(state, which, process, 0, rules)
    if part is None:
        return
    if state.finishes < rules.finishes:
        for stored in history(state, 0, rules):
            offset = stored.offset
            if offset < part.tail.offset and offset not in part.tail.finished:
                record = Record(FINISH, process.epoch, 0, part.hold, offset)
                after = _sends(state, which, place, record)
                yield f"sends finish {offset}", after._replace(finishes=state.finishes + 1)
    if state.closes < rules.closes and not part.tail.closed:
        after = _sends(state, which, place, Record(CLOSE, process.epoch, 0, part.hold))
        yield "sends close", after._replace(closes=state.closes + 1)


def _sends(state: State, which: int, place: int, record: Record) -> State:
    process = state.processes[which][place]
    return _with(state, which, place, process._replace(out=(*process.out, record)))


def _moves(
    state: State, rules: Rules, which: int, process: Process
) -> Iterator[tuple[str, Record | None, bool]]:
    """Yield each record that opens or releases a part, and if part 0 is moving then."""
    directory = state.directory[: process.seen]
    broker = BROKERS[which]
    parts = view(state, which, process, rules)
    for number in (0, 1):
        holds = assignments(directory, number, rules)
        part = parts[number]
        if holds and holds[-1].broker == broker:
            hold, tail = holds[-1].hold, holds[-1].tail
            is_new = part is None or part.hold < hold
            if not rules.opens_once and part is not None and part.hold == hold:
                is_new = part.epoch != process.epoch
            if is_new:
                record = Record(OPEN, process.epoch, number, hold, tail.offset, tail=tail)
                yield f"sends open of part {number}, hold {hold}", record, False
    part = parts[0]
    if part is None:
        return
    if part.is_released:
        holds = assignments(directory, 0, rules)
        sure = replay(state.logs[which][: process.known], rules)[0]
        if not rules.keeps_hold and sure == part and holds[-1].hold > part.hold:
            yield "sends forget", Record(FORGET, process.epoch), process.moving
        return
    to = wanted(directory, 0, part.hold)
    if process.moving != (to not in ("", broker)):
        text = "begins to move part 0" if to else "does not move part 0"
        yield text, None, not process.moving
    if process.moving and (not process.out or not rules.ships_first):
        tail = part.tail
        if process.out:
            sure = replay(state.logs[which][: process.known], rules)[0]
            if sure is None:
                return
            tail = sure.tail
        record = Record(RELEASE, process.epoch, 0, part.hold, tail.offset, tail=tail)
        yield f"sends release of hold {part.hold} at {tail.offset}", record, True


def _assigns(state: State, rules: Rules, which: int, place: int) -> Iterator[tuple[str, State]]:
    """A broker that has released a part says in the directory who has it next."""
    process = state.processes[which][place]
    log = state.logs[which][: process.known]
    if not rules.assigns_confirmed:
        log += process.out
    releases = [record for record in log if record.kind == RELEASE]
    part = replay(log, rules)[0]
    if part is None or not part.is_released:
        return
    if releases[-1].epoch != process.epoch and not rules.successor_assigns:
        return
    directory = state.directory[: process.seen]
    holds = assignments(directory, 0, rules)
    if holds[-1].hold > part.hold:
        return
    tail = releases[-1].tail
    tail = Tail(
        tail.offset,
        tail.sequences if rules.sequences_go else NONE_STORED,
        tail.finished if rules.finishes_go else frozenset(),
        tail.closed and rules.closed_goes,
    )
    to = wanted(directory, 0, part.hold) or BROKERS[which]
    entry = Entry(ASSIGN, 0, part.hold + 1, to, tail)
    if entry not in state.asked:
        yield f"wants to create: {_named(entry)}", state._replace(asked=state.asked | {entry})


def _visit(rules: Rules) -> dict[State, tuple[State, str] | None]:
    return visit(first_state(), partial(steps, rules=rules), partial(broken_rule, rules=rules))


def explore(rules: Rules) -> int:
    """Visit all states. Return their number. Raises `Broken`."""
    return len(_visit(rules))


def find_stuck(rules: Rules) -> list[str]:
    """Search for a state from which new processes of both brokers do not give the part a holder
    that the movers want. Return the steps to it.
    """
    before = _visit(rules)
    for state in before:
        begun = _starts(_starts(state, 0)[1], 1)[1]
        while (after := _eager_step(begun, rules)) is not None:
            begun = after
        last = assignments(begun.directory, 0, rules)[-1]
        process = begun.processes[BROKERS.index(last.broker)][-1]
        part = serves(begun, BROKERS.index(last.broker), process, 0, rules)
        if part is None or wanted(begun.directory, 0, part.hold) not in ("", last.broker):
            return path(before, state)
    return []


def _eager_step(state: State, rules: Rules) -> State | None:
    for which in (0, 1):
        place = len(state.processes[which]) - 1
        process = state.processes[which][place]
        if process.seen < len(state.directory):
            return _with(state, which, place, process._replace(seen=len(state.directory)))
        if (landed := _lands(state, which)) is not None:
            return landed[1]
        if process.out:
            return _answered(state, which, place)[1]
        for _, after in _assigns(state._replace(asked=frozenset()), rules, which, place):
            return after._replace(directory=(*state.directory, *after.asked))
        for _, record, moving in _moves(state, rules, which, process):
            out = process.out if record is None else (*process.out, record)
            return _with(state, which, place, process._replace(out=out, moving=moving))
    return None
