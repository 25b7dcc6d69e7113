"""The adapter of Stable-Baselines3, with the budget of a search."""

import itertools
import json
import pickle
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments import compose, find_run_folder, run
from installed import skip_without
from llmrl.agents.sb3_agent import SB3Agent
from llmrl.cli.evaluate import build_parser, evaluate
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.experiment.models import build_used_model
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.resources import RunResources
from llmrl.rollout.batched_evaluator import draw_evaluation_seeds
from llmrl.run.artifacts import load_saved_state
from policies import ARM, LAKE, POLE

skip_without("stable_baselines3")

SMALL = ("agent=sb3", "env.horizon=50", "search.iterations=4", "search.episodes=5", "search.evaluate_episodes=6")


def train(tmp_path, *overrides):
    run(*SMALL, f"output_root={tmp_path}", *overrides)
    folder = find_run_folder(tmp_path)
    return folder, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def comparable(rows):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def test_budget_equals_search_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rng_states = (torch.random.get_rng_state(), np.random.get_state()[1].tolist())
    _, rows = train(tmp_path / "a", "env=cartpole", "search.evaluation_interval=3")
    blocks = [row for row in rows if row["kind"] == "episode"]
    assert [row["episodes"] for row in blocks] == [5, 10, 15, 20] and all(row["x"] == "episodes" for row in rows)
    # CartPole pays 1 a step.
    assert blocks[-1]["env_steps"] == pytest.approx(sum(5 * row["search/return"] for row in blocks))
    assert [row["episodes"] for row in rows if row["kind"] == "evaluation"] == [15, 20]
    assert torch.equal(rng_states[0], torch.random.get_rng_state()), "the streams of others are as they were"
    assert rng_states[1] == np.random.get_state()[1].tolist()
    _, second_run = train(tmp_path / "b", "env=cartpole", "search.evaluation_interval=3")
    assert comparable(rows) == comparable(second_run), "a run is a function of its seed"
    assert not list(tmp_path.glob("SB3-*")), "the library leaves no temporary folders"


@pytest.mark.slow
def test_policy_is_playable(tmp_path):
    folder, rows = train(tmp_path, "env=cartpole", "agent.algorithm=a2c")
    config = compose(*SMALL, "env=cartpole", "agent.algorithm=a2c")
    parts = build_parts(config, None)
    try:
        parts.agents[0].load_state_dict(load_saved_state(folder)[1]["agents"][0])
        plays = parts.env.build_evaluator(True, 1)
        seeds = draw_evaluation_seeds(Seeds(0).child("loop"), 6)
        returns = plays.evaluate(parts.agents[0].controller, np.zeros((1, 0)), seeds)
        assert rows[-1]["search/incumbent_return"] == pytest.approx(returns.returns.mean())
        plays.close()
    finally:
        parts.close()
    results = evaluate(build_parser().parse_args([str(folder), "--episodes", "8", "--mode", "both"]))
    assert [player["mode"] for player in results["players"]] == ["stochastic", "deterministic"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("env=frozen_lake", "agent.algorithm=dqn", "agent.arguments={learning_starts: 10}"),
        ("env=mountain_car_continuous", "agent.algorithm=sac", "agent.arguments={learning_starts: 90, batch_size: 8}"),
        ("env=mountain_car_continuous", "agent.algorithm=td3", "agent.arguments={learning_starts: 90, batch_size: 8}"),
        ("env=mountain_car_continuous", "agent.algorithm=ddpg", "agent.arguments={learning_starts: 90, batch_size: 8}"),
        ("env=cartpole", "agent.algorithm=trpo", "agent.arguments={n_steps: 32, batch_size: 16}"),
        ("env=cartpole", "agent.algorithm=ars", "agent.arguments={n_delta: 1}"),
        ("env=cartpole", "agent.algorithm=ppo", "agent.games=2", "agent.arguments={n_steps: 16, batch_size: 16}"),
    ],
    ids=lambda overrides: overrides[1],
)
def test_algorithms(tmp_path, overrides):
    _, rows = train(tmp_path, *overrides, "search.iterations=1", "search.episodes=3")
    assert rows[-1]["episodes"] == 3 and np.isfinite(rows[-1]["search/incumbent_return"])


@pytest.mark.parametrize("game", ["counting_game:Counting-v0", "Blackjack-v1", "MiniGrid-Empty-5x5-v0"])
def test_nested_observations_are_flattened(tmp_path, game):
    small = (
        "search.iterations=1",
        "search.episodes=2",
        "search.evaluate_episodes=2",
        "agent=sb3",
        "env.horizon=9",
        "hardware.cores=1",
    )
    trust = "trusted_modules=[counting_game]"
    run(f"output_root={tmp_path}", trust, "env=gymnasium", f"env.id={game}", "env.n_envs=1", *small)
    assert "incumbent_return" in json.loads((find_run_folder(tmp_path) / "summary.json").read_text())


