"""Tests of the options of source and sink: which options are accepted, and what the errors for the
others say.
"""

from __future__ import annotations

import pytest

from zsq import UsageError
from zsq.apps.spark.options import (
    EARLIEST,
    LATEST,
    Point,
    SinkOptions,
    SourceOptions,
    sink_options,
    source_options,
)

URL = "tcp://127.0.0.1:4153"


def source(streaming: bool = False, /, **options: str) -> SourceOptions:
    # Spark passes the names of options in lower case.
    return source_options(
        {"topic": "t"} | {name.lower(): value for name, value in options.items()},
        URL,
        streaming=streaming,
    )


def sink(streaming: bool = False, /, **options: str) -> SinkOptions:
    return sink_options(
        {name.lower(): value for name, value in options.items()}, URL, streaming=streaming
    )


def test_options_not_given_have_their_defaults() -> None:
    batch = source()
    assert batch.url == URL
    assert batch.topics == ("t",)
    assert batch.columns == (
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "tag",
    )
    assert (batch.starting, batch.ending) == ({"t": EARLIEST}, {"t": LATEST})
    assert (batch.offsets_max, batch.max_bytes, batch.partitions_min) == (0, 0, 0)
    assert batch.fail_on_data_loss
    assert batch.timeout_s == 120
    assert source(True).starting == {"t": LATEST}
    assert sink() == SinkOptions(url=URL, topic="", app="", version=-1, timeout_s=120.0)


def test_every_given_option_is_taken() -> None:
    found = source_options(
        {"subscribe": "b, a,b", "url": "ipc:///run", "maxoffsetspertrigger": "10", "maxbytespertrigger": "2m", "minpartitions": "3",
         "failondataloss": "FALSE", "channel": "c", "includeheaders": "true", "timeout": "1.5", "startingoffsets": "earliest"},
        URL, streaming=True,
    )  # fmt: skip
    assert found.topics == ("a", "b")
    assert found.url == "ipc:///run"
    assert found.columns[-1] == "headers"
    assert (found.offsets_max, found.max_bytes, found.partitions_min) == (10, 2 << 20, 3)
    assert (found.fail_on_data_loss, found.channel, found.timeout_s) == (False, "c", 1.5)
    assert sink(topic="t", txnAppId="a", txnVersion="0", timeout="9s") == SinkOptions(
        url=URL, topic="t", app="a", version=0, timeout_s=9.0
    )


@pytest.mark.parametrize(
    ("options", "point"),
    [
        ({"startingOffsets": "Earliest"}, EARLIEST),
        ({"startingOffsets": '{"t": 7}'}, Point("offset", 7)),
        ({"startingOffsets": '{"t": {"0": 7}}'}, Point("offset", 7)),
        ({"startingOffsets": '{"t": -2}'}, EARLIEST),
        ({"startingTimestamp": "1700000000000"}, Point("time", 1_700_000_000_000)),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 5}}'}, Point("time", 5)),
        (
            {
                "startingTimestamp": "1",
                "startingOffsetsByTimestamp": '{"t": 2}',
                "startingOffsets": '{"t": 3}',
            },
            Point("time", 1),
        ),
        (
            {"startingOffsetsByTimestamp": '{"t": 2}', "startingOffsets": '{"t": 3}'},
            Point("time", 2),
        ),
    ],
)
def test_each_way_to_name_a_starting_point_is_understood(
    options: dict[str, str], point: Point
) -> None:
    assert source(**options).starting == {"t": point}
    assert source(True, **options).starting == {"t": point}


def test_each_way_to_name_an_ending_point_is_understood() -> None:
    assert source(endingOffsets='{"t": -1}').ending == {"t": LATEST}
    assert source(endingTimestamp="3").ending == {"t": Point("time", 3)}


def test_the_transport_is_the_user_s_choice_or_that_of_the_environment() -> None:
    assert (source().transport, sink().transport) == (None, None)
    assert (source(transport="TCP").transport, sink(transport="auto").transport) == ("tcp", "auto")


