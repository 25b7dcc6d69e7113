"""Killed with SIGKILL at random moments and resumed, a run ends with the numbers of one that was not, bit for bit."""

import multiprocessing
import random

import pytest
import torch

from experiments import comparable_metrics, only_run_folder, silent_run
from llmrl.run.run import saved_state

KILLS = 10
DESIGN = (
    "env=escape_room",
    "env.n_envs=8",
    "design.steps=12",
    "design.adapt_rounds=12",
    "design.validate_episodes=8",
    "checkpoint_seconds=0",
)
PRINCIPALS = {
    "fixed": ("principal.values=[5,0,0,0,0]",),
    "random": (),
    "egreedy": (),
    "ucb": (),
    "thompson": (),
    "llm": ("llm=scripted",),
}


@pytest.fixture(scope="module")
def context():
    """Children are forked from a server that has imported torch already: starting one takes milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "llmrl.cli.compose", "llmrl.loops.design", "llmrl.run.run", "experiments"])
    return context


def same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if hasattr(a, "shape"):
        return a.shape == b.shape and bool((a == b).all())
    return a == b


def check(context, tmp_path, overrides, duration):
    """`duration` is about how long the run takes, seconds: kills fall evenly over a tenth of it."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = context.Process(target=silent_run, args=(*overrides, f"output_root={whole}"))
    process.start()
    process.join()
    assert process.exitcode == 0
    rng = random.Random(0)
    attempts = 0
    for _ in range(KILLS):
        process = context.Process(target=silent_run, args=(*overrides, f"output_root={killed}"))
        process.start()
        process.join(timeout=0.3 + rng.random() * duration / 5)
        attempts += process.is_alive()
        process.kill()
        process.join()
    assert attempts > KILLS / 2, "most kills came after the end: the run is too short to test anything"
    process = context.Process(target=silent_run, args=(*overrides, f"output_root={killed}"))
    process.start()
    process.join()
    assert process.exitcode == 0
    first, second = only_run_folder(whole), only_run_folder(killed)
    assert comparable_metrics(first) == comparable_metrics(second)
    assert same(saved_state(first)[1], saved_state(second)[1])


@pytest.mark.slow
@pytest.mark.parametrize("principal", PRINCIPALS)
def test_design_run_survives_kills(context, tmp_path, principal):
    check(context, tmp_path, (*DESIGN, f"principal={principal}", *PRINCIPALS[principal]), duration=3.0)


@pytest.mark.slow
def test_learn_run_survives_kills(context, tmp_path):
    overrides = (
        "env=escape_room",
        "env.n_envs=8",
        "env.horizon=7",
        "learn.rollout_steps=5",
        "learn.env_steps=8000",
        "learn.evaluate_every=20",
        "checkpoint_seconds=0",
    )
    check(context, tmp_path, overrides, duration=3.0)
