"""A society of learners and readers with a principal resumes after a kill without a difference."""

import os
import signal
import time

import pytest

import commands
from experiments import find_run_folder, load_comparable_metrics, run, run_silently

MIXED_OPTIONS = ("env=escape_room", "agent=mixed", "env.n_envs=4")
KINDS = "agent.members=[{count:3,agent:ppo},{count:1,agent:llm_player},{count:1,agent:random}]"


@pytest.mark.long
@pytest.mark.slow
def test_mixed_society_with_principal_resumes(tmp_path):
    """Compare learners and readers bit for bit."""
    options = (
        *MIXED_OPTIONS,
        KINDS,
        "principal=ucb",
        "design.evaluations=1",
        "design.steps=4",
        "design.adapt_rounds=3",
        "design.validate_episodes=4",
    )
    run(*options, f"output_root={tmp_path / 'whole'}")
    reference = find_run_folder(tmp_path / "whole")
    for delay in (1.5, 3.0):
        process = commands.Process(
            target=run_silently, args=(*options, "checkpoint_seconds=0", f"output_root={tmp_path / 'killed'}")
        )
        process.start()
        time.sleep(delay)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
    run(*options, "checkpoint_seconds=0", f"output_root={tmp_path / 'killed'}")
    resume_folder = find_run_folder(tmp_path / "killed")

    def unpaid(folder):
        return [{k: v for k, v in row.items() if not k.startswith("usage/")} for row in load_comparable_metrics(folder)]

    assert unpaid(resume_folder) == unpaid(reference)