def test_the_url_may_be_a_list_of_brokers_but_not_of_a_bucket_and_a_broker() -> None:
    url = "tcp://a:4153,tcp://b:4153"
    assert (source(url=url).url, sink(url=url).url) == (url, url)
    assert not source(url=url).from_bucket
    with pytest.raises(UsageError, match="names a bucket and a broker"):
        source(url="file:///bucket,tcp://a:4153")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": ""}, r"no topic is given: use \.option\('topic', NAME\)"),
        ({"topic": "a b"}, "is not legal"),
        ({"subscribe": "t"}, "give only one of them"),
        ({"subscribePattern": "t.*"}, "'topic' and 'subscribePattern' both .* only one of them"),
        ({"assign": "{}"}, "name the parts with option 'subscribe'"),
        ({"transport": "ipc"}, "takes 'auto' or 'tcp'"),
        ({"kafka.bootstrap.servers": "h"}, "option 'url'"),
        ({"kafka.client.id": "h"}, "name the broker with option 'url'"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"startingOffsets": "first"}, '"earliest", "latest" or JSON such as {"t": 17}'),
        ({"startingOffsets": "[1]"}, 'JSON such as {"t": 17}'),
        ({"startingOffsets": '{"u": 1}'}, "it names u, and the query reads t"),
        (
            {"startingOffsets": '{"t": -3}'},
            "topic t is -3, but must be a whole number of at least -2",
        ),
        ({"startingOffsets": '{"t": true}'}, "topic t is True, but"),
        ({"startingOffsets": '{"t": {"x": 3}}'}, "partitions of topic t are numbers"),
        ({"startingOffsets": '{"t": {}}'}, "not none"),
        ({"startingOffsets": '{"t": {"0": 3, "256": 3}}'}, "partitions of topic t are numbers"),
        ({"startingOffsets": "latest"}, "leaves nothing to read"),
        ({"startingOffsets": '{"t": -1}'}, "leaves nothing to read"),
        ({"endingOffsets": "earliest"}, "leaves nothing to read"),
        ({"startingTimestamp": "yesterday"}, "whole number of at least 0"),
        ({"minPartitions": "9" * 30}, "whole number"),
        ({"failOnDataLoss": "maybe"}, "'true' or 'false'"),
        ({"channel": "c"}, r"use spark\.readStream"),
        ({"columns": "value,nope"}, "unknown column 'nope'"),
        ({"columns": "value,Value"}, "one twice"),
        ({"columns": ","}, "it names no column"),
        ({"timeout": "soon"}, "it takes seconds"),
        ({"timeout": "0"}, "it takes seconds"),
        ({"timeout": "nan"}, "it takes seconds"),
        ({"maxOffsetsPerTrigger": "5"}, r"'maxOffsetsPerTrigger' is not allowed .*readStream"),
        ({"txnAppId": "a"}, "'txnAppId' is for writing and has no effect here: leave it out"),
        ({"ssl": "true"}, "'ssl' is not an option of zsq: .*'keyFile'"),
        ({"userName": "u"}, "'username' is not an option of zsq: .*'keyFile'"),
    ],
)
def test_each_wrong_option_of_a_batch_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        source(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "whole number of at least 1"),
        ({"maxOffsetsPerTrigger": "1m"}, "whole number"),
        ({"maxBytesPerTrigger": "1x"}, "1048576 or 1m"),
    ],
)
def test_each_wrong_limit_of_a_stream_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        source(True, **options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(UsageError, match=r"has no end; use spark\.read"):
        source(True, **{name: '{"t": 1}' if "Offsets" in name else "1"})


def test_options_of_streams_and_batches_are_taken_while_neither_is_known() -> None:
    given = {"topic": "t", "startingOffsets": "latest", "channel": "c", "endingOffsets": '{"t": 7}'}
    found = source_options(given, URL, streaming=None)
    assert (found.starting, found.channel, found.ending) == (
        {"t": LATEST},
        "c",
        {"t": Point("offset", 7)},
    )


def test_columns_are_taken_in_the_order_given() -> None:
    assert source(columns="Offset, value,HEADERS").columns == ("offset", "value", "headers")


def test_foreign_options_are_left_alone() -> None:
    given = {"path": "/x", "checkpointLocation": "/y", "mergeSchema": "true", "header": "true"}
    assert (source(**given).topics, source(**given).unknown) == (("t",), ("header",))
    assert sink(topic="t", **given).unknown == ("header",)


@pytest.mark.parametrize(
    ("streaming", "options", "text"),
    [
        (False, {"txnAppId": "a"}, "belong together"),
        (False, {"txnVersion": "1"}, "belong together"),
        (False, {"txnAppId": "a", "txnVersion": "-1"}, "whole number of at least 0"),
        (False, {"txnAppId": "", "txnVersion": "1"}, "it must be 1 to 256 bytes"),
        (False, {"txnAppId": "ä" * 129, "txnVersion": "1"}, "is 258 bytes"),
        (True, {"txnAppId": "a", "txnVersion": "1"}, "foreachBatch"),
        (False, {"subscribe": "t"}, "'subscribe' is for reading .*'topic', or in a column"),
        (True, {"startingOffsets": "latest", "topic": "t"}, "'startingOffsets' is for reading"),
        (False, {"bucket": "auto", "topic": "t"}, "'bucket' is for reading"),
        (False, {"sasl.mechanism": "PLAIN"}, "is not an option of zsq: .*'keyFile'"),
        (False, {"startingOffset": "latest", "topi": "t"}, "did you mean 'topic'"),
        (False, {"topic": "a,b"}, "not legal"),
        (True, {"topic": "t#ephemeral"}, "use one on disk"),
        (False, {"topics": "t"}, "did you mean 'topic'"),
    ],
)
def test_each_wrong_option_of_a_sink_is_refused(
    streaming: bool, options: dict[str, str], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        sink(streaming, **options)
