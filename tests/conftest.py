"""Fixtures shared by all tests; helpers and the sample third-party package are importable everywhere."""

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

THIRD_PARTY = Path(__file__).parent / "third_party"
SUPPORT = Path(__file__).parent / "support"
PROCESSES = {"commands", "multiprocessing", "run_sweep", "subprocess", "sweeping"}
"""Names that occur in test modules that start processes."""
LONGEST = ("tests/test_readme.py", "tests/sweeps/slurm/test_sweep.py")
"""Modules with the longest tests, which start first so that workers finish at about the same time."""
sys.path.insert(0, str(THIRD_PARTY))
# For subprocesses of tests.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(THIRD_PARTY), str(SUPPORT), os.environ.get("PYTHONPATH")]))
# Commands store the hosts approved for API keys here.
CONFIG_HOME = tempfile.TemporaryDirectory(prefix="llmrl_config_")
os.environ["XDG_CONFIG_HOME"] = CONFIG_HOME.name
# Runs synchronize thousands of small files to the disk, which is faster in memory.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 << 30:
    tempfile.tempdir = os.environ["TMPDIR"] = str(MEMORY)
# Background jobs of a shell and their children ignore SIGINT, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Several test workers share the machine, and torch is much slower with more threads than cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Settings of all property-based tests. Without a deadline, because examples may take long on a loaded machine.
hypothesis.settings.register_profile("llmrl", deadline=None, max_examples=50)
hypothesis.settings.load_profile("llmrl")
# For scripts/mutants.py: the same examples for every mutant and no shrinking of failing examples.
hypothesis.settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)


def pytest_collection_modifyitems(items):
    """Move the longest modules to the front and mark or skip tests.

    Modules that may start processes are marked as slow. Tests of the Melting Pot engine are skipped on platforms where
    it cannot run; on other platforms they fail if it is not installed.
    """
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONGEST))
    from llmrl.envs.substrate.install import find_incompatibility

    for item in items:
        if PROCESSES.intersection(vars(item.module)):
            item.add_marker(pytest.mark.slow)
    if reason := find_incompatibility():
        for item in items:
            if item.get_closest_marker("meltingpot"):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish():
    """Make garbage collection rare and exclude the objects created by test collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(autouse=True, scope="session")
def _cached_options():
    from kept_options import cache_options

    cache_options()


@pytest.fixture
def signal_game():
    """Return a factory of signal games."""
    from llmrl.core.seeding import Seeds
    from signal_game.env import SignalGame

    def make(n_envs=4, n_agents=2, n_signals=3, horizon=8, seed=0):
        return SignalGame(Seeds(seed), n_envs, n_agents, n_signals, horizon)

    return make


@pytest.fixture
def slurm_cluster(request):
    """Return the one-node cluster of this machine, or skip the test if it cannot run here.

    A test marked `exclusive_cluster` waits until no other test uses the cluster.
    """
    from cluster import NoClusterError, reserve_cluster

    is_exclusive = request.node.get_closest_marker("exclusive_cluster") is not None
    try:
        with reserve_cluster(is_exclusive) as resources:
            yield resources
    except NoClusterError as reason:
        pytest.skip(str(reason))


@pytest.fixture(autouse=True)
def _restore_logging_and_umask(monkeypatch):
    """Restore logging and the umask after each test.

    A command that runs in the test process configures logging, which closes existing handlers (absl's handler closes
    the stream that pytest captures), and sets a private umask.
    """
    monkeypatch.setattr(logging, "_handlerList", [])
    root, factory, umask = logging.getLogger(), logging.getLogRecordFactory(), os.umask(0)
    os.umask(umask)
    handlers_before_test = root.handlers[:]
    yield
    os.umask(umask)
    logging.setLogRecordFactory(factory)
    for handler in {*root.handlers} - {*handlers_before_test}:
        root.removeHandler(handler)
    for handler in handlers_before_test:
        root.addHandler(handler)


@pytest.fixture(autouse=True)
def _no_color(monkeypatch):
    """Set the width of rich's output, which tests compare as text."""
    monkeypatch.setenv("COLUMNS", "160")
