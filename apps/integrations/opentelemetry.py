"""OpenTelemetry: spans for publish, receive, handle and settle, and the trace context in headers.

`opentelemetry-instrument` finds `ZsqInstrumentor` by its entry point. Without it, a program calls
`ZsqInstrumentor().instrument()`. Nothing else of ZSQ imports this module, and without that call
nothing is changed and nothing costs time.

The spans follow the semantic conventions for messaging:

| operation | type | kind | parent | links |
|---|---|---|---|---|
| `publish`, `publish_many` | send | producer | the current span | |
| `receive`, `receive_batch`, iteration | receive | client | the current span | the publishes |
| a handler of `run` | process | consumer | the publish | |
| `finish`, `requeue`, `reject` | settle | client | the current span | the publishes |

A publish writes its context into the headers of each message (W3C `traceparent`, `tracestate` and
`baggage`, or as `OTEL_PROPAGATORS` says). Headers that the program sets itself are kept.

Rejected: a span for each message of `publish_many`. All messages of the call have the context of
its one span. A span for each of 10,000 messages would cost more than the publish.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from time import time_ns
from typing import Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.instrumentation.utils import is_instrumentation_enabled, unwrap
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from wrapt import wrap_function_wrapper

from ... import __version__
from ...transport.client.core.message import BatchView, MessageView
from ...transport.client.core.publish_arguments import as_headers
from ...transport.errors import UsageError, ZsqError
from ...transport.wire.protocol import DEAD

__all__ = ["ZsqInstrumentor", "context_of"]

SCHEMA: Final = "https://opentelemetry.io/schemas/1.28.0"
LINKS_MAX: Final = 128
"""The most links of a span. This is the default limit of the SDK."""
EXAMINED_MAX: Final = 1_000
"""The most messages of a delivery whose headers are read for links."""

_BLOCKING: Final = "zsq.transport.client.blocking"
_ASYNCIO: Final = "zsq.transport.client.asyncio"
_MESSAGES: Final = ("zsq.transport.client.core.message", f"{_ASYNCIO}.aio_consumer")
Call = Callable[..., Any]


def context_of(message: MessageView) -> Context:
    """Return the trace context with which this message was published.

    Use it as the parent of a span for a message that your own loop handles. `Consumer.run` does so
    by itself.
    """
    carrier = {name: value for name, value in message.headers.items() if isinstance(value, str)}
    return propagate.extract(carrier)


def _links(messages: Collection[MessageView]) -> list[Link]:
    """Return a link to each span that has published some of these messages."""
    links: dict[tuple[int, int], Link] = {}
    for _, message in zip(range(EXAMINED_MAX), messages, strict=False):
        context = trace.get_current_span(context_of(message)).get_span_context()
        if context.is_valid and len(links) < LINKS_MAX:
            links[context.trace_id, context.span_id] = Link(context)
    return list(links.values())


def _with_context(headers: Any) -> Any:
    """Return the headers of a publish with the current context. Headers that are set win."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if headers is None or isinstance(headers, Mapping):
        return _joined(carrier, headers)
    if isinstance(headers, list | tuple):
        return [_joined(carrier, entry) for entry in headers]
    return headers  # the publish raises the error


