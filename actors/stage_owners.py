"""Who opened which stage: pushes are anonymous by their form, and taken only from the user that opened the stage they name. Pure.

A stage is known from OpenStage, which is said on a link, until that link ends; whoever goes on with it says OpenStage again.
"""

from __future__ import annotations

from . import options

Place = tuple[bytes, bytes]  # route, stage


class StageOwners:
    def __init__(self) -> None:
        self._owners: dict[Place, tuple[str, int]] = {}  # the user's key, and on how many links it is open
        self._of_links: dict[bytes, set[Place]] = {}

    def opened(self, client: bytes, place: Place, key: str) -> None:
        """A link has a bounded number of stages. Storage refuses what is over it, and so nothing for it is to be let in."""
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

    def permits(self, place: Place, key: str) -> bool:
        found = self._owners.get(place)
        return found is not None and found[0] == key

    def __len__(self) -> int:
        return len(self._owners)
