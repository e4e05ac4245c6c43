"""Deleting topics and channels: refused while something is unfinished, unless forced; offsets are not used again.

A topic is sealed first: from then on it takes no message, so what the actors report is the end of it, and nothing that was
acknowledged after the look at the backlog goes with it. A channel's process ends before its rows go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..transport import protocol as p
from ..transport.errors import E_CLOSING, E_NOT_EMPTY, E_TIMEOUT, Refused, ZsqError
from .port import Envelope
from .statistics import behind_pause, unfinished
from .topic_group import GroupState, TopicGroup

if TYPE_CHECKING:
    from .management import Management

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
        if self.forced:
            return None
        if not complete:
            return ZsqError(E_TIMEOUT, "not all processes said within a second what they hold; try again, or delete with force")
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

        def decide(complete: bool) -> None:
            refusal = self._refusal(complete)
            if refusal is None:
                self._remove_topic(end)
                return
            if self.group.storage is not None:
                self.management.order(self.group.storage, "unseal", {}, lambda data, error: None)
            self._fail(refusal)

        self.management.gather(self.management.scope(self.group), decide)

    def _remove_topic(self, end: int) -> None:
        supervisor = self.management.supervisor
        registry = supervisor.registry
        if self.group.state in (GroupState.STOPPING, GroupState.ENDED):
            self._fail(Refused(E_CLOSING, "it is being deleted already"))
            return
        try:
            registry.set_state(self.group.name, "deleting", max(end, registry.ended.get(self.group.name, 0)))
        except Refused as error:
            if self.group.storage is not None:
                self.management.order(self.group.storage, "unseal", {}, lambda data, error: None)
            self._fail(error)
            return

        def stopped() -> None:
            registry.remove(self.group.name)
            supervisor.groups.pop(self.group.name, None)
            self.management.done(self.envelope, self.word.request, {})

        self.group.stop(stopped)

    # A channel

    def delete_channel(self) -> None:
        def decide(complete: bool) -> None:
            refusal = self._refusal(complete)
            if refusal is not None:
                self._fail(refusal)
            else:
                self._remove_channel()

        self.management.gather(self.management.scope(self.group), decide)

    def _remove_channel(self) -> None:
        name = self.word.channel
        storage = self.group.storage
        if storage is None or self.group.state is not GroupState.UP or name not in self.group.channels:
            self._fail(Refused(E_CLOSING, "its topic is being started again, or it is being deleted already; try in a moment"))
            return
        child = self.group.channels[name]
        self.group.deleting.add(name)  # who wants it meanwhile is told to wait: a second process would stand on the old row
        self.group.drop_channel(name)
        if child is not None:
            self.management.supervisor.stop_child(child)

        def drop(ended: bool) -> None:
            if not ended:
                self.group.deleting.discard(name)
                self._fail(ZsqError(E_TIMEOUT, f"the process of channel {name!r} did not end; its rows were kept"))
                return
            self.management.order(storage, "drop", {"channel": name}, answer)

        def answer(data: dict[str, Any] | None, error: ZsqError | None) -> None:
            self.group.deleting.discard(name)
            self.management.relay(self.envelope, self.word.request, data, error)

        self.management.after_end(child, drop)
