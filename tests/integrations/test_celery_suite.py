"""Celery's own integration tests, run with `zsq://`, a real broker, and files for the results.

They come from the source archive of the installed Celery. They run in processes of their own,
because they start a worker in the process of the tests, and change what Celery has once for each
process. Several processes share a file, each with its own prefix, because the tests mostly wait:
each of them asks the worker for its state for a second. Celery marks most of them as flaky, to be
repeated up to five times. Here, those that failed are repeated once.

`DIFFERENT` lists the tests that do not fit ZSQ. They run, too, and must fail. `LEFT_OUT` lists what
is not run. Tests that need Redis for the results skip themselves, unless $TEST_BACKEND is the URL
of a Redis, whose host and port are $REDIS_HOST and $REDIS_PORT. Then one process runs at a time,
because the tests share keys. With ZSQ_CELERY_TESTS=all, more files are run.
"""

from __future__ import annotations

import os
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

ALL: Final = os.environ.get("ZSQ_CELERY_TESTS") == "all"
RUN_S: Final = 3600.0 if ALL else 800.0
TEST_S: Final = 300
pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * RUN_S)]
SOURCE: Final = source_of("celery")
# How many processes share the tests of a file. Some tests of `test_beat` and `test_worker` fail in
# a process in which some others have run.
SHORT: Final = {"test_tasks": 5, "test_inspect": 2}
LONG: Final = {"test_canvas": 5, "test_group_chains": 1, "test_worker": 1, "test_beat": 1}
FILES: Final = SHORT | (LONG if ALL else {})
IN_FILES: Final = "with results in files, it also fails with Redis as the broker"
_CHAIN: Final = "test_canvas.test_chain.test_header_failure_fails_the_chords_after"
DIFFERENT: Final = {
    "test_inspect.test_Inspect.test_scheduled": "a task with an ETA waits at the broker",
    f"{_CHAIN}_it[1]": IN_FILES,
    f"{_CHAIN}_it[2]": IN_FILES,
    f"{_CHAIN}_a_group_body": IN_FILES,
    "test_canvas.test_chord.test_error_propagates_from_chord": IN_FILES,
}
LEFT_OUT: Final = {
    "test_tasks.py::test_tasks::test_revoked_by_headers_complex_canvas": (
        "its tasks sleep for more than the 20 s that it has; with Redis it fails, too"
    ),
    "test_canvas.py::test_chain::test_chord_header_id_duplicated_on_rabbitmq_msg_duplication": (
        "it publishes a property that JSON cannot represent, which only RabbitMQ's transport drops"
    ),
}
PROCESSES: Final = sum(SHORT.values())
Outcomes = Mapping[str, str]
_number: Final = count()


def run(folder: Path, broker: Broker, chosen: Iterable[str], nth: str = "0/1") -> Outcomes:
    """Run these tests of Celery. Return `passed`, `skipped` or the error of each."""
    number = next(_number)
    report = folder / f"report{number}.xml"
    results = folder / f"results{number}"
    results.mkdir()
    command = [
        sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:zsq", "-p",
        "no:xdist", "-p", "celery.contrib.pytest", "-p", "support.every_nth",
        f"--rootdir={SOURCE}", f"--timeout={TEST_S}", f"--junitxml={report}",
        *(f"--deselect=t/integration/{one}" for one in LEFT_OUT), *chosen,
    ]  # fmt: skip
    programs = os.path.dirname(sys.executable)  # a test starts `celery`
    environment = {
        "TEST_BACKEND": f"file://{results}",
        **os.environ,
        "EVERY_NTH": nth,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "TEST_BROKER": f"zsq://127.0.0.1:{broker.port}/celery{number}",
        "WORKER_LOGLEVEL": "INFO",  # two tests read what the worker logs
    }
    done = subprocess.run(
        command,
        cwd=SOURCE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return outcomes_in(report, "t.integration.")


def differs(name: str) -> bool:
    """Return True if this test must fail here."""
    other_results = "TEST_BACKEND" in os.environ
    return name in DIFFERENT and not (other_results and DIFFERENT[name] == IN_FILES)


def is_bad(name: str, result: str) -> bool:
    return result not in {"passed", "skipped"} and not differs(name)


def node_of(name: str) -> str:
    """Return the argument of pytest for a test of the report, as `FILE.CLASS.TEST[PARAMETER]`."""
    path, bracket, parameter = name.partition("[")
    file, *rest = path.split(".")
    return "::".join((f"t/integration/{file}.py", *rest)) + bracket + parameter


@pytest.fixture(scope="module")
def outcomes(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("celery")
    runs = [
        partial(run, folder, broker, [f"t/integration/{file}.py"], f"{nth}/{step}")
        for file, step in FILES.items()
        for nth in range(step)
    ]
    processes = 1 if "TEST_BACKEND" in os.environ else PROCESSES
    return played(
        runs, processes, is_bad, lambda bad: run(folder, broker, [node_of(one) for one in bad])
    )


@pytest.mark.parametrize("file", FILES)
def test_celerys_tests_pass(outcomes: Outcomes, file: str) -> None:
    results = check_file(outcomes, file, is_bad)
    print(f"{file}: {results.count('passed')} passed, {results.count('skipped')} skipped")
    needs_redis = file == "test_group_chains" and "passed" not in results
    assert needs_redis or "passed" in results, f"nothing of {file} has run"


@pytest.mark.parametrize(
    "test", [test for test in DIFFERENT if test.partition(".")[0] in FILES and differs(test)]
)
def test_each_test_that_differs_fails(outcomes: Outcomes, test: str) -> None:
    assert outcomes[test] not in {"passed", "skipped"}, "take it out of the list"


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("test_worker.test_run_worker", "test_worker.py::test_run_worker"),
        ("test_tasks.test_tasks.test_eta", "test_tasks.py::test_tasks::test_eta"),
        ("test_beat.test_x.test_y[1.5-a]", "test_beat.py::test_x::test_y[1.5-a]"),
    ],
)
def test_a_failed_test_can_be_repeated_by_its_name(name: str, node: str) -> None:
    assert node_of(name) == f"t/integration/{node}"
