"""Spark in real processes, for tests: a driver, a standalone master and workers. Each runs in a
separate session and is ended by process id.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pyspark
from support.broker import free_port, wait_for
from support.spark_chaos import Gate

START_S = 120.0
TESTS = Path(__file__).resolve().parents[1]
QUIET = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # With this limit a task has many batches, and a test can stop it between two of them.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
}


class SparkFailed(Exception):
    """The error that a command of the driver raised."""


def in_session(leader: int) -> dict[int, str]:
    """Return the process id and command line of each process of a session. Executors and Python
    workers stay in the session of their driver or worker.
    """
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(words[3]) == leader and words[0] != "Z":
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    return found


def end_session(leader: int) -> None:
    """Kill all processes of a session, and repeat it until none is left."""

    def none_left() -> bool:
        left = in_session(leader)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    wait_for(none_left, 20, f"the end of session {leader}")


def spark_home(folder: Path, packages: Path | None = None) -> Path:
    """Return a folder with links to the installed Spark, or to the one in `packages`, so that the
    files that Spark writes below its home directory land in the test's folder.
    """
    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        installed = packages / "pyspark" if packages else Path(pyspark.__path__[0])
        for path in installed.iterdir():
            (home / path.name).symlink_to(path)
    return home


def environment(
    folder: Path, address: str = "127.0.0.1", packages: Path | None = None
) -> dict[str, str]:
    """Return the environment of a process of Spark. Python packages in the folder `packages` take
    precedence over the installed ones.
    """
    return {
        **os.environ,
        "SPARK_HOME": str(spark_home(folder, packages)),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOCAL_IP": address,
        "SPARK_LOCAL_HOSTNAME": address,
        # A JVM that is killed leaves its temporary files in this folder.
        "JDK_JAVA_OPTIONS": f"{os.environ['JDK_JAVA_OPTIONS']} -Djava.io.tmpdir={folder}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, [*([packages] if packages else []), TESTS])),
    }


class Job:
    """A command that the driver carries out."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._answer: dict[str, Any] = {}

    def answered(self, answer: dict[str, Any]) -> None:
        self._answer = answer
        self._done.set()

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def result(self, timeout_s: float = 120.0) -> Any:
        assert self.wait(timeout_s), f"Spark did not answer within {timeout_s:g} s"
        if "error" in self._answer:
            raise SparkFailed(self._answer["error"])
        return self._answer["result"]


