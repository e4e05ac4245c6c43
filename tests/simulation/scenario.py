"""The scenario of a seed: its topics, channels, clients and faults. It is small, so that many seeds
can be tried.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

from .attributes import SETTINGS, AttributesPlan
from .bounded import BoundedPlan
from .mortal import MortalPlan
from .nemesis import KINDS
from .shipping import ShipPlan, draw_keeping, draw_plan
from .staging import StagePlan
from .standby import draw_patience
from .workload import ChannelPlan, ProducerPlan


@dataclass(frozen=True, slots=True)
class Scenario:
    """`faults`: the kinds of faults that the nemesis may use (`nemesis.py`). `strikes`: how many
    faults happen.
    """

    producers: list[ProducerPlan]
    channels: list[ChannelPlan]
    tcp: bool
    chunk_bytes: int
    faults: tuple[str, ...]
    strikes: int
    stagers: list[StagePlan] = field(default_factory=list)
    commands: int = 0
    moves: bool = False  # True if the commands include seeks
    seeks: int = 0  # number of seeks of a client that does nothing else
    modes: dict[str, str] = field(default_factory=dict)  # topics that answer before the sync
    # Before each fault, one of these is chosen as the longest pause.
    pauses_ms: tuple[int, ...] = (60, 300, 1_200)
    sleep_after_s: float = 0.0  # time after which an unused topic sleeps; 0: never
    own_process: str = "always"  # which topics have processes of their own

    mortal: MortalPlan | None = None
    bounded: BoundedPlan | None = None
    attributes: AttributesPlan | None = None
    ships: ShipPlan | None = None
    patience_s: float = 0.0  # of a standby, 0 without one
    lives_on: bool = False  # True if the old broker lives on after a takeover
    archived: bool = False  # True if log files are archived in a bucket, and leave the disk at once

    @property
    def topics(self) -> list[str]:
        return sorted(
            {channel.topic for channel in self.channels}
            | {producer.topic for producer in self.producers}
        )


HASTY: Final = 0.12  # share of seeds with topics that answer before the sync
BOUNDED: Final = 0.03  # share of seeds with a topic that drops its oldest messages
ATTRIBUTES = 0.25  # share of seeds with a topic whose messages have attributes
CHOOSY = 0.15  # share of the channels without settings that are fair or have a limit
CHOOSY_SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"fair_by": "key"},
    {"fair_by": "tag", "max_in_flight_per_key": 3},
    {"max_rate": 300.0, "max_rate_burst": 30},
)
MORTAL: Final = 0.05  # share of seeds that delete a topic or a channel
# Share of seeds with a client that moves channels all the time. A test of a defect may set this to
# 1, for all seeds.
MOVING = 0.1
MOVED = 0.02  # how often a topic that is looked at wants to move to other processes
MOVED_OFTEN: Final = 0.5  # the same for `simulate.py --sharing`
SHARING = False  # True if in all seeds quiet topics share processes
SLEEPY: Final = 0.3  # share of seeds in which unused topics sleep soon
FORCED: Final = 0.5  # share of these seeds in which topics are put to sleep while they are used
PEACE: Final = 0.1  # share of seeds without faults, for which the strictest rules hold
ARCHIVED = 0.0  # share of seeds with a bucket
URGENT = False  # True if channels without other settings have priorities, and messages use them
DISASTERS: Final = 0.7  # share of the seeds that ship in which disks are lost
SHIPPING = False  # True if all archived seeds ship
LIVES_ON = 0.5  # share of the seeds with a standby in which the old broker lives on
STANDBYS = 0.6  # share of the seeds with lost disks in which a standby takes over
ONLY: tuple[str, ...] = ()  # the faults to choose from, or empty for all


def draw(seed: int) -> Scenario:
    dice = random.Random(f"{seed}/scenario")
    tcp = dice.random() < 0.5
    topics = ["t", "u"][: dice.choice((1, 1, 1, 2))]
    channels = [
        _channel(dice, topic, f"c{number}")
        for topic in topics
        for number in range(dice.choice((1, 1, 2)))
    ]
    channels = [_choosy(random.Random(f"{seed}/{one.topic}/{one.name}"), one) for one in channels]
    producers = [
        ProducerPlan(
            topic,
            dice.randrange(3, 14),
            dice.choice((0.0, 0.0, 0.3)),
            linger=dice.random() < 0.2,
            pause_ms=dice.choice((0, 2, 5, 40, 200)),
            ahead=dice.choice((0, 3, 10)),
        )
        for topic in topics
        for _ in range(dice.choice((1, 1, 2)))
    ]
    kinds = [kind for kind in KINDS if kind != "kill_gateway" or tcp]
    stagers = (
        [StagePlan(dice.choice(topics), dice.randrange(1, 5), dice.choice((1, 2, 3)))]
        if dice.random() < 0.35
        else []
    )
    commands = dice.randrange(1, 8) if dice.random() < 0.3 else 0
    # Choose a few kinds for this seed. So two kinds occur together more often than if each fault
    # were chosen from all kinds.
    faults = ONLY or tuple(dice.sample(kinds, dice.choice((1, 2, 3, 5))))
    strikes = 0 if dice.random() < PEACE else dice.randrange(1, 7)
    chunk_bytes, moves = dice.choice((4, 16, 256)) * 1024, dice.random() < 0.3
    plain = Scenario(
        producers, channels, tcp, chunk_bytes, faults, strikes, stagers, commands, moves
    )
    plain = _mortal(random.Random(f"{seed}/mortal"), _hasty(random.Random(f"{seed}/modes"), plain))
    dice = random.Random(f"{seed}/moving")
    if dice.random() < MOVING:
        plain = replace(plain, seeks=dice.randrange(2, 15))
    dice = random.Random(f"{seed}/sleep")
    if dice.random() < SLEEPY:
        forced = plain.strikes and dice.random() < FORCED
        plain = replace(
            plain,
            sleep_after_s=dice.choice((0.02, 0.2)),
            faults=(*plain.faults, "doze") if forced else plain.faults,
        )
    dice = random.Random(f"{seed}/places")
    plain = replace(plain, own_process=dice.choice(("always", "busy", "busy", "never")))
    if SHARING:
        plain = replace(plain, own_process="busy")
    dice = random.Random(f"{seed}/archived")
    if dice.random() < ARCHIVED:
        more = ("kill_archive", "bucket_away") if plain.strikes else ()
        plain = replace(
            plain, archived=True, chunk_bytes=4096, faults=(*plain.faults, *more),
            strikes=plain.strikes and plain.strikes + 3,
        )  # fmt: skip
        dice, keeping = random.Random(f"{seed}/shipping"), random.Random(f"{seed}/keeping")
        plain = _shipped(dice, keeping, plain, seed)
    dice = random.Random(f"{seed}/bounded")
    keeps_less = plain.ships is not None and plain.ships.keep_bytes >= 0
    is_shared = "lost_disk" in plain.faults or plain.patience_s > 0  # another broker may continue
    if is_shared or keeps_less:
        return plain
    if dice.random() < BOUNDED:
        blocks, pause_ms = dice.randrange(10, 50), dice.choice((100, 300))
        plain = replace(plain, bounded=BoundedPlan(blocks, pause_ms, dice.choice((100, 600))))
    dice = random.Random(f"{seed}/attributes")
    if dice.random() < ATTRIBUTES:
        blocks, pause_ms = dice.randrange(5, 25), dice.choice((5, 50, 150))
        plan = AttributesPlan(blocks, pause_ms, dice.randrange(5), dice.choice(SETTINGS))
        plain = replace(plain, attributes=plan)
    return plain


def _shipped(dice: random.Random, keeping: random.Random, plain: Scenario, seed: int) -> Scenario:
    """Let the broker ship. If disks are lost, all topics answer at least after the sync, and none
    is deleted.
    """
    plan = draw_plan(dice)
    while SHIPPING and plan is None:
        plan = draw_plan(dice)
    if plan is None:
        return plain
    plan = draw_keeping(keeping, plan)
    if plan.sync == "bucket":
        plain = replace(plain, modes={})
    plain = replace(plain, ships=plan)
    is_spared = dice.random() >= DISASTERS and "lost_disk" not in ONLY and STANDBYS < 1
    if not plain.strikes or is_spared:
        return plain
    plain = replace(plain, patience_s=draw_patience(seed, STANDBYS))
    faults = plain.faults
    dice_on = random.Random(f"{seed}/former")
    if plain.patience_s and (dice_on.random() < LIVES_ON or "cut_off" in ONLY):
        plain = _living_on(dice_on, plain)
        faults = plain.faults
    elif not ONLY:
        faults = (*faults, *dice.choice((("lost_disk",), ("lost_disk", "lost_disk"))))
    return replace(plain, faults=faults, modes={}, mortal=None)


def _living_on(dice: random.Random, plain: Scenario) -> Scenario:
    """Let the old broker live on after a takeover. Clients reach the brokers by addresses, and they
    publish for longer than a machine is cut off.
    """
    producers = [
        replace(plan, blocks=plan.blocks + dice.choice((10, 30)), pause_ms=dice.choice((40, 200)))
        for plan in plain.producers
    ]
    faults = (*plain.faults, *(() if ONLY else ("cut_off", "pause_machine") * 2))
    return replace(plain, producers=producers, faults=faults, tcp=True, lives_on=True)


def _mortal(dice: random.Random, plain: Scenario) -> Scenario:
    if dice.random() >= MORTAL:
        return plain
    forced = dice.choice((0.0, 0.3, 1.0))
    plan = MortalPlan(
        dice.choice((1, 2, 4)),
        dice.random() < 0.4,
        forced,
        dice.randrange(4, 25),
        dice.choice((5, 50, 150)),
    )
    return replace(plain, mortal=plan)


def _hasty(dice: random.Random, plain: Scenario) -> Scenario:
    """Let some topics answer before the sync. Sometimes add a topic that has no channel, so that no
    commit of a channel ever syncs it.
    """
    if dice.random() >= HASTY:
        return plain
    modes = {
        topic: mode
        for topic in plain.topics
        if (mode := dice.choice(("always", "interval", "interval", "never"))) != "always"
    }
    producers = plain.producers
    if dice.random() < 0.5:
        modes["w"] = dice.choice(("interval", "interval", "never"))
        producers = [
            *producers,
            ProducerPlan(
                "w",
                dice.randrange(3, 14),
                dice.choice((0.0, 0.3)),
                pause_ms=dice.choice((5, 40, 200)),
            ),
        ]
    # Without a power cut these topics behave like others. A power cut long after the last answer
    # tests what `interval` promises.
    faults = (
        plain.faults
        if ONLY or "power_cut" in plain.faults or dice.random() < 0.3
        else (*plain.faults, "power_cut")
    )
    return replace(
        plain,
        producers=producers,
        modes=modes,
        faults=faults,
        pauses_ms=dice.choice((plain.pauses_ms, (300, 4_000))),
    )


def _choosy(dice: random.Random, plan: ChannelPlan) -> ChannelPlan:
    """Let some channels without settings be fair, or have a limit of their rate."""
    if plan.settings or dice.random() >= CHOOSY:
        return plan
    return replace(plan, settings=dice.choice(CHOOSY_SETTINGS))


def _channel(dice: random.Random, topic: str, name: str) -> ChannelPlan:
    settings: dict[str, Any] = {}
    kind = dice.choice(("plain", "plain", "ordered", "tags", "dying"))
    if kind == "ordered":
        settings["ordered"] = True
    elif kind == "tags":
        settings["tags"] = dice.choice(("red", "red||blue"))
    elif kind == "dying":
        settings["max_attempts"] = dice.choice((2, 4))
    elif URGENT:
        settings["priorities"] = 3
    return ChannelPlan(
        topic, name, dice.choice((1, 2, 2, 3)), settings,
        requeue=dice.choice((0.0, 0.1, 0.3)), reject=0.15 if kind == "dying" else 0.0, late=dice.choice((0.0, 0.03)),
        touch=0.05, plain=dice.choice((0.0, 0.5, 1.0)), message_timeout=dice.choice((1.0, 2.0)),
    )  # fmt: skip
