"""`llmrl.load_agent`: the trained agent of a run in external loops."""

import numpy as np
import pytest

import llmrl
from experiments import find_run_folder, run
from llmrl.core.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def with_memory(tmp_path_factory):
    """Train a recurrent agent in a single game."""
    root = tmp_path_factory.mktemp("memory")
    run("env=maze", "env.n_envs=4", "agent=ppo", "agent.memory=8", "agent.features=8", "agent.core_hidden=[8]",
        "learn.env_steps=400", "learn.rollout_steps=50", "learn.evaluate_episodes=4",
        f"output_root={root}")  # fmt: skip
    return find_run_folder(root)


@pytest.fixture(scope="module")
def society(tmp_path_factory):
    root = tmp_path_factory.mktemp("society")
    run("env=escape_room", "env.n_envs=4", "principal=ucb", "design.steps=2", "design.adapt_rounds=1",
        "design.validate_episodes=2",
        "design.confirm_steps=0", "design.evaluations=0", f"output_root={root}")  # fmt: skip
    return find_run_folder(root)


def play(folder, deterministic, steps=60):
    """Return states and actions of the agent in a Gymnasium environment."""
    agent = llmrl.load_agent(folder, seed=3)
    env = agent.make_env(api="gymnasium")
    observation, _ = env.reset(seed=5)
    agent.reset()
    trace = []
    for _ in range(steps):
        action = agent.act(observation, deterministic)
        trace.append((int(observation["state"]), action))
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
            agent.reset()
    return trace


def test_agent_matches_run(with_memory):
    """Compare with the actions of the platform's own rollout for equal observations."""
    from llmrl.evaluation.saved_runs import read_saved_run
    from llmrl.experiment.parts import build_parts
    from llmrl.rollout.collector import Collector

    saved = read_saved_run(with_memory)
    parts = build_parts({**saved.config, "env": {**saved.config["env"], "n_envs": 3}}, None, play_only=True)
    parts.agents[0].load_state_dict(saved.agent_state)
    collector = Collector(parts.env, parts.agents[0].policy, parts.device)
    collector.reset(11)
    expected = collector.collect(80, generator=None, learn=False, greedy=True).action.numpy()

    agent = llmrl.load_agent(with_memory, n_envs=3)
    env = agent.make_env()
    observation = env.reset(seed=11)
    agent.reset()
    for actions in expected:
        chosen = agent.act(observation, deterministic=True)
        assert (chosen == actions).all()
        step = env.step(chosen)
        observation, done = step.observation, step.terminated | step.truncated
        if done.any():
            observation = env.reset(mask=done)
            agent.reset(done)


def test_actions_follow_seed(with_memory):
    assert play(with_memory, deterministic=False) == play(with_memory, deterministic=False)
    assert play(with_memory, deterministic=True) != play(with_memory, deterministic=False)


def test_reset_clears_memory(with_memory):
    agent = llmrl.load_agent(with_memory, n_envs=2)
    policy, inputs = agent._agent.policy, agent.make_env().reset(seed=0)
    states = []

    def act(observation, state, *rest):
        states.append(None if state is None else state.clone())
        return type(policy).act(policy, observation, state, *rest)

    policy.act = act
    agent.act(inputs)
    agent.act(inputs)
    agent.reset([True, False])
    agent.act(inputs)
    agent.reset()
    agent.act(inputs)
    assert states[0] is None and states[3] is None
    assert states[1].abs().sum() > 0
    assert states[2][0].abs().sum() == 0 and states[2][1].abs().sum() > 0


def test_society_supports_pettingzoo_and_arrays(society):
    agent = llmrl.load_agent(society, seed=1)
    env = agent.make_env(api="pettingzoo")
    observations, _ = env.reset(seed=2)
    actions = agent.act(observations)
    assert list(actions) == env.possible_agents and all(isinstance(action, int) for action in actions.values())
    env.step(actions)
    # The same game as arrays, and the same draws.
    reloaded = llmrl.load_agent(society, seed=1)
    array_actions = reloaded.act(reloaded.make_env().reset(seed=2))
    assert array_actions.shape == (1, 5) and array_actions[0].tolist() == list(actions.values())


def test_search_loads_best_parameters(tmp_path):
    run("env=cartpole", "agent=linear", "principal=random", "search.iterations=2", "search.candidates=2",
        "search.evaluate_episodes=2", f"output_root={tmp_path}")  # fmt: skip
    folder = find_run_folder(tmp_path)
    agent = llmrl.load_agent(folder)
    observation, _ = agent.make_env(api="gymnasium").reset(seed=0)
    best = llmrl.load(folder).proposals.sort_values("objective").iloc[-1]
    weights = best.filter(like="parameter.").to_numpy(dtype=float)
    assert (agent._agent.policy.parameters == weights).all()
    assert agent.act(observation) in (0, 1)


def test_rejects_mismatched_spaces(with_memory, society, tmp_path):
    agent = llmrl.load_agent(with_memory)
    with pytest.raises(ConfigError, match=r"observation.*vector"):
        agent.act({"state": np.int64(0)})
    with pytest.raises(ConfigError, match="n_envs=1"):
        agent.act(llmrl.make_env("maze", n_envs=2).reset(seed=0))
    with pytest.raises(CheckpointError, match="run folder"):
        llmrl.load_agent(tmp_path)


def test_rejects_players_needing_text(tmp_path):
    run("env=frozen_lake", "agent=llm_player", "llm=scripted", "play.episodes=1", f"output_root={tmp_path}")
    with pytest.raises(ConfigError, match=r"llmrl\.evaluate"):
        llmrl.load_agent(find_run_folder(tmp_path))