@pytest.mark.long
def test_ars_learns_objective(tmp_path):
    """Evaluate the weights themselves, not the perturbed weights of the current step."""
    _, rows = train(tmp_path, "env=cartpole", "agent.algorithm=ars", "search.iterations=30", "env.horizon=200")
    assert rows[-1]["search/incumbent_return"] > 60 > rows[0]["search/return"]


@pytest.mark.parametrize(("algorithm", "rates"), [("dqn", [1, 0.81, 0.62, 0.43, 0.24, 0.05, 0.05, 0.05, 0.05, 0.05])])
def test_schedules_follow_episodes(algorithm, rates):
    config = compose("env=frozen_lake", "agent=sb3")
    parts = build_parts(config, None)
    settings = {"learning_starts": 10**6, "exploration_fraction": 0.5}
    learner = SB3Agent(parts.env.spec, Seeds(0), "cpu", algorithm, arguments=settings)
    build, models, progress_values = learner._build_model, [], []

    def stack_envs(envs):
        models.append(build(envs))
        return models[-1]

    def limit_length(value, length):
        progress_values.append(models[0].exploration_rate)
        return len(progress_values) < 10

    learner._build_model = stack_envs
    learner.fit(parts.env.make_gymnasium_env, limit_length, 10)
    parts.close()
    # The rate that follows from the end of an episode is that of the next step.
    assert progress_values == pytest.approx(rates, abs=1e-6)


def agent(spec, **settings):
    return SB3Agent(spec, Seeds(0), "cpu", **settings)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: agent(ARM, algorithm="dqn"), "env=arm.*Discrete"),
        (lambda: agent(POLE, algorithm="sac"), "env=pole.*Box"),
        (lambda: agent(POLE, algorithm="td3"), "agent.algorithm=td3"),
        (lambda: agent(POLE, arguments={"gama": 0.9}), r"agent.arguments=.*'gama'"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("env=cartpole", "principal=cem"), "SB3Agent.*principal=none"),
        (("env=cartpole", "search.warmup=3"), "search.warmup"),
        (("env=cartpole", "search.warmup_episodes=1"), "search.warmup_episodes"),
        (("env=cartpole", "search.warmup_draw=normal3_round1"), "search.warmup_draw"),
        (("env=cartpole", "search.extra_rollout=true"), "search.extra_rollout"),
        (("env=simple_doorkey", "~env.horizon"), "env=simple_doorkey"),
    ],
)
def test_rejects_invalid_combinations(overrides, message):
    config = compose("agent=sb3", *[x for x in overrides if not x.startswith("~")])
    with pytest.raises(ConfigError, match=message):
        parts = build_parts(config, RunResources(config, build_used_model).model)
        try:
            build_loop(config, parts)
        finally:
            parts.close()


def test_plan_counts_evaluations():
    config = compose("env=cartpole", "agent=sb3", "search.iterations=9", "search.evaluation_interval=4")
    parts = build_parts(config, None)
    try:
        rows = dict(build_loop(config, parts).plan())
    finally:
        parts.close()
    assert rows["  learned so far"] == "played 3 x 100 episodes on unseen seeds" and rows["episodes"] == "180"


@pytest.mark.parametrize(("algorithm", "spec"), [("ppo", POLE), ("a2c", ARM), ("dqn", LAKE), ("sac", ARM)])
def test_learned_policy_is_picklable(algorithm, spec):
    controller = agent(spec, algorithm=algorithm).controller
    copy = pickle.loads(pickle.dumps(controller))  # noqa: S301
    inputs = (
        np.arange(4) if spec is LAKE else np.random.default_rng(0).normal(size=(4, *spec.observation["vector"].shape))
    )
    assert np.array_equal(copy.act(inputs, np.zeros((4, 0))), controller.act(inputs, np.zeros((4, 0))))


def test_evaluations_use_run_cores():
    """Use one core for a policy that cannot be pickled."""
    config = compose(*SMALL, "env=cartpole", "hardware.cores=3")
    parts = build_parts(config, None)
    calls = []
    try:
        for hook in (None, lambda: None):
            parts.agents[0].network.hook = hook
            loop = build_loop(config, parts)
            loop.is_trained = True
            _, evaluation = itertools.islice(loop.requests(SimpleNamespace(restored_state=None)), 2)
            calls.append(evaluation.workers)
    finally:
        parts.close()
    assert calls == [3, 1]


def test_saved_weights_are_playable():
    first, second = agent(LAKE, algorithm="dqn"), SB3Agent(LAKE, Seeds(1), "cpu", "dqn")
    states = {"state": torch.arange(4)[:, None]}
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.policy.act(states, greedy=True).action, second.policy.act(states, greedy=True).action)
    numbers = agent(ARM, algorithm="sac").policy
    draws = [
        numbers.act({"vector": torch.zeros(3, 1, 2)}, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)
    ]
    assert torch.equal(draws[0].action, draws[1].action) and not torch.equal(draws[0].action, draws[2].action)
    assert draws[0].action.shape == (3, 1, 2) and (draws[0].action.abs() <= torch.tensor([1.0, 2.0])).all()
