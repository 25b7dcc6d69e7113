"""Beginnings of episodes in questions of a search: what was observed, done and rewarded."""

from __future__ import annotations

import numpy as np
import pytest
from test_llm_searcher import check_snapshot

from environments import make_env
from experiments import compose, only_run_folder, silent_run
from llmrl.agents.search_agent import LinearAgent
from llmrl.core.errors import ConfigError
from llmrl.core.records import Trace
from llmrl.run.artifacts import read_config
from policies import ARM, LAKE, POLE, returned, searcher
from shipped import search_agent


def with_episodes(principal, n=3):
    """After `n` proposals, with returns 10, 20, ... but the second the best."""
    rng = np.random.default_rng(0)
    spec = principal.spec
    for i in range(n):
        [vector] = principal.space.rounded(rng.normal(0, 3, (1, principal.space.dim)))
        outcome = returned(vector, 100.0 if i == 1 else 10.0 * i)
        channel = spec.observation[principal.controller.channel]
        observations = np.array([[0.123456 + i] * channel.shape[0]] * 2) if channel.shape else np.array([i, i + 1])
        done = np.array([i % 2, 1]) if spec.continuous_actions is None else np.array([[0.25, -1.0]] * 2)
        outcome.steps = Trace(observations, done, np.array([1.0, -0.5]))
        principal.tell([outcome])
        principal.iteration += 1
    return principal


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("beginnings", lambda: searcher(POLE, episode_steps=2)),
        ("beginnings_numbers", lambda: searcher(ARM, search_agent("mlp_policy", ARM, hidden=[3]), episode_steps=2)),
        ("beginnings_table", lambda: searcher(LAKE, episode_steps=2)),
    ],
)
def test_beginnings_prompt(name, make):
    text = with_episodes(make()).question(None).text
    check_snapshot(name, text[text.index("## How episodes began") :])


def test_default_prompt_has_no_beginnings():
    assert "How episodes began" not in with_episodes(searcher(POLE)).question(None).text
    assert "How episodes began" not in searcher(POLE, episode_steps=2).question(None).text  # nothing was played


def test_conversation_turns_show_newest():
    principal = searcher(POLE, episode_steps=2, turns=5)
    for _ in range(2):
        [vector] = principal.ask()
        outcome = returned(vector, 3.0)
        outcome.steps = Trace(np.full((2, 3), 0.5), np.array([0, 1]), np.ones(2))
        principal.tell([outcome])
    last = principal.question(None).messages[-1]["content"]
    assert "How its first episode began:\nOf this, [" in last and "0.5, 0.5, 0.5 | right | 1" in last


def test_long_observations_are_truncated():
    principal = searcher(POLE, episode_steps=1)
    [vector] = principal.ask()
    outcome = returned(vector, 3.0)
    outcome.steps = Trace(np.full((1, 100), 0.5), np.array([1]), np.ones(1))
    principal.tell([outcome])
    assert ", ... (76 more) | right | 1" in principal.question(None).text


def test_state_round_trip():
    principal, restored = with_episodes(searcher(POLE, episode_steps=2)), searcher(POLE, episode_steps=2)
    restored.load_state_dict(principal.state_dict())
    assert restored.question(None) == principal.question(None)


def test_estimate_includes_beginnings():
    without_steps, with_steps = (searcher(POLE, episode_steps=steps).estimate(10, 1).prompt_tokens for steps in (0, 50))
    assert with_steps > without_steps + 10 * 50 * 5


@pytest.mark.parametrize("engine", ["batched", "stock"])
def test_trace_sums_to_return(engine):
    """The trace of a whole episode adds up to its return, whoever played it."""
    env = make_env("gymnasium", id="CartPole-v1", name="cartpole", n_envs=1, engine=engine)
    agent = LinearAgent(env.spec)
    vectors = np.random.default_rng(0).normal(0, 1, (3, agent.controller.space.dim))
    with env.evaluator(True, 2) as plays:
        evaluation = plays.evaluate(agent.controller, vectors, np.array([5, 6]), traced=1000)
        assert plays.evaluate(agent.controller, vectors, np.array([5, 6])).traces == ()
        short = plays.evaluate(agent.controller, vectors, np.array([5, 6]), traced=2).traces
    for i, trace in enumerate(evaluation.traces):
        assert trace.rewards.sum() == evaluation.returns[i, 0] and len(trace.rewards) == evaluation.lengths[i, 0]
        actions = agent.controller.act(trace.observations, np.tile(vectors[i], (len(trace.actions), 1)))
        assert (actions == trace.actions).all()
        assert (short[i].observations == trace.observations[:2]).all()
    env.close()


SMALL = ("search.iterations=4", "search.episodes=2", "search.race=0", "search.evaluate_episodes=2")


@pytest.mark.parametrize("env", ["cartpole", "frozen_lake", "mountain_car_continuous"])
def test_search_runs_with_beginnings(env, tmp_path):
    agent = "tabular" if env == "frozen_lake" else "linear"
    words = (f"env={env}", f"agent={agent}", "principal=llm", "principal.episode_steps=3", f"output_root={tmp_path}")
    silent_run(*words, *SMALL)
    calls = (only_run_folder(tmp_path) / "llm_calls.jsonl").read_text()
    assert "How episodes began" in calls and "| action | reward" in calls
    assert read_config(only_run_folder(tmp_path), ())["principal"]["episode_steps"] == 3


def test_numbers_only_prompt_hides_game():
    with pytest.raises(ConfigError, match="described"):
        searcher(POLE, prompt="numeric", episode_steps=2)
    assert compose("env=cartpole", "agent=linear", "principal=llm")["principal"]["episode_steps"] is None
