"""Random combinations of options: no traceback, no NaN, and no run folder after a rejection."""

import json
import os
import random

import pytest

from in_process import run_in_process
from llmrl.cli.train import main
from some import mark_long_except_every

EXPERIMENTS = (
    ("env=escape_room", "principal=ucb", "env.n_envs=4"),
    ("env=escape_room", "principal=cem", "env.n_envs=4", "design.candidates=2"),
    ("env=escape_room", "principal=llm", "env.n_envs=4"),
    ("env=escape_room", "principal=random", "agent=random", "env.n_envs=4"),
    ("env=escape_room", "env.n_envs=4"),
    ("env=nim", "agent=tabular", "principal=random", "search.iterations=2", "search.episodes=1"),
    ("env=nim", "agent=random", "play.episodes=1"),
)
SMALL = (
    *("design.steps=2", "design.adapt_rounds=1", "design.validate_episodes=2", "design.evaluations=0"),
    *("design.references=0", "learn.env_steps=16", "learn.evaluate_episodes=1", "search.evaluate_episodes=1"),
    *("search.confirm_candidates=0", "loggers=jsonl"),
)
VALUES = {
    "seed": ("0", "7", "-1", "1.5", "abc", "null", "true"),
    "name": ("a", "a/b", "..", "5", "null", "''"),
    "output_root": ("outputs", "5", "null"),
    "resume": ("true", "false", "no", "on", "1", "null"),
    "rerun": ("true", "false", "no", "off", "maybe", "0"),
    "private": ("true", "false", "yes", "null"),
    "checkpoint_seconds": ("0", "1.5", "-1", "nan", "inf", "soon", "null"),
    "trusted_modules": ("[]", "[os]", "5", "[5]"),
    "prompts": ("null", "5", "nowhere"),
    "observers": ("[]", "5", "[5]", "null"),
    "report": ("5", "null"),
    "report.smooth": ("1", "0", "x"),
    "loggers": ("jsonl", "nothing", "null"),
    "hardware": ("cpu", "local", "null"),
    "hardware.device": ("cpu", "auto", "tpu", "5", "null"),
    "hardware.threads": ("1", "0", "null", "many"),
    "hardware.jobs": ("1", "0"),
    "agent.init_from": ("null", "nowhere", "5"),
    "agent.ppo.clip": ("0.2", "0", "-1", "nan", "x"),
    "env.n_envs": ("4", "3", "0", "-2", "many", "1e3"),
    "env.n_agents": ("2", "1", "0", "x"),
    "env.horizon": ("5", "0", "null"),
    "env.fixed_context": ("0", "7", "-1", "x"),
    "env.observe": ("[]", "[vector]", "[nothing]", "5"),
    "design": ("5", "null"),
    "design.steps": ("1", "0", "x"),
    "design.candidates": ("1", "2", "3", "0"),
    "design.replicates": ("1", "2", "5"),
    "design.rollout_steps": ("1", "3", "null", "0"),
    "design.confirm_steps": ("0", "1", "2", "null"),
    "design.objective": ("sum", "mean", "nothing", "5"),
    "design.spending_cost": ("0", "-1", "nan", "x"),
    "design.validation_rounds": ("[0]", "[9]", "5", "null"),
    "search.candidates": ("1", "0", "2"),
    "search.episode_seeds": ("fresh", "common", "x"),
    "play.fps": ("1", "0", "nan"),
    "learn.rollout_steps": ("5", "0", "x"),
    "learn.mechanism": ("null", "5", "[1]", "[0,0,0,0,0]"),
    "llm": ("scripted", "none", "null"),
    "llm.cache": ("readwrite", "of", "true"),
    "llm.failures": ("stop", "go_on"),
    "llm.limits.concurrency": ("1", "0"),
    "llm.variants": ("{}", "5", "null"),
    "principal": ("ucb", "null", "none", "gp"),
    "teacher": ("none", "null", "nobody"),
    "agent": ("ppo", "null", "heuristic"),
    "debug": ("[]", "5"),
}
"""Values of options, valid and invalid."""


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)


def command(number: int) -> list[str]:
    """Return the overrides of a combination: an experiment, up to three options, and one run in six that is not dry."""
    rng = random.Random(f"options {number}")
    keys = rng.sample(sorted(VALUES), rng.randint(1, 3))
    dry = [] if rng.random() < 1 / 6 else ["dry_run=true"]
    return [*rng.choice(EXPERIMENTS), *SMALL, *dry, *(f"{key}={rng.choice(VALUES[key])}" for key in keys)]


def fail(constant: str) -> None:
    raise AssertionError(f"{constant} in a file of a run")


def check(overrides: list[str], folder) -> None:
    """Call the command in an empty folder, and check its output and files."""
    done = run_in_process(main, "llmrl-train", *overrides, cwd=folder, environment=os.environ)
    text = done.stdout + done.stderr
    assert "Traceback" not in text and "HYDRA_FULL_ERROR=1 before" not in text, text
    assert "full traceback is in" not in text, text
    if done.returncode or "dry_run=true" in overrides:
        assert not list(folder.rglob("config.yaml")), text
        assert done.returncode or " nan" not in text.lower(), text
        return
    (status,) = folder.rglob("status.json")
    for path in (status, *status.parent.glob("*.jsonl"), *status.parent.glob("summary.json")):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        for line in lines:
            json.loads(line, parse_constant=fail)


@pytest.mark.parametrize("number", mark_long_except_every(7, range(100)))
def test_option_combination_runs_or_raises(tmp_path, number):
    check(command(number), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", range(100, 200))
def test_additional_combinations_run_or_raise(tmp_path, number):
    check(command(number), tmp_path)
