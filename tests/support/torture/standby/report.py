"""The summary of the standby torture, for a person who checks it."""

from __future__ import annotations

from statistics import median
from typing import Final

from support.fault_proxy import FAULTS
from support.torture.bucket.homes import LAG_S
from support.torture.bucket.report import Torture, listed, machine
from support.torture.standby.run import StandbyTorture, plan


def summary(torture: StandbyTorture, seconds: float) -> str:
    counts, own, clients = torture.history.counts, torture.counts, torture.clients
    injected = {name: torture.faults.get(name, 0) for name in FAULTS}
    durable = "\n".join(
        f"  {kind:9} {median(found):6.2f} s (half of {len(found)}), {max(found):6.2f} s (the "
        "slowest)"
        for kind, found in sorted(torture.durable_s.items())
    )
    done = sum(torture.cycles_done.values())
    return f"""\
cycles {done}: {listed(torture.cycles_done)}
takeovers in them: {listed(torture.takeovers)}; outside of them {torture.takeovers_outside}; handovers that failed \
{own["handovers that failed"]}
the first publish after a takeover is in the bucket, after the kill, the stop, the cut, or the command:
{durable}
acknowledged {counts["acknowledged"]:,} messages, checked {counts["checked"]:,}, delayed ones checked {counts["delayed checked"]:,}
  lost at takeovers, within the bound {counts["lost within the bound"]:,}; a publish of the same primary was sent at most \
{counts["lost span ms"]} ms after a lost one was acknowledged; the bound is {LAG_S * 1000:g} ms
  lost, with an answer that came after the takeover {own["lost, with an answer that came late"]:,}; \
set aside for zsq rescue {own["rescued"]:,}
  refused with E_BUCKET {clients["refused"]:,}, with E_FENCED {clients["fenced"]:,}
linearizable: {own["publishes checked"]:,} publishes and {own["reads checked"]:,} reads, {counts["transactions"]:,} transactions and \
{own["questions for a version"]:,} questions for their version; without {own["reads answered by a former primary"]:,} that a former \
primary answered after the takeover
  transactions that were repeated after an error {clients["transactions that were repeated"]:,}, messages of transactions \
{counts["messages of transactions"]:,}
messages read {counts["read"]:,}, delivered {counts["delivered"]:,}, again {counts["delivered again"]:,}
  finishes confirmed {counts["finished"]:,}, in doubt {clients["finishes in doubt"]:,}, delivered again after a takeover \
{counts["finished again"]:,}, {counts["finished at a former primary"]:,} of them confirmed by a former \
primary after the takeover; the others at most {counts["finish span ms"]} ms before a publish that the bucket has
broken promises {len(torture.history.complaints)}
faults injected {sum(injected.values()):,} in {torture.faults.get("requests", 0):,} requests: {listed(injected)}
zsq fsck without a finding: {torture.fscks}; topics whose health was not OK at a check: {torture.unhealthy}
orphan processes {torture.orphans}; the primary knew its standby after {own["waited for roles ms"] / 1000 / max(1, done):.1f} s on average
{seconds:.0f} s on {machine()}, seed {torture.seed}"""


STANDBY: Final = Torture("--standby", plan, StandbyTorture, summary)
