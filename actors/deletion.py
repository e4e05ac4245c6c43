"""Deleting topics and channels: refused while something is unfinished, unless forced; offsets are not used again.

`#ephemeral` channels are deleted when they say that their last consumer has left, or when their process died; an `#ephemeral` topic with
its last channel. Who asks for one meanwhile gets a new one.

A topic is sealed first: from then on it takes no message, so what the actors report is the end of it, and nothing that was
acknowledged after the look at the backlog goes with it. A channel's process ends before its rows go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..transport import protocol as p
from ..transport.errors import E_CLOSING, E_NOT_EMPTY, E_TIMEOUT, Refused, ZsqError
from ..transport.names import is_ephemeral
from .gathering import Details
from .group_states import GroupState
from .port import Envelope
from .process_table import Child
from .statistics import behind_pause, unfinished
from .topic_group import TopicGroup

if TYPE_CHECKING:
    from .management import Management

log = logging.getLogger("zsq")

Answer = Callable[[dict[str, Any] | None, ZsqError | None], None]

# Added to the last known end of a topic whose storage cannot say where it is: a gap is harmless, an offset used twice is not.
UNKNOWN_END_MARGIN: Final = 1 << 32


def delete(management: Management, envelope: Envelope, word: p.Manage, group: TopicGroup) -> None:
    """Carry out Manage delete; the answer goes to `envelope` when it is done or refused."""
    if group.state in (GroupState.STOPPING, GroupState.ENDED):
        management.fail(envelope, word.request, Refused(E_CLOSING, f"topic {group.name!r} is being deleted already"))
    elif word.channel:
        _Deletion(management, envelope, word, group).delete_channel()
    else:
        _Deletion(management, envelope, word, group).delete_topic()


class _Deletion:
    """One deletion on its way."""

    def __init__(self, management: Management, envelope: Envelope, word: p.Manage, group: TopicGroup) -> None:
        self.management = management
        self.envelope = envelope
        self.word = word
        self.group = group
        self.forced = bool(word.options.get("force"))

    def _fail(self, error: ZsqError) -> None:
        self.management.fail(self.envelope, self.word.request, error)

    def _refusal(self, complete: bool) -> ZsqError | None:
        """Why not, or None."""
        if not complete:  # E_CLOSING and not E_TIMEOUT: the broker is there, and nothing was done
            text = "not all processes have said in time what they hold, so that is not known; try again, or delete with force"
            return Refused(E_CLOSING, text)
        left = unfinished(self.group, self.word.channel)
        if left is None:
            text = "a channel of it is being started again or has failed, so what it holds is not known; try again, or delete with force"
            return Refused(E_CLOSING, text)
        if not left:
            return None
        what = f"channel {self.word.channel!r}" if self.word.channel else f"topic {self.word.topic!r}"
        behind = behind_pause(self.group)
        drain = f"unpause the topic ({behind} of them lie behind its pause), drain it" if behind else "drain it"
        text = f"{what} has {left} messages that are not finished; {drain}, or delete it with force and lose them"
        return Refused(E_NOT_EMPTY, text)

    # A topic

    def delete_topic(self) -> None:
        storage = self.group.storage
        if self.group.state is GroupState.UP and storage is not None:
            self.management.order(storage, "seal", {}, self._sealed)
        elif self.forced:
            stats = storage.stats if storage is not None else {}
            self._remove_topic(max(int(stats.get("head", 0)), self.group.row.base_offset) + UNKNOWN_END_MARGIN)
        else:
            self._fail(Refused(E_CLOSING, "it is not up, so what it holds is not known; try again, or delete with force"))

    def _sealed(self, data: dict[str, Any] | None, error: ZsqError | None) -> None:
        if error is not None or data is None:
            self._fail(error or Refused(E_CLOSING, "its storage did not say where it ends"))
            return
        end = int(data["head"])
        if self.forced:
            self._remove_topic(end)
            return

        def decide(complete: bool, details: Details) -> None:
            refusal = self._refusal(complete)
            if refusal is None:
                self._remove_topic(end)
                return
            self._unseal()
            self._fail(refusal)

        try:
            self.management.gatherings.gather(self.management.scope(self.group), decide)
        except Refused as refused:
            self._unseal()
            self._fail(refused)

    def _unseal(self) -> None:
        if self.group.storage is not None:
            self.management.order(self.group.storage, "unseal", {}, lambda data, error: None)

    def _remove_topic(self, end: int) -> None:
        def answer(data: dict[str, Any] | None, error: ZsqError | None) -> None:
            self.management.relay(self.envelope, self.word.request, data, error)

        remove_topic(self.management, self.group, end, answer)

    # A channel

    def delete_channel(self) -> None:
        if self.forced:
            self._remove_channel()
            return

        def decide(complete: bool, details: Details) -> None:
            refusal = self._refusal(complete)
            if refusal is not None:
                self._fail(refusal)
            else:
                self._remove_channel()

        group = self.group
        asked: list[Child | None] = [group.storage, group.topic, group.channels[self.word.channel]]
        self.management.gatherings.gather([child for child in asked if child is not None and child.state == "up"], decide)

    def _remove_channel(self) -> None:
        if self.group.storage is None or self.group.state is not GroupState.UP or self.word.channel not in self.group.channels:
            self._fail(Refused(E_CLOSING, "its topic is being started again, or it is being deleted already; try in a moment"))
            return

        def answer(data: dict[str, Any] | None, error: ZsqError | None) -> None:
            self.management.relay(self.envelope, self.word.request, data, error)

        remove_channel(self.management, self.group, self.word.channel, answer)


def remove_channel(management: Management, group: TopicGroup, name: str, answer: Answer, *, lost: bool = False) -> None:
    """End the process of a channel, then its rows; of a topic that is up. `lost`: it died, and its consumers may come again."""
    storage, child = group.storage, group.channels[name]
    assert storage is not None
    group.deleting.add(name)  # who wants it meanwhile waits, or is told to: a second process would stand on the old row
    group.drop_channel(name, lost=lost)
    if is_ephemeral(name):  # what comes from here on is not its own: said to storage before anybody can see that it is gone
        management.order(storage, "leave", {"channel": name}, lambda data, error: None)
    if child is not None:
        management.supervisor.stop_child(child)

    def drop(ended: bool) -> None:
        if not ended:
            gone(None, ZsqError(E_TIMEOUT, f"the process of channel {name!r} did not end; its rows were kept"))
            return
        management.order(storage, "drop", {"channel": name}, gone)

    def gone(data: dict[str, Any] | None, error: ZsqError | None) -> None:
        group.deleted(name)
        answer(data, error)
        if not lost:
            end_if_over(management, group)

    management.after_end(child, drop)


def over(management: Management, envelope: Envelope, word: p.Over) -> None:
    """An ephemeral channel says that its last consumer has left. It says so again while its topic cannot be asked."""
    child = management.supervisor.table.children.get(word.key)
    group = child.owner if child is not None else None
    if child is None or child.envelope != envelope or child.state != "up" or group is None or group.state is not GroupState.UP:
        return
    name = child.spec.settings.get("channel", "")
    if is_ephemeral(name) and group.channels.get(name) is child:
        log.debug("channel %s/%s has no consumer any more: deleted", group.name, name)
        remove_channel(management, group, name, lambda data, error: None)


def end_if_over(management: Management, group: TopicGroup) -> None:
    """An ephemeral topic goes with its last channel, and what it held with it."""
    if not is_ephemeral(group.name) or group.channels or group.deleting or group.state is not GroupState.UP:
        return
    log.debug("topic %s has no channel any more: deleted", group.name)
    remove_topic(management, group, 0, lambda data, error: None)


def remove_topic(management: Management, group: TopicGroup, end: int, answer: Answer) -> None:
    """Durable before anything ends; at the next start the rest is done. `end`: where a topic of that name begins from now on."""
    supervisor, registry = management.supervisor, management.supervisor.registry
    if group.state in (GroupState.STOPPING, GroupState.ENDED):
        answer(None, Refused(E_CLOSING, "it is being deleted already"))
        return
    try:
        registry.set_state(group.name, "deleting", max(end, registry.ended.get(group.name, 0)))
    except Refused as error:
        management.sealed.append(group)
        open_again(management)
        answer(None, error)
        return

    def stopped() -> None:
        registry.remove(group.name)
        supervisor.groups.pop(group.name, None)
        answer({}, None)

    group.stop(stopped)


def open_again(management: Management) -> None:
    """Topics whose deletion was refused take publishes again. Not while the next start may yet carry it out (see `Registry.settle`): what
    was acknowledged meanwhile would go with the topic."""
    if management.sealed and not management.supervisor.registry.in_doubt:
        groups, management.sealed = management.sealed, []
        for group in groups:
            if group.storage is not None:
                management.order(group.storage, "unseal", {}, lambda data, error: None)
