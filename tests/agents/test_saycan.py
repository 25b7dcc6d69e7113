"""The example of a custom policy on the interface of scorers."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from llmrl.core.seeding import Seeds

EXAMPLE = Path(__file__).parents[2] / "examples" / "saycan"


@pytest.fixture
def saycan(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield __import__("saycan")
    sys.modules.pop("saycan")


def test_affordances_match_minigrid(saycan):
    view = np.ones((5, 7, 7, 3), dtype=np.uint8)
    view[:, 3, 6, 0] = [1, 1, 5, 1, 1]
    view[:, 3, 5, 0] = [1, 2, 6, 6, 4]  # nothing, a wall, a ball with full hands, a ball, a closed door
    view[:, 3, 5, 2] = [0, 0, 0, 0, 1]
    works = saycan.compute_affordances(view, 6, 0.0)
    forward, pick_up, drop, toggle = works[:, 2:].T.astype(bool)
    assert forward.tolist() == [True, False, False, False, False]
    assert pick_up.tolist() == [False, False, False, True, False]
    assert drop.tolist() == [False] * 5
    assert toggle.tolist() == [False, False, False, False, True]
    view[0, 3, 6, 0] = 5
    assert saycan.compute_affordances(view, 6, 0.0)[0, 4] == 1
    # A locked door opens with the key of its color: with empty hands, with another key, with it, with a ball of it.
    view[:, 3, 5] = (4, 2, 2)
    view[:4, 3, 6, :2] = [(1, 0), (5, 1), (5, 2), (6, 2)]
    assert saycan.compute_affordances(view, 6, 0.0)[:, 5].tolist() == [0, 0, 1, 0, 0]


def test_actions_are_never_excluded(saycan):
    from llmrl.config.builder import Builder
    from llmrl.core.errors import ConfigError

    option = OmegaConf.to_container(OmegaConf.load(EXAMPLE / "conf" / "agent" / "saycan.yaml"))
    for unlikely in (0, 1.5):
        with pytest.raises(ConfigError, match=rf"agent\.unlikely={unlikely}.*"):
            Builder({"spec": None, "scorer": None}, ["saycan"]).validate({**option, "unlikely": unlikely}, "agent")
    Builder({"spec": None, "scorer": None}, ["saycan"]).validate({**option, "unlikely": 1}, "agent")


@pytest.mark.slow
def test_agent_plays_from_command_line(saycan, tmp_path):
    from llmrl.experiment.models import build_llm
    from llmrl.experiment.parts import build_parts
    from llmrl.llms.local.small import SmallModelShape, make_small_model
    from llmrl.rollout.collector import Collector

    make_small_model(
        tmp_path / "model",
        ["turn left", "Goal of the agent: open the door"],
        "seq2seq",
        shape=SmallModelShape(width=16, vocabulary=300),
    )
    overrides = [
        f"hydra.searchpath=[file://{EXAMPLE / 'conf'}]",
        "env=mixed_train",
        "env.n_envs=2",
        "agent=saycan",
        "agent.unlikely=1e-6",
        "llm=local_scorer_seq2seq",
        f"llm.model={tmp_path / 'model'}",
        "trusted_modules=[saycan]",
        "name=x",
    ]
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        config = OmegaConf.to_container(compose("train", overrides=overrides), resolve=True)
    parts = build_parts(config, build_llm(config, None))
    collector = Collector(parts.env, parts.agents[0].policy, "cpu")
    collector.reset(0)
    actions = collector.collect(20, Seeds(0).torch("actions"), learn=False).action
    parts.close()
    assert actions.shape == (20, 2, 1)
    # What cannot work is hardly ever done; with empty hands, dropping something is.
    assert (actions == 4).float().mean() < 0.1
