"""One way from overrides to a run: composed anywhere, checked, planned, and built once."""

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
def built(monkeypatch):
    """How often each part was built, by its place in the config and its class."""
    count: Counter[tuple[str, str]] = Counter()
    build = Builder.build

    def counted(self, node, where):
        count[where, node.get("_target_")] += 1
        return build(self, node, where)

    monkeypatch.setattr(Builder, "build", counted)
    return count


@pytest.fixture
def hashed(monkeypatch):
    """Configs that were hashed, in whatever module."""
    configs = []

    def counted(config):
        configs.append(config)
        return config_hash(config)

    for module in [m for name, m in sys.modules.items() if name.startswith("llmrl")]:
        if getattr(module, "config_hash", None) is config_hash:
            monkeypatch.setattr(module, "config_hash", counted)
    return configs


@pytest.mark.slow
def test_parts_are_built_once_and_the_config_is_hashed_once(tmp_path, built, hashed):
    experiment = Experiment.compose(*TINY, f"output_root={tmp_path}")
    experiment.check()
    run = experiment.run()
    assert not run.finished and run.result is not None
    assert {where for where, _ in built} >= PARTS, built
    assert set(built.values()) == {1}, built
    assert len(hashed) == 1


@pytest.mark.slow
def test_a_finished_run_builds_only_what_is_checked(tmp_path, built):
    overrides = (*TINY, f"output_root={tmp_path}")
    Experiment.compose(*overrides).run()
    built.clear()
    experiment = Experiment.compose(*overrides)
    experiment.check()
    assert experiment.run().finished and {where for where, _ in built} == {"hardware", "hardware.backend"}


def test_the_same_words_lead_to_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = Experiment.compose("env=escape_room", "principal=ucb", "seed=3")
    second = Experiment.compose("principal=ucb", "seed=3", "env=escape_room")
    assert first.folder == second.folder and first.folder.is_relative_to(tmp_path / "outputs" / "escape_room")
    assert first.hash == second.hash and not first.folder.exists()


def test_composing_leaves_hydra_as_it_was():
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    with initialize_config_module("llmrl.conf", version_base="1.3"):
        outer, own = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
        Experiment.compose("env=cartpole", "agent=linear", "principal=random")
        assert GlobalHydra.instance().hydra is outer and HydraConfig.instance().cfg is own
        assert compose("train", ["env=taxi"]).env.id == "Taxi-v4"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("env=escape_rooms",), "Did you mean escape_room"),
        (("design.step=3",), "design has no option 'step'"),
        (("~principal",), "principal=none"),
        (("env=escape_room", "llm.api_key=sk-ant-api03-0123456789abcdefghijABCDEFGHIJ"), "key"),
    ],
)
def test_what_is_mistyped_is_a_config_error(overrides, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.compose(*overrides)


def test_a_plan_starts_nothing(tmp_path):
    experiment = Experiment.compose(*TINY, f"output_root={tmp_path}")
    rows = dict(experiment.plan())
    assert rows["loop"] == "DesignLoop" and "LLM calls" in rows
    assert not list(tmp_path.iterdir())


def test_fine_tuning_is_the_same_application(tmp_path):
    experiment = Experiment.compose("llm.model=/nowhere", f"output_root={tmp_path}", primary="finetune")
    assert experiment.command == "llmrl-finetune" and "method=grpo" in experiment.overrides
    assert experiment.folder.is_relative_to(tmp_path)
