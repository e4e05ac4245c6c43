"""Forkserver setup before heavy imports: the forkserver ends whenever the supervisor ends."""

import os
import signal

from . import process

if _supervisor := int(os.environ.get("ZSQ_SUPERVISOR_PID", "0")):
    process.die_with_parent(_supervisor)
    # a service manager may send it to all processes; the supervisor decides the order
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # a terminal that closes sends it to all processes; the supervisor decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process.set_title("forkserver")
