"""`agent=bot`: actions of the environment's expert, and counts of its failures."""

import json

import numpy as np
import pytest
import torch

from experiments import compose, find_run_folder, run
from fetch_game import FetchGame
from llmrl.agents.bot_agent import BotAgent
from llmrl.agents.random_agent import RandomAgent
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.experiment.models import build_used_model
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.experiment.resources import RunResources
from llmrl.loops.play import PlayLoop
from llmrl.rollout.collector import Collector, evaluate_policy


def play(agent, game, n=8):
    return evaluate_policy(Collector(game, agent.policy, "cpu"), n, Seeds(0), exactly=True)


def test_bot_plays_expert_actions():
    game = FetchGame(4)
    agent = BotAgent(game.spec)
    assert [e.summaries["won"] for e in play(agent, game)] == [1.0] * 8
    assert agent.metrics() == {"bot/decisions": 8.0, "bot/failures": 0.0} and not agent.learns
    assert play(RandomAgent(game.spec), game, 64)[0].length == 1


@pytest.mark.parametrize(
    ("names", "fallback"),
    [
        (("left", "done", "right"), 1),
        (("go forward", "turn left", "done"), 2),
        (("go forward", "turn left", "toggle"), 1),
        (("tourner à gauche", "basculer"), 0),
    ],
)
def test_counts_expert_failures(names, fallback):
    """Count only active games: two of the three games of the second round wait."""
    game = FetchGame(3, names, expert_is_unknown=[True, True, False])
    agent = BotAgent(game.spec)
    advice = {"expert": torch.tensor([[-1], [0], [-1]])}
    assert agent.policy.act(advice).action.tolist() == [[fallback], [0], [fallback]]
    assert agent.metrics()["bot/decisions"] == 0.0  # nobody has begun to play
    play(agent, game, 4)
    assert agent.metrics() == {"bot/decisions": 4.0, "bot/failures": 3.0}


def test_state_is_resumable():
    game = FetchGame(2, expert_is_unknown=[True, False])
    agent, random_agent = BotAgent(game.spec), BotAgent(game.spec)
    agent.policy.on_reset(np.array([True, False]), {})
    agent.policy.act({"expert": torch.tensor([[-1], [-1]])})
    random_agent.load_state_dict(agent.state_dict())
    for bot_agent in (agent, random_agent):
        bot_agent.policy.act({"expert": torch.tensor([[-1], [-1]])})
        assert bot_agent.metrics() == {"bot/decisions": 2.0, "bot/failures": 2.0}


def test_environment_needs_expert():
    spec = EnvSpec("plain", 2, 1, {"vector": Channel((3,), "float32")}, 2, ("left", "right"), 5)
    with pytest.raises(ConfigError, match=r"agent=bot.*env=plain.*env=babyai_text"):
        BotAgent(spec)


@pytest.mark.parametrize("treatment", ["bot", "random"])
def test_treatments_build(treatment):
    config = compose("experiment=grounding/mixed", f"treatment={treatment}")
    check_values(config)
    parts = build_parts(config, RunResources(config, build_used_model).model)
    try:
        assert isinstance(build_loop(config, parts), PlayLoop)
    finally:
        parts.close()


@pytest.mark.slow
def test_bots_play_equal_episodes(tmp_path):
    """Compare MiniGrid's bot, which always succeeds, with random actions; failures of the bot are counted."""
    for player in ("bot", "random"):
        words = ("experiment=grounding/mixed", f"treatment={player}", "env.n_envs=5", "play.episodes=10")
        run(*words, f"output_root={tmp_path / player}")
    bot, random_folder = (find_run_folder(tmp_path / player) for player in ("bot", "random"))
    summary = json.loads((bot / "summary.json").read_text())
    assert summary["evaluation/success"] == 1.0 and summary["bot/failures"] == 0.0
    assert summary["bot/decisions"] == summary["env_steps"]
    assert json.loads((random_folder / "summary.json").read_text())["evaluation/success"] < 0.6


def test_random_actions_are_legal():
    agent = RandomAgent(FetchGame(64).spec)
    agent.adapt(FetchGame(64, ("left", "done", "right")).spec)
    actions = agent.policy.act({}, generator=Seeds(0).torch("actions")).action
    assert actions.unique().tolist() == [0, 1, 2]