class SparkDriver:
    """`support/spark_driver.py` in a separate session. With the master `local-cluster`, the
    executors are in that session too.
    """

    def __init__(
        self,
        folder: Path,
        master: str,
        *,
        address: str = "127.0.0.1",
        packages: Path | None = None,
        **conf: str,
    ) -> None:
        """`conf` has Spark's settings, with `__` in place of dots. `packages` is a folder with
        another version of PySpark than the installed one.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.master, self.address, self.packages = folder, master, address, packages
        self.chaos = folder / "chaos"
        self.chaos.mkdir(exist_ok=True)
        self.log = folder / "driver.log"
        self.conf = {**QUIET, "spark.driver.host": address, "spark.driver.bindAddress": address}
        self.conf |= {key.replace("__", "."): value for key, value in conf.items()}
        self.process: subprocess.Popen[bytes] | None = None
        self.jvm = 0
        self.version = ""
        self._jobs: dict[int, Job] = {}
        self._last = 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> SparkDriver:
        command = [
            sys.executable,
            "-m",
            "support.spark_driver",
            "--master",
            self.master,
            "--chaos",
            str(self.chaos),
        ]
        command += [
            message for key, value in self.conf.items() for message in ("--conf", f"{key}={value}")
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment(self.folder, self.address, self.packages), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        ready = self._jobs[0] = Job()
        self._listener = threading.Thread(
            target=self._listen, args=(self.process, self._jobs), daemon=True
        )
        self._listener.start()
        self.jvm, self.version = ready.result(START_S)["jvm"], ready.result(0)["version"]
        return self

    def _listen(self, process: subprocess.Popen[bytes], jobs: dict[int, Job]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                answer = json.loads(line)
                jobs[answer["id"]].answered(answer)
        for job in list(jobs.values()):
            if not job.wait(0):
                job.answered(
                    {"error": f"the driver is gone; its log ends: {self.log.read_text()[-2000:]}"}
                )

    def submit(self, command: str, **arguments: Any) -> Job:
        assert self.process is not None
        assert self.process.stdin is not None
        self._last += 1
        job = self._jobs[self._last] = Job()
        words = {"id": self._last, "command": command, "arguments": arguments}
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        self.process.stdin.flush()
        return job

    def gate(self, topic: str, point: str, action: str = "wait") -> Gate:
        return Gate(self.chaos, topic, point, action)

    def processes(self) -> dict[int, str]:
        assert self.process is not None
        return in_session(self.process.pid)

    def kill(self) -> None:
        """Send SIGKILL to the program and its JVM. The processes that they leave behind end by
        themselves, or are killed by `close`.
        """
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        os.kill(self.jvm, signal.SIGKILL)
        self.process.wait(20)

    def close(self) -> None:
        if self.process is None:
            return
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        end_session(self.process.pid)
        self.process.wait(40)
        self._listener.join(10)


def met(gate: Gate, job: Job, timeout_s: float = 90.0) -> dict[str, Any]:
    """Return the process that reached the gate. If the job ends before that, raise its error."""
    wait_for(lambda: gate.here() is not None or job.wait(0), timeout_s, f"{gate.rule.name}")
    who = gate.here()
    if who is None:
        job.result(0)
    assert who is not None, f"the job ended without coming to {gate.rule.name}"
    return who


def ranges(folder: Path, *, files: int, rows: int) -> dict[str, str]:
    """Write the source of a streaming query. Two files make one batch of two tasks. Each file
    contains one range of `rows` numbers, which follows that of the file before.
    """
    folder.mkdir()
    for number in range(files):
        line = json.dumps({"first": number * rows, "last": (number + 1) * rows - 1})
        (folder / f"{number:04}.json").write_text(line)
        # Spark takes the oldest file first.
        os.utime(folder / f"{number:04}.json", (number, number))
    return {"format": "json", "path": str(folder), "maxFilesPerTrigger": "2"}


class Standalone:
    """A master, and one worker for each address. Spark treats each address as a separate host."""

    def __init__(
        self, folder: Path, addresses: Sequence[str], *, cores: int = 1, host: str = "127.0.0.1"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.addresses, self.cores, self.host = folder, addresses, cores, host
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://{self.host}:{self.port}"

    def start(self, prefixes: Sequence[Sequence[str]] = ()) -> Standalone:
        """Start the master and the workers. `prefixes` has, for each worker, the words to put
        before its command, such as a command that runs it in a network namespace.
        """
        master = [
            "org.apache.spark.deploy.master.Master",
            "--host",
            self.host,
            "--port",
            str(self.port),
            "--webui-port",
            "0",
        ]
        self._run("master", master, self.host, "New state: ALIVE")
        for number, address in enumerate(self.addresses):
            words = [
                "org.apache.spark.deploy.worker.Worker",
                "--host",
                address,
                "--webui-port",
                "0",
                "-c",
                str(self.cores),
                "-m",
                "1g",
            ]
            words += ["-d", str(self.folder / f"work{number}"), self.url]
            self._run(
                f"worker{number}",
                words,
                address,
                "Successfully registered",
                prefixes[number] if prefixes else (),
            )
        return self

    def _run(
        self, name: str, words: list[str], address: str, ready: str, prefix: Sequence[str] = ()
    ) -> None:
        log = self.folder / f"{name}.log"
        command = [*prefix, str(spark_home(self.folder) / "bin/spark-class"), *words]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment(self.folder, address), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        wait_for(
            lambda: ready in log.read_text() or process.poll() is not None,
            START_S,
            f"Spark's {name}",
        )
        assert process.poll() is None, log.read_text()[-2000:]

    def close(self) -> None:
        for process in reversed(self.processes):
            end_session(process.pid)
            process.wait(40)
