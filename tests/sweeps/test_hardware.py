"""Number of concurrent runs on a machine, and invalid hardware options."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from experiments import compose
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options
from llmrl.experiment.resources import RunResources, count_game_processes
from llmrl.sweeps.backends.local import Local
from llmrl.sweeps.backends.protocol import Hardware
from llmrl.sweeps.backends.slurm_submission import Slurm
from llmrl.sweeps.machine import N_PARALLEL_PROCESSES_VARIABLE, Machine

CPU = Hardware(Local(), "cpu", "highest", threads=1, cores=None, memory_gb=2, gpus=0, parallel=None)
GPU = replace(CPU, device="cuda", gpus=1)
AUTO = replace(CPU, device="auto", gpus=1)


@pytest.mark.parametrize(
    ("machine", "hardware", "cores", "places"),
    [
        (Machine(8, 64, ()), CPU, 1, 8),  # cores
        (Machine(8, 64, ()), CPU, 3, 2),  # of which runs want several
        (Machine(8, 5, ()), CPU, 1, 2),  # memory
        (Machine(8, 1, ()), CPU, 16, 1),  # one always starts
        (Machine(8, 64, ("0", "1")), GPU, 1, 2),  # GPUs
        (Machine(8, 64, ("0", "1", "2")), replace(GPU, gpus=2), 1, 1),
        (Machine(8, 64, ("0", "1")), AUTO, 1, 2),
        (Machine(8, 64, ()), AUTO, 1, 8),  # none: all on the processor
        (Machine(8, 64, ("0", "1")), CPU, 1, 8),  # not wanted
        (Machine(8, 64, ()), replace(CPU, parallel=3), 1, 3),
    ],
)
def test_concurrent_runs_fit_resources(machine, hardware, cores, places):
    assert machine.count_parallel_runs(hardware, cores) == places


@pytest.mark.slow
@pytest.mark.parametrize("hardware", ["cpu", "local", "slurm_cpu"])
def test_runs_share_cores(monkeypatch, hardware):
    monkeypatch.setattr("llmrl.sweeps.machine._count_cores", lambda: 8)
    monkeypatch.delenv(N_PARALLEL_PROCESSES_VARIABLE, raising=False)
    option = f"hardware={hardware}"
    assert RunResources(compose(option)).cores == 8 and RunResources(compose(option, "hardware.cores=3")).cores == 3
    for n_parallel, cores in ((2, 4), (3, 2), (16, 1)):
        monkeypatch.setenv(N_PARALLEL_PROCESSES_VARIABLE, str(n_parallel))
        assert RunResources(compose(option)).cores == cores


def test_missing_gpus_raise_early():
    with pytest.raises(ConfigError, match=r"hardware\.gpus=2.* 1;"):
        Machine(8, 64, ("0",)).count_parallel_runs(replace(GPU, gpus=2), 1)


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("", ()),
        ("0,1", ("0", "1")),
        ("1, 0", ("1", "0")),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("NoDevFiles", ()),
        ("GPU-8932f937-d72c,MIG-1/2", ("GPU-8932f937-d72c", "MIG-1/2")),
    ],
)
def test_visible_gpus_match_cuda(monkeypatch, visible, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Machine.detect().gpu_ids == gpus


def test_slurm_allocation_limits_machine(monkeypatch):
    machine = Machine.detect()
    assert machine.cores <= len(os.sched_getaffinity(0)) and 0 < machine.memory_gb < 1e5
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "500")
    assert Machine.detect().cores == 1 and Machine.detect().memory_gb == pytest.approx(500 * 1024**2 / 1e9)
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "0")  # all of the node's
    assert Machine.detect().memory_gb > 0.6


def test_cores_per_run():
    assert CPU.count_cores(0) == 1 and CPU.count_cores(4) == 4
    assert replace(CPU, threads=8).count_cores(4) == 8 and replace(CPU, cores=2).count_cores(4) == 2
    config = compose("env=cleanup", "env.engine=meltingpot", "env.n_envs=3")
    assert RunResources(config).hardware.count_cores(count_game_processes(config)) == 3
    assert count_game_processes(compose("env=escape_room", "env.n_envs=64")) == 0


def test_invalid_warning_signal_raises():
    with pytest.raises(ConfigError, match=r"warn_s=700 .* 540 .*time_min=30"):
        Slurm(time_min=30, warn_s=700)
    Slurm(time_min=1, warn_s=30)
    Slurm(time_min=2880, warn_s=3600)


@pytest.mark.slow
@pytest.mark.parametrize("name", load_options("hardware"))
def test_options_are_complete(name):
    hardware = RunResources(compose(f"hardware={name}")).hardware
    assert isinstance(hardware.backend, Slurm if name.startswith("slurm") else Local)
    assert (hardware.gpus > 0) == (name in ("gpu", "slurm_gpu", "slurm_multi_gpu", "slurm_finetune", "local"))
