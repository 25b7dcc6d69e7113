"""One-node SLURM cluster of scripts/slurm for tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "slurm"
ONE_NODE = SCRIPTS / "one_node.sh"
MAX_ARRAY_SIZE = "6"
"""Maximum size of job arrays, so small that tests with few runs need more than one array."""


class NoClusterError(Exception):
    """Error that states why the test cluster cannot run on this machine."""


def get_environment_outside_jobs() -> dict[str, str]:
    """Return the environment variables without those that change the behavior of SLURM's commands."""
    prefixes = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SQUEUE_", "SINFO_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def find_root_prefix() -> list[str]:
    """Return the command prefix that runs a command as root.

    Raises:
        NoClusterError: sudo requires a password.
    """
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    raise NoClusterError("one_node.sh needs root, and sudo asks for a password")


def run_one_node_script(command: str, settings: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run one_node.sh with `settings` as environment variables, as root if the command requires it."""
    root = [] if command == "status" else find_root_prefix()
    # sudo does not pass environment variables on.
    variables = [f"{name}={value}" for name, value in (settings or {}).items()]
    return subprocess.run(
        [*root, "env", *variables, str(ONE_NODE), command],
        env=get_environment_outside_jobs(),
        capture_output=True,
        text=True,
        timeout=300,
    )


@dataclass(frozen=True)
class Cluster:
    """Running one-node cluster."""

    max_array_size: int
    cpus: int

    def run(self, *command: str) -> str:
        """Run a SLURM command and return its output.

        Raises:
            AssertionError: the command failed; the message contains its standard error.
        """
        done = subprocess.run(command, env=get_environment_outside_jobs(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout.strip()

    def show(self, job: str) -> dict[str, str]:
        """Return the fields of `scontrol show job`; SLURM forgets jobs five minutes after they end."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, *states: str, seconds: float = 600) -> dict[str, str]:
        """Wait until the job is in one of `states`, by default those of ended jobs, and return its fields.

        Raises:
            AssertionError: the job did not reach such a state in time.
        """
        states = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        end = time.monotonic() + seconds
        while (fields := self.show(job))["JobState"] not in states:
            assert time.monotonic() < end, f"job {job} is not {' or '.join(states)} after {seconds} s: {fields}"
            time.sleep(0.2)
        return fields


def start_cluster() -> Cluster:
    """Return the cluster of this machine and start it if it is down. Concurrent calls are safe.

    Raises:
        NoClusterError: SLURM is not installed or has another configuration, or root permissions are missing.
        AssertionError: the cluster does not start.
    """
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    if not shutil.which("slurmctld", path=path):
        raise NoClusterError(f"SLURM is not installed; {ONE_NODE} install")
    if run_one_node_script("status").returncode != 0:
        settings = {"LLMRL_SLURM_MAX_ARRAY_SIZE": os.environ.get("LLMRL_SLURM_MAX_ARRAY_SIZE", MAX_ARRAY_SIZE)}
        started = run_one_node_script("start", settings)
        if "was not written by this script" in started.stderr:
            raise NoClusterError(started.stderr.strip())
        assert started.returncode == 0, started.stdout + started.stderr
    config = subprocess.run(
        ["scontrol", "show", "config"], env=get_environment_outside_jobs(), capture_output=True, text=True, check=True
    ).stdout
    fields = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in config.splitlines())}
    cpus = subprocess.run(
        ["sinfo", "--noheader", "--partition=main", "--format=%c"],
        env=get_environment_outside_jobs(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return Cluster(int(fields["MaxArraySize"]), int(cpus))


@contextmanager
def reserve_cluster(is_exclusive: bool = False) -> Iterator[Cluster]:
    """Return a context in which no other test stops the daemons of the cluster.

    Args:
        is_exclusive: whether no other test may use the cluster.

    Raises:
        NoClusterError: the cluster cannot run on this machine.
    """
    resources = start_cluster()
    with (Path(tempfile.gettempdir()) / "llmrl_cluster_of_tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH)
        yield resources
