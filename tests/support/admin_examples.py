"""One example of each administrative request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from zsq.transport.wire import admin_requests as r

ORIGIN: Final = ("t", "0" * 32, "c")
EXAMPLES: Final[Mapping[type[r.AdminRequest[Any]], r.AdminRequest[Any]]] = {
    type(request): request
    for request in (
        r.ListTopicsRequest(),
        r.OverviewRequest(since=5, alarms=True),
        r.AuditRequest("t", count=5),
        r.HandoverRequest(),
        r.SetLookupdsRequest(addresses=("a:1", "b:2")),
        r.CreateTopicRequest("t", sync="always", settings={"max_bytes": 5}, parts=2, brokers=(1,)),
        r.CreateChannelRequest("t", "c", settings={"tags": "a", "start": "latest"}),
        r.ConfigureTopicRequest("t", sync="never", settings={"max_bytes": None}),
        r.ConfigureChannelRequest("t", "c", settings={"max_attempts": 5}),
        r.DeleteRequest("t", force=True),
        r.PauseRequest("t", "c"),
        r.UnpauseRequest("t"),
        r.EmptyRequest("t", "c"),
        r.CloseRequest("t", to="consumers"),
        r.OpenRequest("t"),
        r.ChunksRequest("t"),
        r.EndedRequest("t"),
        r.HistoryRequest("t", "c", span="1d", points=5),
        r.SeekRequest("t", "c", offset=0, forward=True),
        r.SkipRequest("t", "c", offsets=(1, 2)),
        r.PreviewSkipRequest("t", "c", offsets=(1,)),
        r.RevokeRequest("t", keys=("a", "b")),
        r.PeekRequest("t", "c", limit=5),
        r.DisconnectRequest("t", "c", consumer="x"),
        r.RedriveRequest("t.c.dead", to="t", to_channel="c", origin=ORIGIN, chosen=True),
        r.ListDelayedRequest("t", after="k", limit=5),
        r.CountDelayedRequest("t"),
        r.CancelDelayedRequest("t", keys=("k",)),
        r.BackUpStateRequest("t", id="x"),
        r.BackUpLogRequest("t", id="x"),
        r.EndBackupRequest("t", id="x"),
        r.AddScheduleRequest("t", name="n", cron="* * * * *", body=b"x", headers={"a": 1}),
        r.SetScheduleRequest("t", name="n", body=b""),
        r.RunScheduleRequest("t", name="n"),
        r.RemoveScheduleRequest("t", name="n"),
        r.PauseScheduleRequest("t", name="n"),
        r.ResumeScheduleRequest("t", name="n"),
        r.ListSchedulesRequest(),
        r.SilenceAlarmRequest("t", "c", kind="depth", seconds=1.5),
        r.EndSilenceRequest("t"),
        r.ClusterRequest(fresh=True),
        r.AddPartsRequest("t", count=2, brokers=(0, 1)),
        r.MovePartRequest("t#1", broker=3),
        r.RemovePartRequest("t#1", force=True),
        r.DrainBrokerRequest(broker=1, draining=False, concurrency=3),
        r.ForgetBrokerRequest(broker=1, force=True),
        r.SetAutoRequest(on=True, rate=1_000_000, concurrency=2, gone_after=600),
        r.CheckDrainedRequest("t#1"),
    )
}
