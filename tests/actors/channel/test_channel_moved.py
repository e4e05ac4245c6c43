"""Test of a channel that was moved back. The row that it saves has a `begin` below 0, because
messages that it receives again count as new.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from support.stage_bench import Bench, Wire

from zsq.actors.runtime.port import Port
from zsq.actors.storage.channels import Channels
from zsq.transport.wire import protocol as p


def test_a_channel_that_was_moved_back_can_save_its_row(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "t"))
    try:
        wire = Wire()
        harness = Channels(bench.store.log, bench.state, bench.store.state.load(), "always")
        harness.route(cast("Port", wire))
        wire.hear(p.OpenChannel(1, "c"), (b"one",))
        wire.hear(p.Save(2, "c", {"next": 0, "begin": -51}, (), (), True, False), (b"one",))
        while bench.state.may_commit() or bench.state_thread.pending:
            if bench.state.may_commit():
                bench.state.commit(bench.store.log.synced_end, {})
            bench.state_thread.run()
            bench.state.on_results()
        assert p.Done(2, {}) in wire.sent
        assert bench.store.state.load().channels["c"].begin == -51
    finally:
        bench.store.close()
