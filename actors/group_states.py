"""The states of a topic's processes as one unit, and what leads from one to the other. Pure.

NEW -> STORAGE -> TOPIC -> UP          started in this order, each when the one before is up
any of these -> CLEARING               storage or topic died: the others are killed, and their ends awaited
CLEARING -> STORAGE | FAILED           started again, or given up when it happens too often
CLEARING, waiting                      it cannot start: tried again after 1, 2, 4 ... 60 s
UP -> STOPPING -> ENDED                stopped in reverse order: channels, topic, storage
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class GroupState(Enum):
    NEW = "new"
    STORAGE = "starting storage"
    TOPIC = "starting topic"
    UP = "up"
    CLEARING = "clearing"
    STOPPING = "stopping"
    FAILED = "failed"
    ENDED = "ended"


TRANSITIONS: Final[dict[GroupState, dict[str, GroupState]]] = {
    GroupState.NEW: {"start": GroupState.STORAGE, "stop": GroupState.STOPPING},
    GroupState.STORAGE: {"storage_up": GroupState.TOPIC, "died": GroupState.CLEARING, "stop": GroupState.STOPPING},
    GroupState.TOPIC: {"topic_up": GroupState.UP, "died": GroupState.CLEARING, "stop": GroupState.STOPPING},
    GroupState.UP: {"died": GroupState.CLEARING, "stop": GroupState.STOPPING},
    GroupState.CLEARING: {
        "died": GroupState.CLEARING,
        "start": GroupState.STORAGE,
        "give_up": GroupState.FAILED,
        "stop": GroupState.STOPPING,
    },
    GroupState.STOPPING: {"died": GroupState.STOPPING, "stopped": GroupState.ENDED, "stop": GroupState.STOPPING},
    GroupState.FAILED: {"died": GroupState.FAILED, "stop": GroupState.STOPPING},
    GroupState.ENDED: {"stop": GroupState.STOPPING},
}
