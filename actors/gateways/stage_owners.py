"""Stage owners: the users that opened stages.

A push does not belong to a link, so the gateway accepts it only from the user that opened its
stage. A stage is known from OpenStage until the end of the link that sent it. A client that
continues the stage on another link sends OpenStage again.
"""

from __future__ import annotations

from ..settings import options

StagePlace = tuple[bytes, bytes]  # the route of a stage's pushes, and the stage


class StageOwners:
    """The owners of the stages of one gateway."""

    def __init__(self) -> None:
        # The user's key, and the number of links on which the stage is open.
        self._owners: dict[StagePlace, tuple[str, int]] = {}
        self._of_links: dict[bytes, set[StagePlace]] = {}

    def opened(self, client: bytes, place: StagePlace, key: str) -> None:
        """Note that a link opened a stage.

        If the link has too many stages, the stage is ignored. Storage refuses it too, so its pushes
        must not be permitted.
        """
        of_link = self._of_links.setdefault(client, set())
        if place in of_link or len(of_link) >= options.STAGES_PER_LINK_MAX:
            return
        owner, links = self._owners.get(place, (key, 0))
        if owner == key:
            of_link.add(place)
            self._owners[place] = key, links + 1

    def ended(self, client: bytes) -> None:
        for place in self._of_links.pop(client, ()):
            key, links = self._owners.pop(place)
            if links > 1:
                self._owners[place] = key, links - 1

    def permits(self, place: StagePlace, key: str) -> bool:
        opened = self._owners.get(place)
        return opened is not None and opened[0] == key

    def __len__(self) -> int:
        return len(self._owners)