def _joined(carrier: Mapping[str, str], headers: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the headers with the context, or without it if both are over the limits.

    A publish that works without tracing must work with it, too.
    """
    if not headers:
        return carrier
    joined = {**carrier, **headers}
    try:
        as_headers(joined)
    except (UsageError, TypeError):
        return headers  # the publish raises the error, if it is one of the program
    return joined


def _place(client: Any) -> dict[str, Any]:
    """Return the address of the broker, as the client was given it."""
    address = getattr(client, "_address", None) or client._options[0]
    first = address.each[0]
    if first.direct:
        return {"server.address": first.url.removeprefix("ipc://")}
    host, port = first.place()
    return {"server.address": host, "server.port": port}


def _common(operation: str, kind: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": "zsq",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


def _consumed(operation: str, kind: str, consumer: Any, received: Any) -> dict[str, Any]:
    return {
        **_common(operation, kind, received.topic),  # the consumer may have several topics
        "messaging.destination.subscription.name": consumer.channel,
        **_place(consumer),
    }


def _about(received: Any) -> dict[str, Any]:
    """Return the attributes of one message, or of a delivery."""
    if isinstance(received, BatchView):
        return {"messaging.batch.message_count": len(received)}
    about: dict[str, Any] = {
        "messaging.message.id": received.id,
        "messaging.message.body.size": len(received.body),
        "messaging.zsq.message.attempts": received.attempts,
    }
    if received.part is not None:
        about["messaging.destination.partition.id"] = str(received.part)
    return about


def _messages(received: Any) -> Collection[MessageView]:
    return received.messages() if isinstance(received, BatchView) else (received,)


def _failed(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    kind = error.code if isinstance(error, ZsqError) else type(error).__qualname__
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, str(error)))


class _Tracing:
    """The wrappers of the clients' methods, for one tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        links: list[Link] | None = None,
        context: Context | None = None,
    ) -> Iterator[Span]:
        """Make a span the current one. An error that leaves the `with` block is recorded."""
        with self.tracer.start_as_current_span(
            name,
            context,
            kind,
            dict(attributes),
            links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                _failed(span, error)
                raise

    # Publishing

    @contextmanager
    def _publishing(
        self, operation: str, producer: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """Yield the options of the publish, with the context of its span."""
        topic = args[0] if args else options.get("topic")
        published = args[1] if len(args) > 1 else options.get("body", options.get("bodies"))
        attributes = {**_common(operation, "send", str(topic)), **_place(producer)}
        if operation == "publish" and isinstance(published, bytes | bytearray):
            attributes["messaging.message.body.size"] = len(published)
        elif isinstance(published, list | tuple):
            attributes["messaging.batch.message_count"] = len(published)
        with self._span(f"{operation} {topic}", SpanKind.PRODUCER, attributes):
            yield {**options, "headers": _with_context(options.get("headers"))}

    def publish(self, wrapped: Call, producer: Any, args: Any, options: Any) -> Any:
        if not is_instrumentation_enabled():
            return wrapped(*args, **options)
        with self._publishing(wrapped.__name__, producer, args, options) as traced:
            return wrapped(*args, **traced)

    async def publish_async(self, wrapped: Call, producer: Any, args: Any, options: Any) -> Any:
        if not is_instrumentation_enabled():
            return await wrapped(*args, **options)
        with self._publishing(wrapped.__name__, producer, args, options) as traced:
            return await wrapped(*args, **traced)

    # Receiving. The span is made when something was received, because its links and attributes are
    # known only then. Waiting for nothing makes no span.

    def _received(self, operation: str, consumer: Any, received: Any, since_ns: int) -> Any:
        if received is not None and is_instrumentation_enabled():
            attributes = {
                **_consumed(operation, "receive", consumer, received),
                **_about(received),
            }
            self.tracer.start_span(
                f"{operation} {received.topic}",
                kind=SpanKind.CLIENT,
                attributes=attributes,
                links=_links(_messages(received)),
                start_time=since_ns,
            ).end()
        return received

    def receive(self, wrapped: Call, consumer: Any, args: Any, options: Any) -> Any:
        since_ns = time_ns()
        return self._received(
            wrapped.__name__.lstrip("_"), consumer, wrapped(*args, **options), since_ns
        )

    async def receive_async(self, wrapped: Call, consumer: Any, args: Any, options: Any) -> Any:
        since_ns = time_ns()
        received = await wrapped(*args, **options)
        return self._received(wrapped.__name__.lstrip("_"), consumer, received, since_ns)

    def iterate(self, wrapped: Call, consumer: Any, args: Any, options: Any) -> Iterator[Any]:
        """Make a span for each message. The blocking iteration does not call `receive`."""
        messages = wrapped(*args, **options)
        try:
            since_ns = time_ns()
            for message in messages:
                yield self._received("receive", consumer, message, since_ns)
                since_ns = time_ns()
        finally:
            messages.close()

    # Handling

    def _processing(self, message: Any) -> Any:
        consumed = _consumed("process", "process", message._batch.owner, message)
        attributes = {**consumed, **_about(message)}
        name = f"process {message.topic}"
        return self._span(name, SpanKind.CONSUMER, attributes, context=context_of(message))

    def made_runner(self, wrapped: Call, runner: Any, args: Any, options: Any) -> None:
        """Let the handler's errors be recorded. `Runner.handle` catches them."""
        wrapped(*args, **options)
        handler = runner.handler

        def recorded(message: Any) -> Any:
            try:
                return handler(message)
            except BaseException as error:
                _failed(trace.get_current_span(), error)
                raise

        runner.handler = recorded

    def made_runner_async(self, wrapped: Call, runner: Any, args: Any, options: Any) -> None:
        wrapped(*args, **options)
        handler = runner.handler

        async def recorded(message: Any) -> Any:
            try:
                return await handler(message)
            except BaseException as error:
                _failed(trace.get_current_span(), error)
                raise

        runner.handler = recorded

    def handle(self, wrapped: Call, runner: Any, args: Any, options: Any) -> Any:
        if not is_instrumentation_enabled():
            return wrapped(*args, **options)
        with self._processing(args[0]):
            return wrapped(*args, **options)

    async def handle_async(self, wrapped: Call, runner: Any, args: Any, options: Any) -> Any:
        if not is_instrumentation_enabled():
            return await wrapped(*args, **options)
        with self._processing(args[0]):
            return await wrapped(*args, **options)

    # Answering

    def _settling(self, operation: str, received: Any) -> Any:
        batch = received if isinstance(received, BatchView) else received._batch
        consumer = batch.owner
        attributes = {**_consumed(operation, "settle", consumer, received), **_about(received)}
        links = _links(_messages(received))
        return self._span(f"{operation} {received.topic}", SpanKind.CLIENT, attributes, links)

    def settle(self, wrapped: Call, received: Any, args: Any, options: Any) -> Any:
        if not is_instrumentation_enabled():
            return wrapped(*args, **options)
        with self._settling(wrapped.__name__, received):
            return wrapped(*args, **options)

    def give_back(self, wrapped: Call, received: Any, args: Any, options: Any) -> Any:
        if not is_instrumentation_enabled():
            return wrapped(*args, **options)
        is_dead = args[0] == DEAD
        operation = "defer" if options.get("defer") else "reject" if is_dead else "requeue"
        with self._settling(operation, received):
            return wrapped(*args, **options)

    async def settle_async(self, wrapped: Call, received: Any, args: Any, options: Any) -> Any:
        if not is_instrumentation_enabled():
            return await wrapped(*args, **options)
        with self._settling(wrapped.__name__, received):
            return await wrapped(*args, **options)

    def wrappers(self) -> Iterator[tuple[str, str, Call]]:
        """Yield module, method and wrapper of everything that is wrapped."""
        for name in ("publish", "publish_many"):
            yield f"{_BLOCKING}.producer", f"Producer.{name}", self.publish
            yield f"{_ASYNCIO}.aio", f"Producer.{name}", self.publish_async
        for name in ("_receive", "receive_batch"):  # `run` calls the first one, too
            yield f"{_BLOCKING}.consumer", f"Consumer.{name}", self.receive
            yield f"{_ASYNCIO}.aio_consumer", f"Consumer.{name}", self.receive_async
        yield f"{_BLOCKING}.consumer", "Consumer.__iter__", self.iterate
        yield f"{_BLOCKING}.runner", "Runner.__init__", self.made_runner
        yield f"{_BLOCKING}.runner", "Runner.handle", self.handle
        yield f"{_ASYNCIO}.aio_runner", "Runner.__init__", self.made_runner_async
        yield f"{_ASYNCIO}.aio_runner", "Runner.handle", self.handle_async
        for module, settle in zip(_MESSAGES, (self.settle, self.settle_async), strict=True):
            for kind in ("Message", "Batch"):
                yield module, f"{kind}.finish", settle
        # Where `requeue`, `defer` and `reject` end, those of `run` too.
        for kind in ("MessageView", "BatchView"):
            yield _MESSAGES[0], f"{kind}._give_back", self.give_back


class ZsqInstrumentor(BaseInstrumentor):
    """Trace the clients of this process, blocking and asyncio, until `uninstrument`.

    `instrument(tracer_provider=None)`: the provider of the tracer. The default is the global one.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        return ("zsq",)

    def _instrument(self, **options: Any) -> None:
        provider = options.get("tracer_provider")
        tracer = trace.get_tracer("zsq", __version__, provider, SCHEMA)
        for module, name, wrapper in _Tracing(tracer).wrappers():
            wrap_function_wrapper(module, name, wrapper)

    def _uninstrument(self, **options: Any) -> None:
        for module, name, _ in _Tracing(trace.NoOpTracer()).wrappers():
            kind, _, method = name.partition(".")
            unwrap(getattr(import_module(module), kind), method)
