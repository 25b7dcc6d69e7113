"""`llmrl.load_agent`: the trained agent of a run in the loops of other people."""

import numpy as np
import pytest

import llmrl
from experiments import only_run_folder, run
from llmrl.core.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def with_memory(tmp_path_factory):
    """A run of an agent that remembers, alone in its game."""
    root = tmp_path_factory.mktemp("memory")
    run("env=maze", "env.n_envs=4", "agent=ppo", "agent.memory=8", "agent.features=8", "agent.core_hidden=[8]",
        "learn.env_steps=400", "learn.rollout_steps=50", "learn.evaluate_episodes=4",
        f"output_root={root}")  # fmt: skip
    return only_run_folder(root)


@pytest.fixture(scope="module")
def society(tmp_path_factory):
    root = tmp_path_factory.mktemp("society")
    run("env=escape_room", "env.n_envs=4", "principal=ucb", "design.steps=2", "design.adapt_rounds=1",
        "design.validate_episodes=2",
        "design.confirm_steps=0", "design.evaluations=0", f"output_root={root}")  # fmt: skip
    return only_run_folder(root)


def played(folder, deterministic, steps=60):
    """States and actions of the agent in a Gymnasium environment."""
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


def test_it_acts_as_the_run_does(with_memory):
    """The same observations give the actions that the platform's own rollout takes."""
    from llmrl.evaluation.saved_runs import open_saved
    from llmrl.experiment.parts import build_parts
    from llmrl.rollout.collector import Collector

    saved = open_saved(with_memory)
    parts = build_parts({**saved.config, "env": {**saved.config["env"], "n_envs": 3}}, None, play_only=True)
    parts.agents[0].load_state_dict(saved.agent)
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
        observation, ended = step.observation, step.terminated | step.truncated
        if ended.any():
            observation = env.reset(mask=ended)
            agent.reset(ended)


def test_actions_are_a_function_of_the_seed(with_memory):
    assert played(with_memory, deterministic=False) == played(with_memory, deterministic=False)
    assert played(with_memory, deterministic=True) != played(with_memory, deterministic=False)


def test_what_it_remembers_is_forgotten_by_reset(with_memory):
    agent = llmrl.load_agent(with_memory, n_envs=2)
    policy, seen = agent._agent.policy, agent.make_env().reset(seed=0)
    states = []

    def act(observation, state, *rest):
        states.append(None if state is None else state.clone())
        return type(policy).act(policy, observation, state, *rest)

    policy.act = act
    agent.act(seen)
    agent.act(seen)
    agent.reset([True, False])
    agent.act(seen)
    agent.reset()
    agent.act(seen)
    assert states[0] is None and states[3] is None
    assert states[1].abs().sum() > 0
    assert states[2][0].abs().sum() == 0 and states[2][1].abs().sum() > 0


def test_a_vector_environment_is_played(with_memory):
    agent = llmrl.load_agent(with_memory, n_envs=3)
    env = agent.make_env(api="gymnasium", horizon=5)
    observation, _ = env.reset(seed=1)
    for _ in range(7):
        action = agent.act(observation)
        assert action.shape == (3,) and env.action_space.contains(action)
        observation, *_ = env.step(action)


def test_a_society_is_played_through_pettingzoo_and_as_arrays(society):
    agent = llmrl.load_agent(society, seed=1)
    env = agent.make_env(api="pettingzoo")
    observations, _ = env.reset(seed=2)
    actions = agent.act(observations)
    assert list(actions) == env.possible_agents and all(isinstance(action, int) for action in actions.values())
    env.step(actions)
    # The same game as arrays, and the same draws.
    again = llmrl.load_agent(society, seed=1)
    chosen = again.act(again.make_env().reset(seed=2))
    assert chosen.shape == (1, 5) and chosen[0].tolist() == list(actions.values())


def test_searched_parameters_are_those_of_the_run(tmp_path):
    run("env=cartpole", "agent=linear", "principal=random", "search.iterations=2", "search.candidates=2",
        "search.evaluate_episodes=2", f"output_root={tmp_path}")  # fmt: skip
    folder = only_run_folder(tmp_path)
    agent = llmrl.load_agent(folder)
    observation, _ = agent.make_env(api="gymnasium").reset(seed=0)
    best = llmrl.load(folder).proposals.sort_values("objective").iloc[-1]
    weights = best.filter(like="parameter.").to_numpy(dtype=float)
    assert (agent._agent.policy.parameters == weights).all()
    assert agent.act(observation) in (0, 1)


def test_what_does_not_fit_is_refused(with_memory, society, tmp_path):
    agent = llmrl.load_agent(with_memory)
    with pytest.raises(ConfigError, match="vector is not in the observation"):
        agent.act({"state": np.int64(0)})
    with pytest.raises(ConfigError, match="n_envs=2"):
        agent.act(llmrl.make_env("maze", n_envs=2).reset(seed=0))
    with pytest.raises(CheckpointError, match="not a run folder"):
        llmrl.load_agent(tmp_path)


def test_players_that_must_be_told_are_refused(tmp_path):
    run("env=frozen_lake", "agent=llm_player", "llm=scripted", "play.episodes=1", f"output_root={tmp_path}")
    with pytest.raises(ConfigError, match=r"llmrl\.evaluate"):
        llmrl.load_agent(only_run_folder(tmp_path))
