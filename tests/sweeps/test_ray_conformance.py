"""Conformance tests with the Ray backend of examples/ray_backend on a cluster of three nodes."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from backend_conformance import SLOW, SWEEP, WAIT_S, BackendConformance, BackendSetup, load_metrics

from other_environment import RAY, make_environment
from pages import list_command_lines, split_sections
from ray_cluster import SYSTEM
from sweeping import load_status, wait_for

ROOT = Path(__file__).parents[2]
KILLS = 20
NODE_EVERY = 10
"""One of this many kills ends a node, the others a worker."""

pytestmark = [pytest.mark.long, pytest.mark.slow]


class RayCluster:
    """Running cluster of the program `ray_cluster.py`."""

    def __init__(self, python: Path) -> None:
        self.python = str(python)
        program = [self.python, ROOT / "tests" / "support" / "ray_cluster.py"]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        word, self.address = self.process.stdout.readline().split()
        assert word == "ready"

    def tell(self, *command: str) -> None:
        print(*command, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n"

    def lose_node(self, rows, launcher=None) -> None:
        self.lost = rows[0]["host"]
        self.tell("remove", self.lost)

    def restore(self) -> None:
        self.tell("add", self.lost)


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory):
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("nodes with host names of their own need Linux and root")
    folder = tmp_path_factory.mktemp("ray")
    shutil.copytree(ROOT / "examples" / "ray_backend", folder / "package")
    packages = ("--no-deps", "--no-build-isolation", RAY, "msgpack", str(folder / "package"))
    cluster = RayCluster(make_environment(folder / "env", *packages))
    yield cluster
    cluster.process.communicate(timeout=120)


@pytest.fixture
def make_ray_setup(ray_cluster):
    def make(retries: int) -> BackendSetup:
        backend = ("hardware/backend=ray", f"hardware.backend.address={ray_cluster.address}")
        return BackendSetup(
            overrides=(*backend, f"hardware.backend.retries={retries}", "hardware.memory_gb=1"),
            loss="WorkerCrashedError",
            interrupted=("preempted", 128 + signal.SIGTERM),
            lose_node=ray_cluster.lose_node,
            restore=ray_cluster.restore,
            python=ray_cluster.python,
            variables=SYSTEM,
        )

    return make


class TestRay(BackendConformance):
    @pytest.fixture
    def backend_setup(self, make_ray_setup):
        return make_ray_setup(0)

    def test_results_are_identical(self, backend_setup, sweep_reference, tmp_path):
        """The sweep is that of the page on other tools, with small sizes."""
        page = (ROOT / "docs" / "with_other_tools.md").read_text()
        install, train = list_command_lines(split_sections(page)["Ray"])
        address = backend_setup.overrides[1].partition("=")[2]
        words = shlex.split(train.replace("address=auto", f"address={address}"))
        assert install == "pip install ray ./examples/ray_backend" and words[:2] == ["llmrl-train", "--multirun"]
        assert set(words[2:]) <= {*backend_setup.overrides, *SWEEP}
        super().test_results_are_identical(backend_setup, sweep_reference, tmp_path)


def test_kills_lose_no_run(ray_cluster, make_ray_setup, slow_reference, tmp_path):
    """Runs whose workers or nodes are killed 20 times finish with the same numbers as undisturbed ones."""
    backend_setup = make_ray_setup(KILLS)
    launcher = backend_setup.start(*SLOW, "seed=0,1", cwd=tmp_path)
    killed: set[tuple[int, int]] = set()

    def kill() -> bool:
        """Kill a worker or a node that computes a run, once for each attempt; return whether there were enough."""
        assert launcher.poll() is None, launcher.communicate()
        for row in load_status(tmp_path) if (tmp_path / "outputs").exists() else []:
            attempt = (row["seed"], row["attempt"])
            if row["state"] != "running" or attempt in killed or len(killed) == KILLS:
                continue
            if len(killed) % NODE_EVERY == NODE_EVERY - 1:
                ray_cluster.lose_node([row])
                ray_cluster.restore()
            else:
                os.kill(row["pid"], signal.SIGKILL)
            killed.add(attempt)
        return len(killed) == KILLS

    wait_for(kill, 10 * WAIT_S)
    wait_for(lambda: sum(row["attempt"] for row in load_status(tmp_path)) >= KILLS + 2, WAIT_S)
    (tmp_path / "ok").touch()
    out, err = launcher.communicate(timeout=WAIT_S)
    assert launcher.returncode == 0 and "2 finished" in out, out + err
    assert sum(row["attempt"] for row in load_status(tmp_path)) == KILLS + 2
    assert load_metrics(tmp_path) == slow_reference
