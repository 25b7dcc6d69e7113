"""Ctrl-C before a run begins ends a command with one line and no traceback, in real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
SCRIPT = """
import os, runpy, signal, sys
moments = sys.argv.pop(1).split(",")

def interrupt(event, arguments):
    if moments and event == moments[0] and moments[1] in str(arguments[0]):
        moments.clear()
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass  # the handler runs between two instructions

sys.addaudithook(interrupt)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
RUN = ("env=escape_room", "agent=random", "dry_run=true")
MOMENTS = {
    "Hydra is imported": "import,hydra._internal",
    "a configuration is composed": "open,escape_room.yaml",
    "PyTorch is imported": "import,torch.nn",
}


def command(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{folder}"}
    environment.pop("HYDRA_FULL_ERROR", None)
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("moment", MOMENTS)
def test_early_interrupt_prints_no_traceback(moment, tmp_path):
    done = command(tmp_path, "-c", SCRIPT, MOMENTS[moment], "llmrl.cli.train", *RUN)
    assert done.returncode == 130, done.stderr
    assert [line for line in done.stderr.splitlines() if line] == ["llmrl-train: stopped by SIGINT"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("import,llmrl.experiment", ["llmrl", "evaluate", "nowhere"]),
        ("import,llmrl.core", ["llmrl", "train", *RUN]),
        ("import,llmrl.experiment", ["llmrl.cli.sweep_report", "nowhere"]),
    ],
)
def test_commands_handle_interrupt_during_imports(moment, words, tmp_path):
    done = command(tmp_path, "-c", SCRIPT, moment, *words)
    assert done.returncode == 130, done.stderr
    assert len([line for line in done.stderr.splitlines() if line]) == 1


def test_sweep_server_survives_interrupt_during_imports(tmp_path):
    """Ignore Ctrl-C from the terminal, because the process of the sweep decides."""
    (tmp_path / "interrupted.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    (tmp_path / "sweep.py").write_text(
        "import multiprocessing, signal\n"
        "from llmrl.sweeps.backends import local\n"
        "local.PRELOAD_MODULE = 'interrupted'\n"
        "local.start_fork_server([])\n"
        "child = multiprocessing.get_context('forkserver').Process(target=print, args=('alive',))\n"
        "child.start()\n"
        "child.join()\n"
        "print(child.exitcode, signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )
    done = command(tmp_path, "-c", "import sweep")
    assert done.stdout.split("\n") == ["alive", "0 set()", ""], done.stderr
    assert "Traceback" not in done.stderr
