"""Backend of `django.tasks` on ZSQ, and its worker: `python -m zsq.apps.integrations.django`.

Django 6 has the interface, and `django-tasks` has it for older versions. Neither has a worker. A
queue is a topic, and all workers share its channel. A task with `run_after` waits on the broker's
disk. A worker extends the lease of each task that it runs. A task that raises an exception is not
run again, as Django defines it, and becomes a dead letter. Results are not kept.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import click
import django
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.module_loading import import_string

from ...transport.client.blocking.client import Admin, Consumer, Producer
from ...transport.errors import ZsqError
from ...transport.system import node_name
from .naming import CHANNEL, TOPIC_CHARS_MAX, check_lease, legal
from .queues import SETTINGS, QueueTopics
from .source import ConsumerThread, Held, OpenWork

try:
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:  # Django before version 6
    from django_tasks import task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

log = logging.getLogger("zsq")

LEASE_S: Final = 60.0
ID_CHARS: Final = 32
WAIT_S: Final = 1.0


class ZsqBackend(BaseTaskBackend):
    """A backend of `django.tasks`.

    The keys of `OPTIONS`:

    - `url`, `key_file`, `transport`: See `zsq.Producer`.
    - `prefix`: A text before the name of each topic. The default is "django.".
    - `message_timeout`: The seconds after which a task of a killed worker goes to another one.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = False
    supports_priority = False

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = params.get("OPTIONS", {})
        self.client: Any = {name: options.get(name) for name in ("url", "key_file", "transport")}
        self.lease_s = check_lease(float(options.get("message_timeout", LEASE_S)))
        self._prefix = options.get("prefix", "django.")
        self.topics = QueueTopics(Admin(**self.client), Producer(**self.client))

    def topic(self, queue_name: str) -> str:
        """Return the topic of a queue."""
        return legal(f"{self._prefix}{queue_name}", TOPIC_CHARS_MAX)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Publish a task. It is on disk when this returns."""
        self.validate_task(task)
        now = timezone.now()
        result = make_result(task, get_random_string(ID_CHARS), now, list(args), dict(kwargs))
        body = {
            "id": result.id,
            "task": task.module_path,
            "args": result.args,
            "kwargs": result.kwargs,
            "backend": self.alias,
            "queue": task.queue_name,
            "enqueued_at": now.isoformat(),
        }
        delay = None
        if task.run_after is not None:
            # Without USE_TZ, a time may be naive, and `now` is.
            due = task.run_after
            due = timezone.make_aware(due) if timezone.is_naive(due) else due
            delay = max(0.0, (due - datetime.now(UTC)).total_seconds()) or None
        self.topics.publish(self.topic(task.queue_name), json.dumps(body).encode(), delay)
        task_enqueued.send(type(self), task_result=result)
        return result


def make_result(task: Any, id: str, enqueued_at: datetime, args: Any, kwargs: Any) -> Any:
    """Return the result of a task that has not run."""
    return TaskResult(
        task=task,
        id=id,
        status=TaskResultStatus.READY,
        enqueued_at=enqueued_at,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def run(backend: Any, held: Held, worker_id: str) -> None:
    """Run the task of a message, and answer the message."""
    try:
        body = json.loads(held.message.body)
        task = import_string(body["task"])
        if not isinstance(task, Task):
            raise TypeError(f"{body['task']} is not a task")
        task = task.using(backend=body["backend"], queue_name=body["queue"])
        enqueued_at = datetime.fromisoformat(body["enqueued_at"])
        result = make_result(task, body["id"], enqueued_at, body["args"], body["kwargs"])
    except Exception as error:
        log.exception(
            "%s: not a task that this worker knows; it is a dead letter now", held.message
        )
        held.reject(f"not a task of this worker: {error!r}")
        return
    now = timezone.now()
    set_fields(result, status=TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now)
    result.worker_ids.append(worker_id)
    close_old_connections()
    # An error in a receiver of a signal does not decide about the task. Django logs it.
    task_started.send_robust(type(backend), task_result=result)
    try:
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        value = normalize_json(task.call(*context, *result.args, **result.kwargs))
    except BaseException as error:  # also SystemExit, which would end only this thread
        kind = type(error)
        text = "".join(traceback.format_exception(error))
        result.errors.append(
            TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text)
        )
        set_fields(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        log.exception("task %s %s failed; it is a dead letter now", body["task"], result.id)
        held.reject(error)
        # Receivers find the exception in `sys.exc_info`.
        task_finished.send_robust(type(backend), task_result=result)
    else:
        set_fields(
            result,
            status=TaskResultStatus.SUCCESSFUL,
            finished_at=timezone.now(),
            _return_value=value,
        )
        held.finish()
        task_finished.send_robust(type(backend), task_result=result)
    finally:
        close_old_connections()


def set_fields(result: Any, **fields: Any) -> None:
    """Change a result, which is a frozen dataclass, as Django's own backends do."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)


