"""How runs are dealt to processes: evenly, like to like, and none twice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.core.errors import ConfigError
from llmrl.sweeps.backends.local import Local
from llmrl.sweeps.backends.protocol import Hardware, Job, Pack
from llmrl.sweeps.backends.slurm_submission import Slurm
from llmrl.sweeps.packing import TOGETHER, SharedTask, dealt, packed_into, packed_over, put_back, works_of
from llmrl.sweeps.work import JobWork, RowEnd

CPU = Hardware(Slurm(), "cpu", "highest", threads=1, cores=None, memory_gb=2, gpus=0, parallel=None)
KEYS = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=40)


def jobs(keys: list[str | None], hardware: Hardware = CPU, row_gb: float | None = 0.1) -> list[Job]:
    def config(seed: int) -> dict[str, Any]:
        return {"output_root": "/nowhere", "name": "study", "seed": seed}

    return [Job(config(i), [], hardware, 1, [], key=key, row_gb=row_gb) for i, key in enumerate(keys)]


def check_whole(packs: list[Pack], given_jobs: list[Job]) -> None:
    dealt_out = [job for pack in packs for job in pack.jobs]
    assert sorted(job.config["seed"] for job in dealt_out) == [job.config["seed"] for job in given_jobs]
    for pack in packs:
        keys = {job.key for job in pack.jobs}
        assert len(keys) == 1 and (len(pack.jobs) == 1 or keys != {None})


@given(st.integers(1, 100), st.integers(1, 20))
def test_hands_are_even(n, hands):
    found = dealt(range(n), hands)
    sizes = [len(hand) for hand in found]
    assert len(found) == min(n, hands) and max(sizes) - min(sizes) <= 1
    assert sorted(x for hand in found for x in hand) == list(range(n))


@given(KEYS, st.integers(1, 8))
def test_runs_of_a_key_are_dealt_over_all_places(keys, places):
    given_jobs = jobs(keys)
    packs = packed_over(given_jobs, places, math.inf)
    check_whole(packs, given_jobs)
    processes = Counter(pack.jobs[0].key for pack in packs)
    for key, n in Counter(keys).items():
        assert processes[key] == (n if key is None else min(n, places))


def test_as_many_processes_as_a_machine_has_places():
    assert [len(pack.jobs) for pack in packed_over(jobs(["a"] * 32), 2, 100.0)] == [16, 16]
    assert [len(pack.jobs) for pack in packed_over(jobs(["a"] * 2), 2, 100.0)] == [1, 1]


@given(KEYS, st.integers(1, 8), st.integers(1, 5))
def test_no_more_rows_than_asked_for(keys, places, rows):
    given_jobs = jobs(keys, replace(CPU, rows=rows))
    for packs in (packed_over(given_jobs, places, 1.0), packed_into(given_jobs, places)):
        check_whole(packs, given_jobs)
        assert max(len(pack.jobs) for pack in packs) <= rows


@given(KEYS, st.integers(1, 4), st.floats(0.1, 50.0), st.one_of(st.none(), st.floats(0.01, 3.0)))
def test_rows_have_room_in_their_share_of_memory(keys, places, memory_gb, row_gb):
    given_jobs = jobs(keys, row_gb=row_gb)
    packs = packed_over(given_jobs, places, memory_gb)
    check_whole(packs, given_jobs)
    assert all(len(pack.jobs) == 1 or pack.memory_gb <= memory_gb / places + 1e-9 for pack in packs)


@given(KEYS, st.one_of(st.none(), st.integers(1, 50)))
def test_jobs_of_a_cluster_are_as_many_as_asked_for(keys, n):
    given_jobs = jobs(keys)
    packs = packed_into(given_jobs, n)
    check_whole(packs, given_jobs)
    if n is None or len(keys) <= n:
        assert len(packs) == len(keys), "nothing is packed that has a job of its own"
    else:
        fewest = len(set(keys) - {None}) + keys.count(None)
        assert len(packs) == max(n, fewest)


def test_a_free_cluster_has_a_job_for_every_run():
    nine = jobs(["a"] * 9)
    assert len(Slurm().packs(nine)) == 9
    assert [len(pack.jobs) for pack in Slurm().packs(jobs(["a"] * 9, replace(CPU, jobs=2)))] == [5, 4]


@given(KEYS, st.data())
def test_after_two_deaths_a_run_is_alone(keys, data):
    lost = jobs(["a"] * len(keys))
    deaths = {job.folder: data.draw(st.integers(1, 3)) for job in lost}
    packs = put_back(lost, deaths)
    check_whole(packs, lost)
    for pack in packs:
        for job in pack.jobs:
            assert len(pack.jobs) == 1 or deaths[job.folder] < TOGETHER
    assert sum(deaths[pack.jobs[0].folder] < TOGETHER for pack in packs) <= 1


def test_a_process_needs_what_its_rows_need():
    [pack] = packed_over(jobs(["a"] * 3), 1, 100.0)
    assert pack.memory_gb == pytest.approx(2 + 2 * 0.1)
    [unknown] = packed_over(jobs(["a"] * 3, row_gb=None), 1, 100.0)
    assert unknown.memory_gb == 6 and unknown.cores == 1


def test_a_process_is_told_which_of_its_runs_are_one_batch():
    """Without their keys rows would share a process, and be computed one by one."""
    given_jobs = jobs(["a"] * 3)
    works = works_of(Pack(tuple(given_jobs)), SharedTask(_one, _several), {"A": "1"})
    assert [work.key for work in works.works] == ["a"] * 3 and works.task_rows is _several
    assert all(work.environment == {"A": "1"} and work.task.one is _one for work in works.works)


def _one(config: dict[str, Any], overrides: list[str]) -> float | None:
    raise AssertionError


def _several(works: Sequence[JobWork]) -> list[RowEnd]:
    raise AssertionError


def test_jobs_are_for_backends_that_submit_them():
    with pytest.raises(ConfigError, match=r"hardware\.jobs=2: Local submits no jobs"):
        replace(CPU, backend=Local(), jobs=2)
    limits = [replace(CPU, parallel=p, jobs=j).jobs_at_once for p, j in ((None, None), (3, None), (None, 2), (3, 5))]
    assert limits == [None, 3, 2, 3]


def test_an_array_of_jobs_asks_for_the_largest(tmp_path: Path):
    parameters = Slurm()._parameters(replace(CPU, jobs=2), 1, 3.25)
    assert parameters["mem"] == "3250M" and parameters["array_parallelism"] == 2
