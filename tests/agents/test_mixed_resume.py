"""A governed society of learners and readers that is killed ends as if it had not been."""

import os
import signal
import time

import pytest

import commands
from experiments import comparable_metrics, only_run_folder, run, silent_run

MIXED = ("env=escape_room", "agent=mixed", "env.n_envs=4")
KINDS = "agent.members=[{count:3,agent:ppo},{count:1,agent:llm_player},{count:1,agent:random}]"


@pytest.mark.slow
def test_a_governed_mixed_society_goes_on_after_a_kill(tmp_path):
    """Bit for bit, learners and readers alike."""
    options = (*MIXED, KINDS, "principal=ucb", "design.steps=4", "design.adapt_rounds=3", "design.validate_episodes=4")
    run(*options, f"output_root={tmp_path / 'whole'}")
    whole = only_run_folder(tmp_path / "whole")
    context = commands.children()
    for delay in (1.5, 3.0):
        process = context.Process(
            target=silent_run, args=(*options, "checkpoint_seconds=0", f"output_root={tmp_path / 'killed'}")
        )
        process.start()
        time.sleep(delay)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
    run(*options, "checkpoint_seconds=0", f"output_root={tmp_path / 'killed'}")
    killed = only_run_folder(tmp_path / "killed")

    def unpaid(folder):
        return [{k: v for k, v in row.items() if not k.startswith("spent/")} for row in comparable_metrics(folder)]

    assert unpaid(killed) == unpaid(whole)
