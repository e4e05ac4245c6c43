"""Dead letters in the statistics: the dead-letter topics, and how many letters each has.

A dead-letter topic belongs to a channel whose dead letters go there by default, which the registry
records, or a channel names it in its settings. Its letters count until they are sent back: those
that its channel `redrive` has not finished, or all that the log has while that channel does not
exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...transport.client.core.redrive import CHANNEL
from ...transport.settings import ChannelOptions
from ..settings.channel_settings import default_dead_letter_topic
from .broker_view import TopicProcesses, channel_pulse, is_known, storage_pulse
from .channel_rows import held, visible_end, waiting

_NO_SETTINGS: Final[ChannelOptions] = {}


def senders(groups: Mapping[str, TopicProcesses]) -> dict[str, list[ChannelOptions]]:
    """Return the dead-letter topics, each with the settings of the channels that send to it.

    A topic whose channels were deleted has no senders, but is still a dead-letter topic.
    """
    settings_by_topic: dict[str, list[ChannelOptions]] = {
        name: [] for name, group in groups.items() if group.row.dead_letters_of
    }
    for topic, group in groups.items():
        for channel in group.channels:
            settings = channel_pulse(group, channel).get("settings", _NO_SETTINGS)
            chosen = settings.get("dead_letter_topic")
            name = chosen or default_dead_letter_topic(topic, channel)
            if name in settings_by_topic or (chosen and name in groups):
                settings_by_topic.setdefault(name, []).append(settings)
    return settings_by_topic


def letter_count(group: TopicProcesses) -> int | None:
    """Return the number of dead letters that were not sent back, or None if it is not known."""
    if CHANNEL not in group.channels:
        return storage_pulse(group).get("kept_count", 0)
    if not is_known(group, CHANNEL):
        return None
    return waiting(group, CHANNEL, visible_end(group)) + held(channel_pulse(group, CHANNEL))
