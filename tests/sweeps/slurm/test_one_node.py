"""One-node cluster of scripts/slurm, and its example job without the launcher."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster import (
    ONE_NODE,
    SCRIPTS,
    NoClusterError,
    find_root_prefix,
    get_environment_outside_jobs,
    run_one_node_script,
)

pytestmark = pytest.mark.slurm

UNPRIVILEGED_UID = 65534


@pytest.fixture
def root():
    """Return the command prefix for root, for tests of one_node.sh without a cluster."""
    if not shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin"):
        pytest.skip(f"SLURM is not installed; {ONE_NODE} install")
    try:
        return find_root_prefix()
    except NoClusterError as reason:
        pytest.skip(str(reason))


def configured(folder: Path, **settings: str) -> dict[str, list[str]]:
    """Create a configuration and return its lines by their first key."""
    done = run_one_node_script("configure", {"SLURM_CONF": str(folder / "slurm.conf"), **settings})
    assert done.returncode == 0, done.stderr
    lines: dict[str, list[str]] = {}
    for line in (folder / "slurm.conf").read_text().splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            lines.setdefault(key, []).append(value)
    return lines


def fields(line: str) -> dict[str, str]:
    name, *rest = line.split()
    return {"": name} | dict(word.split("=", 1) for word in rest)


def test_configuration_is_local(root, tmp_path):
    lines = configured(tmp_path)
    host, _, address = lines["SlurmctldHost"][0].rstrip(")").partition("(")
    assert address.startswith("127.")
    assert set(lines["CommunicationParameters"][0].split(",")) == {"NoInAddrAny", "NoCtldInAddrAny"}
    node = fields(lines["NodeName"][0])
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    assert node[""] == host
    assert node["NodeAddr"] == address
    assert int(node["CPUs"]) == len(os.sched_getaffinity(0))
    assert 0 < int(node["RealMemory"]) <= 0.91 * memory
    # Each job may have its share of memory without asking, and all shares fit.
    assert int(lines["DefMemPerCPU"][0]) * int(node["CPUs"]) <= int(node["RealMemory"])
    main, scavenge = (fields(line) for line in lines["PartitionName"])
    assert (main[""], main["Default"], scavenge[""]) == ("main", "YES", "scavenge")
    assert int(main["PriorityTier"]) > int(scavenge["PriorityTier"])
    assert main["MaxTime"] == scavenge["MaxTime"] == "INFINITE"
    assert (lines["PreemptMode"][0], main["PreemptMode"]) == ("REQUEUE", "OFF")


def test_settings_reach_the_configuration(root, tmp_path):
    lines = configured(
        tmp_path,
        LLMRL_SLURM_MAX_ARRAY_SIZE="7",
        LLMRL_SLURM_KILL_WAIT="11",
        LLMRL_SLURM_GRACE_TIME="13",
        LLMRL_SLURM_REQUEUE_DELAY="17",
    )
    assert lines["MaxArraySize"] == ["7"]
    assert lines["KillWait"] == ["11"]
    assert fields(lines["PartitionName"][1])["GraceTime"] == "13"
    assert lines["AuthInfo"] == ["cred_expire=17"]


def test_configuration_is_idempotent(root, tmp_path):
    configured(tmp_path)
    mtime = (tmp_path / "slurm.conf").stat().st_mtime_ns
    configured(tmp_path)
    assert (tmp_path / "slurm.conf").stat().st_mtime_ns == mtime


@pytest.mark.parametrize(
    ("setting", "value"), [("MAX_ARRAY_SIZE", "many"), ("REQUEUE_DELAY", "4"), ("GRACE_TIME", "-1")]
)
def test_bad_settings_raise(root, tmp_path, setting, value):
    name = f"LLMRL_SLURM_{setting}"
    done = run_one_node_script("configure", {"SLURM_CONF": str(tmp_path / "slurm.conf"), name: value})
    assert done.returncode == 1
    assert f"{name}={value}: a whole number >=" in done.stderr
    assert not (tmp_path / "slurm.conf").exists()


@pytest.mark.parametrize("command", ["configure", "start", "stop"])
def test_foreign_configuration_is_preserved(root, tmp_path, command):
    foreign = tmp_path / "slurm.conf"
    foreign.write_text("ClusterName=theirs\n")
    done = run_one_node_script(command, {"SLURM_CONF": str(foreign)})
    assert done.returncode == 1
    assert str(foreign) in done.stderr
    assert foreign.read_text() == "ClusterName=theirs\n"


@pytest.mark.parametrize("command", ["install", "configure", "start", "stop"])
def test_missing_root_is_reported(command):
    def drop_privileges():
        if os.geteuid() == 0:
            os.setuid(UNPRIVILEGED_UID)

    # The script through standard input: nobody may not be allowed to read the checkout.
    done = subprocess.run(
        ["bash", "-s", command],
        input=ONE_NODE.read_text(),
        preexec_fn=drop_privileges,
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"'{command}' needs root" in done.stderr


def test_start_is_idempotent(slurm_cluster):
    boot = slurm_cluster.run("scontrol", "show", "config").splitlines()
    done = run_one_node_script("start")
    assert done.returncode == 0 and "already" in done.stdout
    # BOOT_TIME is the controller's start.
    assert next(line for line in boot if "BOOT_TIME" in line) in slurm_cluster.run("scontrol", "show", "config")


def test_daemons_listen_on_loopback_only(slurm_cluster):
    listening = slurm_cluster.run("ss", "--listening", "--tcp", "--numeric", "--no-header").splitlines()
    addresses = [line.split()[3].rsplit(":", 1) for line in listening]
    listeners = {port: host for host, port in addresses if port in ("6817", "6818")}
    assert listeners.keys() == {"6817", "6818"}
    assert all(host.startswith("127.") for host in listeners.values())


def test_jobs_report_exit_state(slurm_cluster, tmp_path):
    good, bad = (
        slurm_cluster.run("sbatch", "--parsable", f"--output={tmp_path}/%j.log", f"--wrap={command}")
        for command in ("echo from $SLURM_JOB_ID", "exit 7")
    )
    assert slurm_cluster.wait(good)["JobState"] == "COMPLETED"
    assert (tmp_path / f"{good}.log").read_text() == f"from {good}\n"
    job = slurm_cluster.wait(bad)
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "7:0")


class Example:
    """Run submitted with train.sbatch."""

    def __init__(self, cluster, folder: Path, steps: int, name: str) -> None:
        self.cluster, self.root = cluster, folder / name
        options = [f"--output={folder}/{name}.log", "--cpus-per-task=1", "--mem=1G"]
        overrides = [
            "env=escape_room",
            "principal=ucb",
            f"design.steps={steps}",
            "design.references=0",
            "design.confirm_steps=0",
            "design.evaluations=0",
        ]
        overrides += [f"output_root={self.root}"]
        done = subprocess.run(
            ["sbatch", "--parsable", *options, str(SCRIPTS / "train.sbatch"), *overrides],
            env=get_environment_outside_jobs() | {"LLMRL_BIN": str(Path(sys.executable).parent)},
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        self.job = done.stdout.strip()

    def read(self, name: str) -> str:
        (path,) = self.root.glob(f"*/*/s0/{name}")
        return path.read_text()

    def wait_for_progress(self) -> None:
        end = time.monotonic() + 120
        while not any(json.loads(path.read_text())["progress"] for path in self.root.glob("*/*/s0/status.json")):
            assert time.monotonic() < end, self.cluster.show(self.job)
            time.sleep(0.2)

    def numbers(self) -> list[dict]:
        """Return the metrics of the run without wall-clock times."""
        lines = (json.loads(line) for line in self.read("metrics.jsonl").splitlines())
        return [{key: line[key] for key in line if not key.startswith("time/")} for line in lines]


@pytest.mark.long
def test_example_job_resumes_after_requeue(slurm_cluster, tmp_path):
    reference = Example(slurm_cluster, tmp_path, steps=4, name="reference")
    disturbed = Example(slurm_cluster, tmp_path, steps=4, name="disturbed")
    # What SLURM does before the time limit.
    disturbed.wait_for_progress()
    slurm_cluster.run("scancel", "--signal=USR2", "--batch", disturbed.job)
    slurm_cluster.wait(disturbed.job, "PENDING")
    assert json.loads(disturbed.read("status.json"))["state"] == "preempted"
    slurm_cluster.wait(disturbed.job, "RUNNING")
    slurm_cluster.run("scontrol", "requeue", disturbed.job)
    job = slurm_cluster.wait(disturbed.job, "COMPLETED")
    assert job["Restarts"] == "2"
    assert slurm_cluster.wait(reference.job)["JobState"] == "COMPLETED"
    assert disturbed.numbers() == reference.numbers()


@pytest.mark.long
@pytest.mark.slow
def test_canceled_example_job_saves(slurm_cluster, tmp_path):
    example = Example(slurm_cluster, tmp_path, steps=50, name="canceled")
    example.wait_for_progress()
    slurm_cluster.run("scancel", example.job)
    assert slurm_cluster.wait(example.job)["JobState"] == "CANCELLED"
    assert json.loads(example.read("status.json"))["state"] == "preempted"
    # Its shell has ended, so nobody is left to put it back.
    assert slurm_cluster.show(example.job)["Restarts"] == "0"
