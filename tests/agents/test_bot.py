"""`agent=bot`: it does what the environment's expert would do, and counts where that one had given up."""

import json

import numpy as np
import pytest
import torch

from experiments import compose, only_run_folder, run
from fetch_game import FetchGame
from llmrl.agents.bot_agent import BotAgent
from llmrl.agents.random_agent import RandomAgent
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.loops.play import PlayLoop
from llmrl.rollout.collector import Collector
from llmrl.rollout.evaluate_policy import evaluate_policy


def played(agent, game, n=8):
    return evaluate_policy(Collector(game, agent.policy, "cpu"), n, Seeds(0), exactly=True)


def test_it_plays_what_the_expert_would():
    game = FetchGame(4)
    agent = BotAgent(game.spec)
    assert [e.summaries["won"] for e in played(agent, game)] == [1.0] * 8
    assert agent.metrics() == {"bot/decisions": 8.0, "bot/gave_up": 0.0} and not agent.learns
    assert played(RandomAgent(game.spec), game, 64)[0].length == 1


@pytest.mark.parametrize(
    ("names", "instead"),
    [
        (("left", "done", "right"), 1),
        (("go forward", "turn left", "done"), 2),
        (("go forward", "turn left", "toggle"), 1),
        (("tourner à gauche", "basculer"), 0),
    ],
)
def test_where_the_expert_gave_up_hardly_anything_is_done_and_it_is_counted(names, instead):
    """Only in games that are played: two of the three of the second round wait."""
    game = FetchGame(3, names, clueless=[True, True, False])
    agent = BotAgent(game.spec)
    seen = {"expert": torch.tensor([[-1], [0], [-1]])}
    assert agent.policy.act(seen).action.tolist() == [[instead], [0], [instead]]
    assert agent.metrics()["bot/decisions"] == 0.0  # nobody has begun to play
    played(agent, game, 4)
    assert agent.metrics() == {"bot/decisions": 4.0, "bot/gave_up": 3.0}


def test_its_state_goes_on():
    game = FetchGame(2, clueless=[True, False])
    agent, other = BotAgent(game.spec), BotAgent(game.spec)
    agent.policy.on_reset(np.array([True, False]), {})
    agent.policy.act({"expert": torch.tensor([[-1], [-1]])})
    other.load_state_dict(agent.state_dict())
    for each in (agent, other):
        each.policy.act({"expert": torch.tensor([[-1], [-1]])})
        assert each.metrics() == {"bot/decisions": 2.0, "bot/gave_up": 2.0}


def test_an_environment_without_an_expert_is_refused():
    spec = EnvSpec("plain", 2, 1, {"vector": Channel((3,), "float32")}, 2, ("left", "right"), 5)
    with pytest.raises(ConfigError, match=r"agent=bot .* env=plain knows none .* use env=babyai_text"):
        BotAgent(spec)


@pytest.mark.parametrize("treatment", ["bot", "random"])
def test_its_treatments_build(treatment):
    config = compose("experiment=grounding/mixed", f"treatment={treatment}")
    check_values(config)
    parts = build_parts(config, build_llm(config, None, check=False))
    try:
        assert isinstance(build_loop(config, parts), PlayLoop)
    finally:
        parts.close()


@pytest.mark.slow
def test_both_play_the_same_episodes(tmp_path):
    """MiniGrid's bot succeeds in all of them, random actions seldom; what the bot gave up is counted."""
    for player in ("bot", "random"):
        words = ("experiment=grounding/mixed", f"treatment={player}", "env.n_envs=5", "play.episodes=10")
        run(*words, f"output_root={tmp_path / player}")
    bot, other = (only_run_folder(tmp_path / player) for player in ("bot", "random"))
    summary = json.loads((bot / "summary.json").read_text())
    assert summary["evaluation/success"] == 1.0 and summary["bot/gave_up"] == 0.0
    assert summary["bot/decisions"] == summary["env_steps"]
    assert json.loads((other / "summary.json").read_text())["evaluation/success"] < 0.6


def test_random_actions_are_drawn_from_those_there_are():
    agent = RandomAgent(FetchGame(64).spec)
    agent.adapt(FetchGame(64, ("left", "done", "right")).spec)
    actions = agent.policy.act({}, generator=Seeds(0).torch("actions")).action
    assert actions.unique().tolist() == [0, 1, 2]
