"""What the forkserver does before it imports anything heavy: it ends with the supervisor, also with one that cannot start."""

import os
import signal

from . import process

if _supervisor := int(os.environ.get("ZSQ_SUPERVISOR_PID", "0")):
    process.die_with_parent(_supervisor)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a service manager may send it to all; the supervisor decides the order
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that is closed sends it to all; the supervisor decides
    process.set_title("forkserver")
