"""The saved config has only the sections that a run reads, and its hash depends on these alone."""

import functools
import json

import pytest
import yaml

from experiments import find_run_folder
from llmrl.config.loop_sections import LOOP_CLASSES, agent_learns, get_loop_kind, get_section
from llmrl.experiment.config_completion import OBJECTIVE_KEYS, without_unread_sections
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.parts import build_parts

SECTIONS = {get_section(kind) for kind in LOOP_CLASSES}
SHORT = {
    "design": ("env=escape_room", "principal=random", "design.steps=1", "design.adapt_rounds=1", "design.references=0"),
    "search": ("env=cartpole", "agent=linear", "principal=random", "search.iterations=1", "search.episodes=1"),
    "learn": ("env=escape_room", "learn.env_steps=10", "learn.evaluate_episodes=1"),
    "play": ("env=frozen_lake", "agent=random", "play.episodes=1"),
    "frozen": ("env=escape_room", "agent.freeze=all", "play.episodes=1"),
    "asking": ("env=frozen_lake", "agent=llm_player", "play.episodes=1", "env.n_envs=1", "env.horizon=3"),
    "taught": ("env=simple_doorkey", "agent=student_mlp", "teacher=oracle", "learn.env_steps=10"),
    "baseline": ("env=cartpole", "agent=sb3"),
    "cloned": ("env=babyai_text", "agent=bc", "llm=local_scorer_causal"),
}
KEPT_SECTIONS = {
    "design": {"design"},
    "search": {"search"},
    "learn": {"learn"},
    "play": {"play"},
    "frozen": {"play"},
    "asking": {"play"},
    "taught": {"learn"},
    "baseline": {"search"},
    "cloned": {"clone"},
}
ASKING = {"asking", "cloned"}


@functools.cache
def experiment(*overrides):
    return Experiment.compose(*overrides)


@pytest.mark.parametrize("loop", SHORT)
def test_sections_of_unused_loop_are_removed(loop):
    config = experiment(*SHORT[loop]).config
    read = {name for name in SECTIONS & set(config) if name != "design" or set(config["design"]) != set(OBJECTIVE_KEYS)}
    assert read == KEPT_SECTIONS[loop] and set(OBJECTIVE_KEYS) <= set(config["design"])
    assert ("llm" in config) == (loop in ASKING) and ("prompts" in config) == (loop == "asking")
    assert without_unread_sections(config) == config, "what has been left out once is left out"


def test_unused_loop_option_keeps_hash():
    learning_experiment = experiment(*SHORT["learn"])
    other_loop_options = (
        "search.iterations=7",
        "design.steps=3",
        "play.greedy=true",
        "clone.epochs=2",
        "llm=gpt4o",
        "prompts=/x",
    )
    assert Experiment.compose(*SHORT["learn"], *other_loop_options).hash == learning_experiment.hash
    assert Experiment.compose(*SHORT["learn"], "learn.evaluation_interval=1").hash != learning_experiment.hash
    assert Experiment.compose(*SHORT["learn"], "design.spending_cost=1").hash != learning_experiment.hash
    assert Experiment.compose(*SHORT["asking"], "llm.malformed=0.5").hash != experiment(*SHORT["asking"]).hash


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["design", "search", "learn", "play", "frozen", "asking"])
def test_run_lifecycle_with_unused_option(loop, tmp_path, capsys):
    from llmrl.cli.evaluate import build_parser, evaluate
    from llmrl.run.artifacts import read_config

    overrides = (*SHORT[loop], f"output_root={tmp_path}")
    run = Experiment.compose(*overrides).run()
    folder = find_run_folder(tmp_path)
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert SECTIONS & set(saved) == KEPT_SECTIONS[loop] | {"design"}
    # From its folder alone, as llmrl-sweep issues runs again.
    restored = Experiment(read_config(folder, ()), overrides)
    assert restored.folder == folder and restored.run().finished and restored.run().result == run.result
    restored.check()
    results = evaluate(build_parser().parse_args([str(folder), "--episodes=1"]))
    assert results["episodes"] >= 1 and json.loads((folder / "status.json").read_text())["state"] == "finished"


def test_unresolved_loop_keeps_sections():
    config = experiment(*SHORT["play"]).config
    assert agent_learns(config) is False and agent_learns(experiment(*SHORT["learn"]).config) is True
    full_config = {**config, "learn": {"env_steps": 1}, "trusted_modules": ["policies"]}
    unknown = full_config | {"agent": {"_target_": f"{__name__}.Undecided"}, "trusted_modules": [__name__]}
    assert agent_learns(unknown) is None and {"learn", "play"} <= set(without_unread_sections(unknown))


class Undecided:
    """An agent that knows only after construction whether it learns."""

    loop = "learn"

    def __init__(self, interval):
        self.learns = interval


@pytest.mark.parametrize("loop", ["design", "learn", "play", "frozen"])
def test_classes_declare_learning(loop):
    config = experiment(*SHORT[loop]).config
    parts = build_parts(config, None)
    try:
        assert get_loop_kind(config) in ("learn", "play", "design") and parts.agents[0].learns is agent_learns(config)
    finally:
        parts.close()
