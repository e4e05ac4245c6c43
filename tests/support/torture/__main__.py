"""`scripts/torture`: kill the processes of a real broker under load, and count lost messages. With
--soak, run a mixed load for some time instead (see `support/soak/run.py`). With --bucket, the
broker has a bucket, and loses its disk too (see `bucket/run.py`). With --standby, a standby takes
over (see `standby/run.py`). With --drain, parts move between the brokers of a cluster, and the
cycles are moves (see `drain.py`). With --power, the broker's disk is an image, and each cycle is a
power cut (see `disk.py`).
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.soak import run as soak_run
from support.soak.run import Soak
from support.torture import drain as drain_run
from support.torture import ledger as l
from support.torture.bucket import run as bucket_run
from support.torture.bucket.report import BUCKET, command
from support.torture.disk import FILE_SYSTEMS, ImageDisk, missing
from support.torture.kills import POWER, SHARES
from support.torture.run import Torture, Violation, memory_folder
from support.torture.standby import run as standby_run
from support.torture.standby.report import STANDBY

import zsq


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/torture", description=__doc__)
    parser.add_argument(
        "--cycles", type=int, default=30, help="kills (default 30: every kind at least once)"
    )
    parser.add_argument(
        "--soak",
        type=float,
        metavar="MINUTES",
        help="in place of cycles: a mixed load so long; every message must be explained",
    )
    parser.add_argument(
        "--bucket",
        action="store_true",
        help="give the broker a bucket behind a fault proxy, and lose its disk in some cycles",
    )
    parser.add_argument(
        "--standby",
        action="store_true",
        help="give it a standby too: kill, stop, or cut off the primary, or hand over",
    )
    parser.add_argument(
        "--drain",
        action="store_true",
        help="drain, balance and forget brokers of a cluster until so many parts have moved",
    )
    parser.add_argument(
        "--power",
        choices=FILE_SYSTEMS,
        help="give it a disk of its own with this file system, and cut its power in each cycle; "
        "needs root",
    )
    parser.add_argument(
        "--seed", type=int, help="of the choice of kills, victims and times (default: drawn)"
    )
    parser.add_argument(
        "--kinds",
        help=f"which kills (default: all), of {', '.join(SHARES)}; with --bucket, of "
        f"{', '.join(bucket_run.SHARES)}; with --standby, of {', '.join(standby_run.SHARES)}",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where the broker's data lies (default: a new folder in the temporary one)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave data and ledger for a look (not with --power)"
    )
    found = parser.parse_args(arguments)
    shares = bucket_run.SHARES if found.bucket else SHARES
    shares = standby_run.SHARES if found.standby else shares
    shares = {POWER: 1} if found.power else shares
    found.kinds = found.kinds or ",".join(shares)
    unknown = [kind for kind in found.kinds.split(",") if kind not in shares]
    if unknown or found.cycles < 1 or (found.soak is not None and not found.soak > 0):
        parser.error(
            f"unknown kinds: {', '.join(unknown)}"
            if unknown
            else "--cycles and --soak must be above 0"
        )
    return found


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    if options.soak is not None:
        return soak(options, seed)
    if options.drain:
        folder = Path(tempfile.mkdtemp(prefix="torture-", dir=options.folder))
        code = drain_run.main(folder, options.cycles, seed)
        if not code and not options.keep:
            shutil.rmtree(folder)
        return code
    kinds = options.kinds.split(",")
    if options.standby:
        return command(STANDBY, options.cycles, seed, kinds, options.folder, keep=options.keep)
    if options.bucket:
        return command(BUCKET, options.cycles, seed, kinds, options.folder, keep=options.keep)
    folder = Path(tempfile.mkdtemp(prefix="torture-", dir=options.folder))
    memory = memory_folder()
    disk = ImageDisk(memory, folder, options.power) if options.power else None
    if disk is not None and (reason := missing(disk.file_system)):
        print(f"torture: no power cuts here: {reason}", file=sys.stderr)
        return 2
    print(f"torture: {options.cycles} cycles, seed {seed}, data in {folder}", flush=True)
    began = time.monotonic()
    try:
        if disk is not None:
            disk.begin()
        torture = Torture(folder, memory, options.cycles, seed, kinds, disk)
        torture.run()
    except (Violation, AssertionError, subprocess.TimeoutExpired) as error:
        power = f" --power {options.power}" if options.power else ""
        print(f"VIOLATION: {error}\nreplay (the choice of kills; times differ): scripts/torture --cycles {options.cycles} --seed {seed}"
              f" --kinds {options.kinds}{power}\ndata, log and ledger stay in {folder} and {memory}", flush=True)  # fmt: skip
        return 1
    except BaseException:
        if disk is not None:
            disk.end()
        raise
    if disk is not None:
        disk.end()
    print(summary(torture, time.monotonic() - began), flush=True)
    if not options.keep or disk is not None:
        shutil.rmtree(folder)
        shutil.rmtree(memory)
    return 0


def soak(options: argparse.Namespace, seed: int) -> int:
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=options.folder))
    print(f"soak: {options.soak:g} minutes, seed {seed}, data in {folder}", flush=True)
    run = Soak(folder, options.soak, seed)
    try:
        run.run()
        run.check_coverage_and_growth()
    except (soak_run.Violation, AssertionError, subprocess.TimeoutExpired, zsq.ZsqError) as error:
        print(f"VIOLATION after {run.at_s / 60:.1f} minutes, explained to the last message up to {run.clean_s / 60:.1f}: {error!r}\n"
              f"data and log stay in {folder}\n{run.summary()}", flush=True)  # fmt: skip
        return 1
    print(run.summary(), flush=True)
    if not options.keep:
        shutil.rmtree(folder)
    return 0


def summary(torture: Torture, seconds: float) -> str:
    recoveries = sorted(torture.recoveries)
    out, totals = torture.outstanding, torture.totals
    words = (l.DELIVERED, l.REDELIVERED, l.CONFIRMED, l.DOUBTED, l.STALE)
    delivered, again, confirmed, doubted, stale = (
        torture.sum(message, torture.consumers) for message in words
    )
    machine = (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python "
        f"{platform.python_version()}"
    )
    return f"""\
cycles {sum(torture.done.values())}: {", ".join(f"{kind} {count}" for kind, count in sorted(torture.done.items()))}
outstanding at the kills: {out["publishes"]:,} publishes, {out["finishes"]:,} finishes in all; both at {out["kills with both"]} kills
acknowledged {totals["acknowledged"]:,} messages, lost {totals["lost"]}; in the log {torture.audit.messages:,}, stored twice 0
  sent without an answer: {totals["unanswered_stored"]:,} stored, {totals["unanswered_absent"]:,} not
deliveries {delivered:,}, with a later attempt {again:,}
  finishes confirmed {confirmed:,}, in doubt {doubted:,}, under an old lease and refused {stale:,}; come again after a confirmed one 0
flowing again after {recoveries[len(recoveries) // 2]:.2f} s (half of the kills), {recoveries[-1]:.2f} s (the slowest)
orphan processes {torture.orphans}
{seconds:.0f} s on {machine}, seed {torture.seed}"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
