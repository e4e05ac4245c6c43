"""The start and end of a broker.

`serve` locks the data directory, opens the registry, makes the run directory, and runs the
supervisor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from ...storage.errors import ForeignDirectory, Locked, StorageError
from ...storage.files import Files
from ...transport.wire.credentials import open_to_others
from ..runtime import logs
from ..runtime.extensions import filled
from ..runtime.process import set_title
from ..security.exposure import in_clear
from ..settings.options import ServeOptions
from . import run_directory as rundir
from .import_remains import clear_imports_at_start
from .reloading import Fresh
from .start_reserve import StartReserve
from .supervisor import Supervisor
from .topics import sleepers
from .topics.registry import Registry


def serve(serve_options: ServeOptions, read_again: Callable[[], Fresh] | None = None) -> int:
    """Run a broker in the foreground until SIGTERM or SIGINT.

    Return the exit code: 0 if the broker was stopped, 1 if it failed.

    `read_again` is called on SIGHUP. If it raises `ZsqError` or `OSError`, no setting changes.
    """
    logs.set_up(serve_options.log_level, serve_options.log_format, logs.SUPERVISOR)
    say = partial(logs.say, form=serve_options.log_format, level=logging.ERROR)
    files = Files()
    data_dir = serve_options.data_dir.absolute()
    try:
        if not files.exists(str(data_dir)):
            files.make_folder(str(data_dir))
        if why := open_to_others(data_dir, data_dir.stat()):
            say(f"zsq: the data directory {why}")
            return 1
        lock = files.lock(str(data_dir / "lock"))
        StartReserve(data_dir).lend()
        registry = Registry(files, data_dir, serve_options.node_id)
        registry.open()
        claimed = rundir.claim(
            registry.uuid, "".join(copy(files, data_dir) for copy in filled("COPY"))
        )
        clear_imports_at_start(files, data_dir, registry)
        registry.memory.clear()
        run_dir = rundir.make(data_dir)
    except Locked as error:
        say(
            f"zsq: {data_dir} is in use by another `zsq serve` (pid {error.pid}); stop that one "
            "first"
        )
        return 1
    except (ForeignDirectory, StorageError, rundir.TwinRuns) as error:
        say(f"zsq: {error}")
        return 1
    except OSError as error:
        why = str(error.strerror or error)
        # The parent is not created, because the path may be mistyped, or a disk may not be mounted.
        if isinstance(error, FileNotFoundError) and not data_dir.parent.exists():
            why = f"{data_dir.parent} does not exist; create it (mkdir -p), or mount its disk"
        say(f"zsq: cannot use data directory {data_dir}: {why}")
        return 1
    for text in in_clear(serve_options):
        logging.getLogger("zsq").warning("others on the network can read traffic: %s", text)
    set_title(f"supervisor {data_dir}")
    try:
        asleep = sleepers.take(files, data_dir, serve_options)
        supervisor = Supervisor(serve_options, registry, run_dir, read_again, asleep)
        code = supervisor.run()
        if code == 0:
            sleepers.save(files, data_dir, supervisor.state.options, supervisor.slept)
        return code
    finally:
        registry.memory.close()
        rundir.clear(data_dir, run_dir)
        StartReserve(data_dir).keep()
        claimed.close()
        files.close(lock)
