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
"""Names in a module of tests that starts some."""
LONGEST = ("tests/test_readme.py", "tests/sweeps/slurm/test_sweep.py")
"""Modules with tests of minutes, which begin first so that no worker is left with one at the end."""
sys.path.insert(0, str(THIRD_PARTY))
# For the subprocesses that tests start.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(THIRD_PARTY), str(SUPPORT), os.environ.get("PYTHONPATH")]))
# Commands record approved hosts of keys here.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="llmrl_config_")
# Runs wait for the disk after each of thousands of small files; in memory nothing waits.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 << 30:
    tempfile.tempdir = os.environ["TMPDIR"] = str(MEMORY)
# Jobs that a shell starts in the background ignore Ctrl-C, and so do their children; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Two test workers share the machine; more threads than cores slow torch down many times.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The one place that says how properties are tried. No deadline: on a loaded machine any example may take long.
hypothesis.settings.register_profile("llmrl", deadline=None, max_examples=50)
hypothesis.settings.load_profile("llmrl")
# For scripts/mutants.py: the same examples for every mutant, and no time spent on the smallest one that fails.
hypothesis.settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)


def pytest_collection_modifyitems(items):
    """Put the longest modules first and mark or skip tests.

    Modules that may start processes are marked as slow. Tests of the engine are skipped where it cannot run; where it
    could run and is not installed, they fail.
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
    """Let the garbage collector look rarely, and never at the objects created by collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(autouse=True, scope="session")
def _cached_options():
    from kept_options import cache_options

    cache_options()


@pytest.fixture
def signal_game():
    """Return a factory of the toy game."""
    from llmrl.core.seeding import Seeds
    from signal_game.env import SignalGame

    def make(n_envs=4, n_agents=2, n_signals=3, horizon=8, seed=0):
        return SignalGame(Seeds(seed), n_envs, n_agents, n_signals, horizon)

    return make


@pytest.fixture
def slurm_cluster(request):
    """Return the one-node cluster of this machine; tests are skipped where there can be none.

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
def _commands_leave_no_trace(monkeypatch):
    """Restore logging and the umask after each test.

    A command that runs in the process of a test sets up logging anew, which closes earlier handlers (absl's handler
    closes the very stream that pytest captures), and makes the files that it creates private.
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
    """Messages of rich are compared as text, at one width."""
    monkeypatch.setenv("COLUMNS", "160")