class Worker:
    """Threads that run the tasks of some queues until `stop`."""

    def __init__(self, backend: Any, queues: list[str], threads: int) -> None:
        self._backend = backend
        self._changed = threading.Condition()
        self._stopping = False
        self._tasks = OpenWork()
        self._sources = [self._open(queue, threads) for queue in queues]
        name = f"{node_name()}/{os.getpid()}"
        self._threads = [
            threading.Thread(target=self._work, args=(f"{name}/{number}",))
            for number in range(threads)
        ]

    def _open(self, queue: str, ready: int) -> ConsumerThread:
        backend = self._backend
        topic = backend.topic(queue)
        backend.topics.make(topic, works=True)
        consumer = Consumer(
            topic,
            CHANNEL,
            ready=ready,
            message_timeout=backend.lease_s,
            **SETTINGS,
            **backend.client,
        )
        return ConsumerThread(consumer, ready, backend.lease_s, self._wake, self._tasks)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Let the threads end after their tasks. A signal handler may call this."""
        self._stopping = True

    def work(self) -> None:
        """Run tasks until `stop`. Raises the broker's refusal, if it refuses a queue."""
        for source in self._sources:
            source.start()
        for thread in self._threads:
            thread.start()
        try:
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(WAIT_S)
        finally:
            self._stopping = True
            for source in self._sources:
                source.close()
        for source in self._sources:
            if source.error is not None:
                raise source.error

    def _work(self, worker_id: str) -> None:
        while (held := self._next()) is not None:
            run(self._backend, held, worker_id)

    def _next(self) -> Held | None:
        """Return the next task, or None when the worker stops."""
        with self._changed:
            while not self._stopping and not any(source.error for source in self._sources):
                for source in self._sources:
                    if (held := source.take()) is not None:
                        return held
                self._changed.wait(WAIT_S)
        return None


@click.command()
@click.option("--backend", default="default", help="Alias of the backend in TASKS.")
@click.option("--queue", "queues", multiple=True, help="Queue to work on; all by default.")
@click.option("--threads", default=1, type=click.IntRange(1, 1000), help="Tasks at a time.")
def main(backend: str, queues: tuple[str, ...], threads: int) -> None:
    """Run the tasks of `django.tasks` until SIGTERM or Ctrl-C."""
    module = os.environ.get("DJANGO_SETTINGS_MODULE", "")
    try:
        django.setup()
    except ImproperlyConfigured as error:
        raise click.UsageError(f"DJANGO_SETTINGS_MODULE={module}: {error}") from error
    try:
        task_backend: Any = task_backends[backend]
    except ImproperlyConfigured as error:
        text = f"TASKS of {module} has no backend {backend!r} that can be used: {error}"
        raise click.UsageError(text) from error
    for name in queues:
        if task_backend.queues and name not in task_backend.queues:
            known = ", ".join(sorted(task_backend.queues))
            text = f"queue {name!r} is not one of the backend's: {known}"
            raise click.UsageError(f"{text}. Add it to QUEUES in TASKS")
    names = list(queues) or sorted(task_backend.queues)
    if not names:
        text = (
            f"the backend {backend!r} allows all queues (QUEUES is empty): name them with --queue"
        )
        raise click.UsageError(text)
    try:
        worker = Worker(task_backend, names, threads)
        stop: Callable[..., None] = lambda *_: worker.stop()  # noqa: E731
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        worker.work()
    except ZsqError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
