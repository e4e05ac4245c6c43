"""Dramatiq's own tests of brokers and workers, run with ZSQ's broker and a real broker of ZSQ.

They come from the source archive of the installed Dramatiq, and run in processes of their own,
because they replace the broker of the process. `support.dramatiq_peer` has the fixtures. The tests
for `StubBroker`, for the one for Redis, and for the one for RabbitMQ get ZSQ's broker. Tests that
use no broker are not run. Several processes share the tests, each with its own topics, because the
tests mostly wait. Those that failed are repeated once, because some of them measure time.

`DIFFERENT` lists the tests that do not fit ZSQ. They run, too, and must fail. `LEFT_OUT` lists what
is not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from support.broker import Broker
from support.peer_sources import check_file, outcomes_in, played, source_of

RUN_S: Final = 400.0
TEST_S: Final = 60
PROCESSES: Final = 6
pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * RUN_S)]
SOURCE: Final = source_of("dramatiq") / "tests"
FILES: Final = (
    "test_actors",
    "test_broker",
    "test_callbacks",
    "test_cli",
    "test_composition",
    "test_encoders",
    "test_generic_actors",
    "test_messages",
    "test_rabbitmq",
    "test_redis",
    "test_results",
    "test_stub_broker",
    "test_worker",
)
DECLARED: Final = "a queue is declared when a message is sent, as with Redis and RabbitMQ"
NOT_DECLARED: Final = "it consumes a queue that was not declared, which `StubBroker` refuses, too"
OF_STUB: Final = "it puts something that is no message into the dead letters"
OF_REDIS: Final = "it uses commands of Redis"
OF_RABBITMQ: Final = "it uses connections or methods of RabbitMQ's client"
_STUB: Final = "test_stub_broker.test_stub_broker"
_RABBITMQ: Final = "test_rabbitmq.test_rabbitmq"
DIFFERENT: Final = {
    f"{_STUB}_can_be_flushed": OF_STUB,
    f"{_STUB}_raises_queue_error_when_enqueueing_messages_on_undeclared_queues": DECLARED,
    f"{_RABBITMQ}_consumers_ignore_unknown_messages_in_ack_and_nack": NOT_DECLARED,
    f"{_RABBITMQ}_broker_can_enqueue_messages_with_priority": (
        "`broker_priority` is an option for RabbitMQ's broker only"
    ),
    f"{_RABBITMQ}_broker_stops_retrying_declaring_queues_when_max_attempts_reached": OF_RABBITMQ,
    f"{_RABBITMQ}_broker_reconnects_after_enqueue_failure": OF_RABBITMQ,
    f"{_RABBITMQ}_connections_can_be_deleted_multiple_times": OF_RABBITMQ,
    f"{_RABBITMQ}_channels_can_be_deleted_multiple_times": OF_RABBITMQ,
    f"{_RABBITMQ}_broker_retries_declaring_queues_when_connection_related_errors_occur": (
        OF_RABBITMQ
    ),
    f"{_RABBITMQ}_broker_consuming_messages_re_declares_queues_when_declared_queue_disappears": (
        OF_RABBITMQ
    ),
    f"{_RABBITMQ}_broker_enqueueing_message_re_declares_queues_when_declared_queue_disappears": (
        OF_RABBITMQ
    ),
    "test_redis.test_redis_unacked_messages_can_be_requeued": OF_REDIS,
    "test_redis.test_redis_consumer_ack_can_retry_on_connection_error": OF_REDIS,
    "test_redis.test_redis_consumer_nack_can_retry_on_connection_error": OF_REDIS,
}
RACE: Final = "it expects that a worker has a message some milliseconds after it was sent"
# The names are beginnings of names.
LEFT_OUT: Final = {
    "test_cli.py::test_cli_fails_to_start": "it is about arguments of the command line",
    "test_cli.py::test_cli_worker_fork_timeout": "it is about arguments of the command line",
    "test_rabbitmq.py::test_rabbitmq_workers_handle_rabbit_failures": "it calls `rabbitmqctl`",
    "test_redis.py::test_redis_dead_lettered_messages_are_cleaned_up": (
        "the dead letters of ZSQ stay until they are removed, and it sends 16,000 messages for that"
    ),
    "test_redis.py::test_redis_join_race_condition": "its actors use commands of Redis",
    "test_stub_broker.py::test_stub_broker_respects_prefetch": RACE,
    "test_worker.py::test_workers_process_messages_in_order": RACE,
}
Outcomes = Mapping[str, str]
_number: Final = count()


def run(folder: Path, broker: Broker, chosen: Iterable[str], nth: str = "0/1") -> Outcomes:
    """Run these tests of Dramatiq. Return `passed`, `skipped` or the error of each."""
    number = next(_number)
    report = folder / f"report{number}.xml"
    command = [
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:zsq", "-p", "no:xdist",
        "-p", "support.dramatiq_peer", "-p", "support.every_nth", f"--rootdir={folder}",
        f"--timeout={TEST_S}", f"--junitxml={report}",
        *(f"--deselect=tests/{one}" for one in LEFT_OUT), *chosen,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "DRAMATIQ_PREFIX": f"dramatiq{number}.",
        "DRAMATIQ_URL": broker.tcp,
        "EVERY_NTH": nth,
        # Dramatiq's command starts `python` when it gets SIGHUP.
        "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return outcomes_in(report, "tests.")


def is_bad(name: str, result: str) -> bool:
    return result != "passed" and name not in DIFFERENT


def node_of(name: str) -> str:
    """Return the argument of pytest for a test of the report, as `FILE.TEST`."""
    file, _, test = name.partition(".")
    return f"tests/{file}.py::{test}"


@pytest.fixture(scope="module")
def outcomes(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("dramatiq")
    shutil.copytree(SOURCE, folder / "tests")
    # The archive has no `__init__.py`. The programs that tests start import this one, too.
    (folder / "tests" / "__init__.py").write_text("import support.dramatiq_peer\n")
    files = [f"tests/{file}.py" for file in FILES]
    runs = [partial(run, folder, broker, files, f"{nth}/{PROCESSES}") for nth in range(PROCESSES)]
    return played(
        runs, PROCESSES, is_bad, lambda bad: run(folder, broker, [node_of(one) for one in bad])
    )


@pytest.mark.parametrize("file", FILES)
def test_dramatiqs_tests_pass(outcomes: Outcomes, file: str) -> None:
    results = check_file(outcomes, file, is_bad)
    print(f"{file}: {results.count('passed')} of {len(results)} passed")
    assert "passed" in results, f"nothing of {file} has run"


@pytest.mark.parametrize("test", DIFFERENT)
def test_each_test_that_differs_fails(outcomes: Outcomes, test: str) -> None:
    assert outcomes[test] != "passed", "take it out of the list"


@pytest.mark.parametrize("test", LEFT_OUT)
def test_each_test_that_is_left_out_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}" in (SOURCE / file).read_text(), "take it out of the list"
