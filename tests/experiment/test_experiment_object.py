"""The path from overrides to a run: composition, checks, plan and build."""

import sys
from collections import Counter

import pytest

from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.experiment.experiment import Experiment
from llmrl.run.config_hash import config_hash

TINY = (
    "env=escape_room",
    "env.n_envs=2",
    "principal=llm",
    "design.adapt_rounds=1",
    "design.validate_episodes=2",
    "design.steps=2",
    "design.references=0",
    "design.evaluations=0",
    "design.confirm_steps=0",
)
PARTS = {
    *("env", "agent", "agent.ppo", "principal", "design", "hardware"),
    *("llm", "llm.retry", "llm.limits", "llm.budget", "llm.max_invalid"),
}


@pytest.fixture
def build_calls(monkeypatch):
    """Record the number of builds of each part, by location in the config and class."""
    count: Counter[tuple[str, str]] = Counter()
    construct = Builder._construct

    def count_call(self, part):
        count[part.path, part.target.__qualname__] += 1
        return construct(self, part)

    monkeypatch.setattr(Builder, "_construct", count_call)
    return count


@pytest.fixture
def hash_calls(monkeypatch):
    """Record the configs that are hashed in any module."""
    configs = []

    def count_call(config):
        configs.append(config)
        return config_hash(config)

    for module in [m for name, m in sys.modules.items() if name.startswith("llmrl")]:
        if getattr(module, "config_hash", None) is config_hash:
            monkeypatch.setattr(module, "config_hash", count_call)
    return configs


@pytest.mark.slow
def test_parts_are_built_once(tmp_path, build_calls, hash_calls):
    experiment = Experiment.compose(*TINY, f"output_root={tmp_path}")
    experiment.check()
    run = experiment.run()
    assert not run.finished and run.result is not None
    assert {location for location, _ in build_calls} >= PARTS, build_calls
    assert set(build_calls.values()) == {1}, build_calls
    assert len(hash_calls) == 1


@pytest.mark.slow
def test_completed_run_builds_minimum(tmp_path, build_calls):
    overrides = (*TINY, f"output_root={tmp_path}")
    Experiment.compose(*overrides).run()
    build_calls.clear()
    experiment = Experiment.compose(*overrides)
    experiment.check()
    assert experiment.run().finished and {location for location, _ in build_calls} == {"hardware", "hardware.backend"}


def test_equal_overrides_give_equal_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = Experiment.compose("env=escape_room", "principal=ucb", "seed=3")
    second = Experiment.compose("principal=ucb", "seed=3", "env=escape_room")
    assert first.folder == second.folder and first.folder.is_relative_to(tmp_path / "outputs" / "escape_room")
    assert first.hash == second.hash and not first.folder.exists()


def test_compose_restores_hydra_state():
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    with initialize_config_module("llmrl.conf", version_base="1.3"):
        outer, hydra_config = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
        Experiment.compose("env=cartpole", "agent=linear", "principal=random")
        assert GlobalHydra.instance().hydra is outer and HydraConfig.instance().cfg is hydra_config
        assert compose("train", ["env=taxi"]).env.id == "Taxi-v4"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("env=escape_rooms",), "mean escape_room"),
        (("design.step=3",), "'step'"),
        (("~principal",), "principal=none"),
        (("env=escape_room", "llm.api_key=sk-ant-api03-0123456789abcdefghijABCDEFGHIJ"), "key"),
    ],
)
def test_mistyped_key_is_config_error(overrides, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.compose(*overrides)


def test_plan_starts_no_run(tmp_path):
    experiment = Experiment.compose(*TINY, f"output_root={tmp_path}")
    rows = dict(experiment.plan())
    assert rows["loop"] == "DesignLoop" and "LLM calls" in rows
    assert not list(tmp_path.iterdir())


def test_finetuning_is_application(tmp_path):
    experiment = Experiment.compose("llm.model=/nowhere", f"output_root={tmp_path}", primary="finetune")
    assert experiment.application.command == "llmrl-finetune" and "method=grpo" in experiment.overrides
    assert experiment.folder.is_relative_to(tmp_path)
