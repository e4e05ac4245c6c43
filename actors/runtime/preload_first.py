"""Forkserver setup before heavy imports: the forkserver ends whenever the supervisor ends."""

import os
import signal

from . import process

if _supervisor := int(os.environ.get("ZSQ_SUPERVISOR_PID", "0")):
    process.die_with_parent(_supervisor)
    # A service manager may send SIGTERM to all processes, but the supervisor decides their order.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A terminal that closes sends SIGHUP to all processes, but the supervisor decides what follows.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process.set_title("forkserver")
