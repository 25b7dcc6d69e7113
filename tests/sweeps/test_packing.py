"""Assignment of runs to processes: even, by similarity, and each run once."""

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
from llmrl.sweeps.backends.protocol import Hardware, Job, JobBatch
from llmrl.sweeps.backends.slurm_submission import Slurm
from llmrl.sweeps.packing import (
    BatchableRunFunction,
    build_process_payload,
    distribute_round_robin,
    make_batches_for_machine,
    make_batches_for_n_processes,
)
from llmrl.sweeps.payload import RunExit, RunPayload

CPU = Hardware(Slurm(), "cpu", "highest", threads=1, cores=None, memory_gb=2, gpus=0, parallel=None)
KEYS = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=40)


def jobs(keys: list[str | None], hardware: Hardware = CPU, additional_memory_gb: float | None = 0.1) -> list[Job]:
    def config(seed: int) -> dict[str, Any]:
        return {"output_root": "/nowhere", "name": "study", "seed": seed}

    return [
        Job(config(i), [], hardware, 1, [], batch_key=key, additional_memory_gb=additional_memory_gb)
        for i, key in enumerate(keys)
    ]


def check_complete(batches: list[JobBatch], jobs: list[Job]) -> None:
    packed_jobs = [job for batch in batches for job in batch.jobs]
    assert sorted(job.config["seed"] for job in packed_jobs) == [job.config["seed"] for job in jobs]
    for batch in batches:
        keys = {job.batch_key for job in batch.jobs}
        assert len(keys) == 1 and (len(batch.jobs) == 1 or keys != {None})


@given(st.integers(1, 100), st.integers(1, 20))
def test_round_robin_groups_are_even(n, n_groups):
    groups = distribute_round_robin(range(n), n_groups)
    sizes = [len(group) for group in groups]
    assert len(groups) == min(n, n_groups) and max(sizes) - min(sizes) <= 1
    assert sorted(x for group in groups for x in group) == list(range(n))


@given(KEYS, st.integers(1, 8))
def test_runs_with_equal_key_are_distributed(keys, places):
    jobs_ = jobs(keys)
    batches = make_batches_for_machine(jobs_, places, math.inf)
    check_complete(batches, jobs_)
    processes = Counter(batch.jobs[0].batch_key for batch in batches)
    for key, n in Counter(keys).items():
        assert processes[key] == (n if key is None else min(n, places))


def test_processes_match_machine_slots():
    assert [len(batch.jobs) for batch in make_batches_for_machine(jobs(["a"] * 32), 2, 100.0)] == [16, 16]
    assert [len(batch.jobs) for batch in make_batches_for_machine(jobs(["a"] * 2), 2, 100.0)] == [1, 1]


@given(KEYS, st.integers(1, 8), st.integers(1, 5))
def test_row_limit(keys, places, rows):
    jobs_ = jobs(keys, replace(CPU, rows=rows))
    for batches in (make_batches_for_machine(jobs_, places, 1.0), make_batches_for_n_processes(jobs_, places)):
        check_complete(batches, jobs_)
        assert max(len(batch.jobs) for batch in batches) <= rows


@given(KEYS, st.integers(1, 4), st.floats(0.1, 50.0), st.one_of(st.none(), st.floats(0.01, 3.0)))
def test_rows_fit_memory_share(keys, places, memory_gb, additional_memory_gb):
    jobs_ = jobs(keys, additional_memory_gb=additional_memory_gb)
    batches = make_batches_for_machine(jobs_, places, memory_gb)
    check_complete(batches, jobs_)
    assert all(len(batch.jobs) == 1 or batch.memory_gb <= memory_gb / places + 1e-9 for batch in batches)


@given(KEYS, st.one_of(st.none(), st.integers(1, 50)))
def test_cluster_job_limit(keys, n):
    jobs_ = jobs(keys)
    batches = make_batches_for_n_processes(jobs_, n)
    check_complete(batches, jobs_)
    if n is None or len(keys) <= n:
        assert len(batches) == len(keys), "nothing is packed that has a job of its own"
    else:
        fewest = len(set(keys) - {None}) + keys.count(None)
        assert len(batches) == max(n, fewest)


def test_free_cluster_gets_job_per_run():
    nine = jobs(["a"] * 9)
    assert len(Slurm().make_batches(nine)) == 9
    assert [len(batch.jobs) for batch in Slurm().make_batches(jobs(["a"] * 9, replace(CPU, jobs=2)))] == [5, 4]


def test_process_resources_sum_rows():
    [batch] = make_batches_for_machine(jobs(["a"] * 3), 1, 100.0)
    assert batch.memory_gb == pytest.approx(2 + 2 * 0.1)
    [unknown] = make_batches_for_machine(jobs(["a"] * 3, additional_memory_gb=None), 1, 100.0)
    assert unknown.memory_gb == 6 and unknown.cores == 1


def test_process_receives_batch_assignment():
    """Without their keys, runs would share a process and be executed sequentially."""
    jobs_ = jobs(["a"] * 3)
    payload = build_process_payload(
        JobBatch(tuple(jobs_)), BatchableRunFunction(_run_single, _run_multiple), {"A": "1"}
    )
    assert [run.batch_key for run in payload.payloads] == ["a"] * 3 and payload.batch_function is _run_multiple
    assert all(run.environment == {"A": "1"} for run in payload.payloads)
    functions = [run.run_function for run in payload.payloads]
    assert all(isinstance(f, BatchableRunFunction) and f.run_function is _run_single for f in functions)


def _run_single(config: dict[str, Any], overrides: list[str]) -> float | None:
    raise AssertionError


def _run_multiple(payloads: Sequence[RunPayload]) -> list[RunExit]:
    raise AssertionError


def test_jobs_require_submitting_backend():
    with pytest.raises(ConfigError, match=r"hardware\.jobs=2"):
        replace(CPU, backend=Local(), jobs=2)
    limits = [
        replace(CPU, parallel=p, jobs=j).max_parallel_jobs for p, j in ((None, None), (3, None), (None, 2), (3, 5))
    ]
    assert limits == [None, 3, 2, 3]


def test_job_array_requests_maximum(tmp_path: Path):
    parameters = Slurm()._make_submitit_parameters(replace(CPU, jobs=2), 1, 3.25)
    assert parameters["mem"] == "3250M" and parameters["array_parallelism"] == 2
