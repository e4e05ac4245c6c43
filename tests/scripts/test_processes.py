"""Tests of what the benchmarks and the demo see of processes, and how they kill a broker."""

from __future__ import annotations

import os
import subprocess

from local_setup.processes import cpu_s, descendants, kill_group, stat_fields


def test_all_processes_of_a_group_are_killed_also_those_of_a_child() -> None:
    family = subprocess.Popen(
        ["sh", "-c", "sh -c 'sleep 600 & echo started; wait' & wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert family.stdout is not None
    assert family.stdout.readline() == b"started\n"
    children = descendants(family.pid)
    assert len(children) == 2
    assert kill_group(family) == 3
    assert all(stat_fields(pid)[:1] in ([], ["Z"], ["X"]) for pid in children)
    family.stdout.close()


def test_processor_time_is_that_of_all_processes_that_live() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert cpu_s([ended.pid]) == 0.0
    assert 0 < cpu_s([os.getpid()]) <= cpu_s([os.getpid(), ended.pid, os.getpid()])
