"""Runs that are killed at random times and resumed have bitwise the results of undisturbed runs."""

import json
import os
import random
import signal
import time

import pytest
import torch

import commands
from experiments import find_run_folder, load_comparable_metrics, run_silently
from llmrl.run.artifacts import load_saved_state
from some import mark_long_except
from sweeping import wait_for

KILLS = 10
DESIGN = (
    "env=escape_room",
    "env.n_envs=8",
    "design.steps=8",
    "design.adapt_rounds=8",
    "design.validate_episodes=8",
    "checkpoint_seconds=0",
)
PRINCIPALS = {
    "fixed": ("principal=fixed", "principal.values=[5,0,0,0,0]"),
    "random": ("principal=random",),
    "egreedy": ("principal=egreedy",),
    "ucb": ("principal=ucb",),
    "thompson": ("principal=thompson",),
    "llm": ("principal=llm", "llm=scripted"),
    "dual_rl, two at once": ("principal=dual_rl", "design.candidates=2"),
    "metagrad": ("principal=metagrad", "agent=pg", "principal.learning_rate=5e-3"),
    "gp": ("principal=gp", "principal.initial=4"),
    "cem": ("principal=cem", "principal.population=4"),
    "cmaes": ("principal=cmaes", "principal.population=4"),
    "thompson, four at once": ("principal=thompson", "design.candidates=4"),
    "random, two at once, two societies each": ("principal=random", "design.candidates=2", "design.replicates=2"),
}


def are_equal(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(are_equal(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(are_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if hasattr(a, "shape"):
        return a.shape == b.shape and bool((a == b).all())
    return a == b


def load_metrics_without_costs(folder) -> list[dict]:
    """Return the metrics without costs, which include replies lost by a kill before they were recorded."""
    return [{k: v for k, v in row.items() if not k.startswith("usage/")} for row in load_comparable_metrics(folder)]


def check(tmp_path, overrides, duration, kills=KILLS):
    """`duration` is about how long the run takes at most, seconds: kills fall evenly over a fifth of it."""
    reference, killed_run = tmp_path / "whole", tmp_path / "killed"
    process = commands.Process(target=run_silently, args=(*overrides, f"output_root={reference}"))
    process.start()
    start = time.monotonic()
    process.join()
    assert process.exitcode == 0
    # On a fast machine it is over sooner, and there is to be something left to kill.
    duration = min(duration, 0.6 * (time.monotonic() - start))
    rng = random.Random(0)
    attempts = 0
    for _ in range(kills):
        process = commands.Process(target=run_silently, args=(*overrides, f"output_root={killed_run}"))
        process.start()
        process.join(timeout=0.3 + rng.random() * duration / 5)
        attempts += process.is_alive()
        process.kill()
        process.join()
    assert attempts > kills / 2, "most kills came after the end: the run is too short to test anything"
    process = commands.Process(target=run_silently, args=(*overrides, f"output_root={killed_run}"))
    process.start()
    process.join()
    assert process.exitcode == 0
    first, second = find_run_folder(reference), find_run_folder(killed_run)
    assert load_metrics_without_costs(first) == load_metrics_without_costs(second)
    assert are_equal(load_saved_state(first)[1], load_saved_state(second)[1])


@pytest.mark.slow
@pytest.mark.parametrize("principal", mark_long_except(("llm",), PRINCIPALS))
def test_design_run_survives_kills(tmp_path, principal):
    check(tmp_path, (*DESIGN, *PRINCIPALS[principal]), duration=3.0, kills=3)


@pytest.mark.long
def test_learn_run_survives_kills(tmp_path):
    overrides = (
        "env=escape_room",
        "env.n_envs=8",
        "env.horizon=7",
        "learn.rollout_steps=5",
        "learn.env_steps=8000",
        "learn.evaluation_interval=20",
        "checkpoint_seconds=0",
    )
    check(tmp_path, overrides, duration=3.0)


@pytest.mark.long
def test_native_run_survives_kills(tmp_path):
    """Rollouts end within episodes, whose states are in checkpoints, including the income of the last steps."""
    overrides = (
        *("env=harvest", "agent=ppo", "env.observe=[grid,vector]", "env.n_envs=3", "env.horizon=50"),
        *("env.map=own", "learn.rollout_steps=20", "learn.env_steps=2400", "learn.evaluation_interval=15"),
        *("learn.evaluate_episodes=3", "checkpoint_seconds=0", "agent.map_channels=[4]", "agent.features=8"),
    )
    check(tmp_path, overrides, duration=6.0)


STUDENT_COMMANDS = {
    "a memory, a scripted planner that errs": (
        *("env=simple_doorkey", "agent=student_lstm", "agent.memory=16", "agent.features=16", "teacher=llm"),
        *("teacher.samples=3", "llm=scripted", "llm.malformed=0.3"),
    ),
    "parity, with a memory of its own": (
        *("env=colored_doorkey", "agent=student_mlp", "teacher=offline", "teacher.parity=true", "teacher.mode=hard"),
    ),
    "a team": ("env=simple_spread", "agent=mappo", "teacher=oracle"),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("parts", mark_long_except(("a memory, a scripted planner that errs",), STUDENT_COMMANDS))
def test_student_run_survives_kills(tmp_path, parts):
    overrides = (
        *STUDENT_COMMANDS[parts],
        *(
            "env.n_envs=4",
            "env.horizon=12",
            "learn.rollout_steps=5",
            "learn.env_steps=1600",
            "learn.evaluation_interval=20",
        ),
        *("learn.evaluate_episodes=4", "checkpoint_seconds=0"),
    )
    check(tmp_path, overrides, duration=6.0)


def run_with_short_timeouts(*overrides: str) -> None:
    """Run an experiment without output and with short timeouts after a signal."""
    import llmrl.run.run

    llmrl.run.run.STOP_GRACE_S = 0.1
    run_silently(*overrides)


@pytest.mark.long
@pytest.mark.slow
def test_distant_safe_point_is_abandoned(tmp_path):
    """A run that is stopped during a validation of several seconds exits at once and loses only the validation."""
    overrides = (
        *(
            "env=escape_room",
            "principal=random",
            "env.n_envs=8",
            "design.evaluations=1",
            "design.steps=2",
            "design.adapt_rounds=3",
        ),
        *(
            "design.validate_episodes=2000",
            "design.references=0",
            "design.confirm_steps=0",
            "design.evaluations=0",
            "checkpoint_seconds=1000",
        ),
    )
    reference, stopped = tmp_path / "whole", tmp_path / "stopped"
    process = commands.Process(target=run_silently, args=(*overrides, f"output_root={reference}"))
    process.start()
    process.join()
    assert process.exitcode == 0
    process = commands.Process(target=run_with_short_timeouts, args=(*overrides, f"output_root={stopped}"))
    process.start()
    # The rounds of adaptation are over: it validates.
    wait_for(lambda: [m for m in stopped.rglob("metrics.jsonl") if len(m.read_text().splitlines()) == 3])
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGTERM)
    process.join()
    status = json.loads((find_run_folder(stopped) / "status.json").read_text())
    assert status["state"] == "preempted"
    assert "discarded" in (find_run_folder(stopped) / "run.log").read_text()
    assert len(load_comparable_metrics(find_run_folder(stopped))) == 3, "it got through the validation"
    process = commands.Process(target=run_silently, args=(*overrides, f"output_root={stopped}"))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert load_comparable_metrics(find_run_folder(reference)) == load_comparable_metrics(find_run_folder(stopped))
