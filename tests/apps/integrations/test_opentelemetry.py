"""Tests of tracing with OpenTelemetry, with the SDK's exporter, at the brokers for tests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import zsq
import zsq.aio
from zsq.apps.integrations.opentelemetry import ZsqInstrumentor, context_of
from zsq.testing import MemoryBroker, Namespace
from zsq.transport.block.block_format import HEADERS_BYTES_MAX
from zsq.transport.wire.codec import HEADERS_MAX

WAIT_S = 30.0


class Traces:
    """The spans of a test."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, operation: str) -> list[ReadableSpan]:
        return [
            span
            for span in self.exporter.get_finished_spans()
            if span.name.split(" ")[0] == operation
        ]

    def one(self, operation: str) -> ReadableSpan:
        [span] = self.named(operation)
        return span


@pytest.fixture
def traces() -> Iterator[Traces]:
    found = Traces()
    instrumentor = ZsqInstrumentor()
    instrumentor.instrument(tracer_provider=found.provider)
    yield found
    instrumentor.uninstrument()


@pytest.fixture
def space(zsq_memory: MemoryBroker) -> Iterator[Namespace]:
    with Namespace(zsq_memory) as one:
        yield one


def links_of(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_message_carries_the_context_of_its_publish(space: Namespace, traces: Traces) -> None:
    with traces.tracer.start_as_current_span("request") as request:
        space.publish("t", b"body", headers={"own": 1})
    span = traces.one("publish")
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    [message] = space.messages("t")
    trace_id, flags = span.context.trace_id, span.context.trace_flags
    assert message.headers == {
        "own": 1,
        "traceparent": f"00-{trace_id:032x}-{id_of(span):016x}-{flags:02x}",
    }
    assert (span.name, span.kind) == (f"publish {space.topic('t')}", SpanKind.PRODUCER)
    host, port = space.url.removeprefix("tcp://").split(":")
    assert attributes(span) == {
        "messaging.system": "zsq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": space.topic("t"),
        "messaging.message.body.size": 4,
        "server.address": host,
        "server.port": int(port),
    }


def test_headers_of_the_program_are_kept(space: Namespace, traces: Traces) -> None:
    own = f"00-{7:032x}-{8:016x}-01"
    space.publish("t", b"", headers={"traceparent": own})
    assert space.messages("t")[0].headers == {"traceparent": own}


@pytest.mark.parametrize(
    "headers",
    [{"n": "x" * (HEADERS_BYTES_MAX - 10)}, {str(number): 0 for number in range(HEADERS_MAX)}],
    ids=["bytes", "count"],
)
def test_a_publish_at_the_limits_of_headers_works_as_without_tracing(
    space: Namespace, traces: Traces, headers: Any
) -> None:
    """There is no room for the context."""
    space.publish("t", b"", headers=headers)
    space.producer().publish_many(space.topic("t"), [b"", b""], headers=[headers, None])
    found = [dict(message.headers) for message in space.messages("t")]
    assert found[:2] == [headers, headers]
    assert found[2].keys() == {"traceparent"}
    with pytest.raises(zsq.UsageError, match="headers"):
        space.publish("t", b"", headers={**headers, "more": "x" * 100})


@pytest.mark.parametrize("headers", [None, {"n": 1}, [{"n": 1}, None]])
def test_all_messages_of_a_call_have_the_context_of_its_span(
    space: Namespace, traces: Traces, headers: Any
) -> None:
    space.producer().publish_many(space.topic("t"), [b"a", b"b"], headers=headers)
    span = traces.one("publish_many")
    found = [dict(message.headers) for message in space.messages("t")]
    assert len({one.pop("traceparent") for one in found}) == 1
    expected = headers if isinstance(headers, list) else [headers, headers]
    assert found == [one or {} for one in expected]
    assert attributes(span)["messaging.batch.message_count"] == 2


def test_a_receive_and_an_answer_are_linked_to_the_publish(
    space: Namespace, traces: Traces
) -> None:
    consumer = space.consumer("t", "c")
    assert consumer.receive(0.05) is None
    assert traces.named("receive") == []
    space.publish("t", b"body")
    message = consumer.receive(WAIT_S)
    assert message is not None
    with traces.tracer.start_as_current_span("loop") as loop:
        message.finish(sync=True)
    published, received, finished = (traces.one(name) for name in ("publish", "receive", "finish"))
    assert links_of(received) == links_of(finished) == [id_of(published)]
    assert (received.kind, finished.kind) == (SpanKind.CLIENT, SpanKind.CLIENT)
    assert finished.parent is not None
    assert finished.parent.span_id == loop.get_span_context().span_id
    for span, name, kind in ((received, "receive", "receive"), (finished, "finish", "settle")):
        assert (
            attributes(span).items()
            >= {
                "messaging.system": "zsq",
                "messaging.operation.name": name,
                "messaging.operation.type": kind,
                "messaging.destination.name": space.topic("t"),
                "messaging.destination.subscription.name": "c",
                "messaging.message.id": message.id,
                "messaging.message.body.size": 4,
                "messaging.zsq.message.attempts": 1,
            }.items()
        )


def test_a_delivery_is_linked_to_each_publish(space: Namespace, traces: Traces) -> None:
    for number in range(3):
        space.publish("t", b"%d" % number)
    consumer = space.consumer("t", "c")
    count = 0
    while count < 3:
        batch = consumer.receive_batch(WAIT_S)
        assert batch is not None
        count += len(batch)
        batch.finish()
    published = {id_of(span) for span in traces.named("publish")}
    for name in ("receive_batch", "finish"):
        spans = traces.named(name)
        assert {link for span in spans for link in links_of(span)} == published
        assert sum(attributes(span)["messaging.batch.message_count"] for span in spans) == 3


def test_an_iteration_makes_a_span_for_each_message(space: Namespace, traces: Traces) -> None:
    space.producer().publish_many(space.topic("t"), [b"a", b"b"])
    consumer = space.consumer("t", "c")
    for message in consumer:
        message.finish()
        if message.body == b"b":
            break
    assert len(traces.named("receive")) == len(traces.named("finish")) == 2


def test_a_handler_continues_the_trace_of_the_publish(space: Namespace, traces: Traces) -> None:
    with traces.tracer.start_as_current_span("request"):
        space.publish("t", b"bad")
        space.publish("t", b"good")
    consumer = space.consumer("t", "c", max_attempts=1)
    inner: list[int] = []

    def handle(message: zsq.Message) -> None:
        inner.append(trace.get_current_span().get_span_context().span_id)
        if message.body == b"bad":
            raise ValueError("broken")
        consumer.close()

    consumer.run(handle, on_error=lambda *_: None)
    bad, good = traces.named("process")
    published = traces.named("publish")
    for span, publish in zip((bad, good), published, strict=True):
        assert span.parent is not None
        assert (span.parent.span_id, span.context.trace_id) == (
            id_of(publish),
            publish.context.trace_id,
        )
        assert span.kind is SpanKind.CONSUMER
        assert attributes(span)["messaging.operation.type"] == "process"
    assert inner == [id_of(bad), id_of(good)]
    assert (bad.status.status_code, good.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert attributes(bad)["error.type"] == "ValueError"
    assert bad.events[0].name == "exception"
    [requeued], [finished] = traces.named("requeue"), traces.named("finish")
    assert requeued.parent is not None
    assert finished.parent is not None
    assert (requeued.parent.span_id, finished.parent.span_id) == (id_of(bad), id_of(good))
    [dead] = space.assert_published("t.c.dead", timeout=WAIT_S)
    assert str(dead.headers["traceparent"]).split("-")[2] == f"{id_of(published[0]):016x}"


def test_asyncio_clients_make_the_same_spans(space: Namespace, traces: Traces) -> None:
    async def main() -> None:
        topic = space.topic("t")
        async with zsq.aio.Producer(space.url) as producer:
            await producer.publish(topic, b"bad")
            await producer.publish_many(topic, [b"good"])
        consumer = zsq.aio.Consumer(topic, "c", url=space.url, max_attempts=1)

        async def handle(message: zsq.aio.Message) -> None:
            if message.body == b"bad":
                raise ValueError("broken")
            await consumer.close()

        await consumer.run(handle, on_error=lambda *_: None)

    asyncio.run(main())
    bad, good = traces.named("process")
    assert bad.parent is not None
    assert good.parent is not None
    assert bad.parent.span_id == id_of(traces.one("publish"))
    assert good.parent.span_id == id_of(traces.one("publish_many"))
    assert (bad.status.status_code, good.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert len(traces.named("receive")) == 2
    requeued, finished = traces.one("requeue"), traces.one("finish")
    assert requeued.parent is not None
    assert finished.parent is not None
    assert (requeued.parent.span_id, finished.parent.span_id) == (id_of(bad), id_of(good))


def test_a_refused_publish_is_an_error(space: Namespace, traces: Traces) -> None:
    with pytest.raises(zsq.UsageError):
        space.producer().publish("a b", b"")
    span = traces.one("publish")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "E_BAD_NAME"


def test_a_loop_of_the_program_can_continue_the_trace(space: Namespace, traces: Traces) -> None:
    space.publish("t", b"a")
    message = space.consumer("t", "c").receive(WAIT_S)
    assert message is not None
    with traces.tracer.start_as_current_span("handle", context=context_of(message)):
        message.finish()
    handled = traces.one("handle")
    assert handled.parent is not None
    assert handled.parent.span_id == id_of(traces.one("publish"))


def test_messages_without_a_context_and_with_a_broken_one_are_received(
    space: Namespace, traces: Traces
) -> None:
    broken: list[dict[str, Any]] = [
        {"traceparent": 7},
        {"traceparent": "nonsense"},
        {"traceparent": b"\xff"},
    ]
    ZsqInstrumentor().uninstrument()
    space.publish("t", b"")
    space.producer().publish_many(space.topic("t"), [b""] * 3, headers=broken)
    ZsqInstrumentor().instrument(tracer_provider=traces.provider)
    consumer = space.consumer("t", "c")
    for _ in range(4):
        assert consumer.receive(WAIT_S) is not None
    assert [links_of(span) for span in traces.named("receive")] == [[]] * 4


def test_after_uninstrument_nothing_is_traced(space: Namespace, traces: Traces) -> None:
    ZsqInstrumentor().uninstrument()
    space.publish("t", b"a")
    message = space.consumer("t", "c").receive(WAIT_S)
    assert message is not None
    message.finish()
    assert traces.exporter.get_finished_spans() == ()
    assert message.headers == {}


def test_suppressed_instrumentation_makes_no_span(space: Namespace, traces: Traces) -> None:
    def handle(message: zsq.Message) -> None:
        message.finish()
        consumer.close()

    with suppress_instrumentation():
        space.publish("t", b"a")
        consumer = space.consumer("t", "c")
        consumer.run(handle)
    assert traces.exporter.get_finished_spans() == ()


def test_the_trace_goes_through_a_real_broker(zsq_namespace: Namespace, traces: Traces) -> None:
    zsq_namespace.publish("t", b"later", delay=3600)
    consumer = zsq_namespace.consumer("t", "c", max_attempts=1)
    zsq_namespace.advance(3600)
    message = consumer.receive(WAIT_S)
    assert message is not None
    message.reject("no")
    published = traces.one("publish")
    assert links_of(traces.one("receive")) == links_of(traces.one("reject")) == [id_of(published)]
    assert attributes(published)["server.address"] == zsq_namespace.url.removeprefix("ipc://")
    [dead] = zsq_namespace.assert_published("t.c.dead", timeout=WAIT_S)
    assert str(dead.headers["traceparent"]).split("-")[2] == f"{id_of(published):016x}"


def test_nothing_is_imported_without_the_instrumentor() -> None:
    program = (
        "import sys, zsq, zsq.aio; zsq.Producer, zsq.Consumer, zsq.Admin, zsq.Reader; "
        "sys.exit(any(name.startswith(('opentelemetry', 'wrapt')) for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)


def test_opentelemetry_instrument_finds_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from zsq.testing import MemoryBroker\n"
        "with MemoryBroker() as broker, broker.producer() as producer:\n"
        "    producer.publish('orders', b'x')\n"
    )
    tool = Path(sys.executable).parent / "opentelemetry-instrument"
    options = ("--traces_exporter", "console", "--metrics_exporter", "none")
    ended = subprocess.run(
        [tool, *options, "--logs_exporter", "none", sys.executable, program],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert '"name": "publish orders"' in ended.stdout
