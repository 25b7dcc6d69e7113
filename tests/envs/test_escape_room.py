"""The rules of the Contextual Escape Room, also compared with a slow game that moves agent by agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments import make_env
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import VecEnv
from llmrl.core.seeding import Seeds
from llmrl.envs.escape_room import EscapeRoom

DOOR, START = 3, 4


def make(n_envs: int = 1, **options: Any) -> EscapeRoom:
    return make_env("escape_room", n_envs=n_envs, **options)


def started(context: int = 0, **options: Any) -> EscapeRoom:
    env = make(**options)
    env.set_context(context)
    env.reset()
    return env


def rewards(env: EscapeRoom, *places: int) -> list[float]:
    return list(env.step(np.array([places])).base_reward[0])


@pytest.mark.parametrize("balanced", [False, True])
def test_incentive_payers(balanced: bool) -> None:
    env = started(budget_balanced=balanced)
    values = np.array([4.0, 3.0, 2.0, 1.0, 0.5])
    env.set_mechanism(values)
    step = env.step(np.array([[0, 0, 1, DOOR, START]]))
    payments = np.array([4.0, 4.0, 3.0, 1.0, 0.5])
    expected = payments - payments.mean() if balanced else payments
    np.testing.assert_allclose((step.reward - step.base_reward)[0], expected, rtol=1e-6)
    assert step.reward_jacobian is not None
    np.testing.assert_allclose(step.reward_jacobian[0] @ values, expected, rtol=1e-6)
    assert step.info["incentives_paid"].tolist() == [12.5]
    assert env.spec.facts["budget_balanced"] is balanced


def test_published_game_spec() -> None:
    env = make()
    spec = env.spec
    assert isinstance(env, VecEnv)
    assert (spec.n_agents, spec.n_actions, spec.horizon, spec.objective.name) == (5, 5, 5, "sum")
    assert spec.observation["vector"].shape == (28,)
    assert spec.mechanism is not None
    assert spec.mechanism.names == ("lever_0", "lever_1", "lever_2", "door", "start")
    assert list(spec.mechanism.low) == [0] * 5
    assert list(spec.mechanism.high) == [5] * 5
    assert {p.unit for p in spec.mechanism.parameters} == {"reward per step"}
    assert spec.contexts == ("lever_0_works", "lever_1_works", "lever_2_works")
    assert spec.deterministic


def test_initial_observation() -> None:
    observation = started(context=2).reset()["vector"]
    assert observation.shape == (1, 5, 28)
    assert observation.dtype == np.float32
    expected = np.concatenate([np.tile(np.eye(5)[START], 5), np.eye(3)[2]])
    assert np.array_equal(observation[0], np.tile(expected, (5, 1)))


def test_observation_shows_agents_in_individual_slots() -> None:
    observation = started().step(np.array([[0, 1, 2, 3, 4]])).observation["vector"]
    assert np.array_equal(observation[0, 3, :25].reshape(5, 5), np.eye(5))


def test_observation_divisor() -> None:
    published_observation = started(observation_divisor=255.0).reset()["vector"]
    assert np.allclose(published_observation * 255, started().reset()["vector"])
    assert published_observation.max() == pytest.approx(1 / 255)


def test_door_opens_with_enough_agents() -> None:
    assert rewards(started(context=1), 1, 1, DOOR, DOOR, DOOR) == [-1, -1, 10, 10, 10]


def test_single_agent_cannot_open_door() -> None:
    assert rewards(started(), 0, DOOR, DOOR, DOOR, DOOR) == [-1] * 5


def test_wrong_levers_do_nothing() -> None:
    assert rewards(started(context=0), 1, 1, 2, 2, DOOR) == [-1] * 5


def test_closed_door_penalizes_movers() -> None:
    env = started()
    assert rewards(env, START, START, 1, 2, DOOR) == [0, 0, -1, -1, -1]
    assert rewards(env, START, 1, 1, 2, DOOR) == [0, -1, 0, 0, 0]


def test_open_door_penalizes_agents_elsewhere() -> None:
    env = started()
    rewards(env, 0, 0, DOOR, START, START)
    assert rewards(env, 0, 0, DOOR, START, 1) == [-1, -1, 10, -1, -1]


def test_stay_penalty_is_optional() -> None:
    env = started(stay_penalty=False)
    assert rewards(env, 0, 0, DOOR, START, START) == [-1, -1, 10, 0, 0]
    assert rewards(env, 0, 0, DOOR, START, 1) == [0, 0, 10, 0, -1]


def test_staying_at_open_door_is_rewarded_again() -> None:
    env = started()
    rewards(env, 0, 0, DOOR, DOOR, DOOR)
    assert rewards(env, 0, 1, DOOR, DOOR, DOOR) == [0, -1, 0, 0, 0]  # one left: closed


def test_min_at_lever() -> None:
    assert rewards(started(min_agents_per_lever=3), 0, 0, DOOR, DOOR, DOOR) == [-1] * 5
    assert rewards(started(min_agents_per_lever=3), 0, 0, 0, DOOR, DOOR) == [-1, -1, -1, 10, 10]


@pytest.mark.parametrize("context", [0, 1, 2])
def test_optimum_is_140(context: int) -> None:
    env = started(context=context)
    steps = [env.step(np.array([[context, context, DOOR, DOOR, DOOR]])) for _ in range(5)]
    assert sum(step.base_reward.sum() for step in steps) == 140


def test_optimum_bounds_step_reward() -> None:
    """Try all 5**5 joint actions from the start: the maximum of a step is 28 = 3 * 10 - 2."""
    joint = np.stack(np.meshgrid(*[np.arange(5)] * 5, indexing="ij"), axis=-1).reshape(-1, 5)
    env = make(n_envs=len(joint))
    env.set_context(0)
    env.reset()
    assert env.step(joint).base_reward.sum(axis=1).max() == 28


def test_incentives_are_not_base_rewards() -> None:
    env = started()
    env.set_mechanism(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    step = env.step(np.array([[0, 1, 2, DOOR, START]]))
    assert list(step.reward[0] - step.base_reward[0]) == [1, 2, 3, 4, 5]
    assert list(step.base_reward[0]) == [-1, -1, -1, -1, 0]
    assert step.info["incentives_paid"] == [15]
    assert env.step(np.array([[0, 1, 2, DOOR, START]])).info["incentives_paid"] == [15]  # for staying, too


def test_incentives_vary_per_game_and_survive_reset() -> None:
    env = make(n_envs=2)
    env.set_mechanism(np.array([[0, 0, 0, 0, 1], [0, 0, 0, 0, 2.5]]))
    env.reset()
    env.reset()
    assert env.step(np.full((2, 5), START)).reward.tolist() == [[1] * 5, [2.5] * 5]


def test_maximum_incentive_is_option() -> None:
    env = started(max_incentive=12.0, show_mechanism=True)
    assert env.spec.mechanism is not None
    assert list(env.spec.mechanism.high) == [12] * 5
    assert env.spec.observation["mechanism"].high == 12
    env.set_mechanism(np.array([12.0, 0, 0, 0, 0]))
    assert env.step(np.array([[0, 1, 1, 1, 1]])).reward[0, 0] == 11
    with pytest.raises(ConfigError, match=r"outside \[0, 12\]"):
        env.set_mechanism(np.array([12.01, 0, 0, 0, 0]))


@pytest.mark.parametrize("bad", [[0, 0, 0, 0, 5.01], [-0.1, 0, 0, 0, 0], [1, 2, 3], [0, 0, 0, 0, np.nan]])
def test_rejects_invalid_incentives(bad: list[float]) -> None:
    env = started()
    with pytest.raises(ConfigError, match="incentives"):
        env.set_mechanism(np.array(bad))
    assert env.step(np.full((1, 5), START)).reward.sum() == 0


def test_no_mechanism() -> None:
    env = started(mechanism=False)
    assert env.spec.mechanism is None
    with pytest.raises(ConfigError, match="mechanism=false"):
        env.set_mechanism(np.zeros(5))


def test_mechanism_channel() -> None:
    env = make(n_envs=2, show_mechanism=True)
    env.set_mechanism(np.array([1, 2, 3, 4, 5]))
    assert np.array_equal(env.reset()["mechanism"], np.tile(np.float32([1, 2, 3, 4, 5]), (2, 5, 1)))
    assert "mechanism" not in make().reset()


def test_info() -> None:
    info = started().step(np.array([[0, 0, DOOR, 2, START]])).info
    assert set(info) == set(make().spec.metrics)
    assert {name: value.item() for name, value in info.items()} == {
        "agents_at_lever_0": 2,
        "agents_at_lever_1": 0,
        "agents_at_lever_2": 1,
        "agents_at_door": 1,
        "agents_at_start": 1,
        "door_open": 1,
        "incentives_paid": 0,
    }


def test_episode_is_truncated_at_horizon() -> None:
    env = started()
    env.set_mechanism(np.full(5, 1.0))
    go = np.array([[0, 0, DOOR, DOOR, DOOR]])
    truncated = [bool(env.step(go).truncated[0]) for _ in range(5)]
    assert truncated == [False] * 4 + [True]
    previous = env.step(go).observation["vector"]
    after = env.step(np.full((1, 5), START))
    assert np.array_equal(previous, after.observation["vector"])
    assert after.reward.sum() == after.base_reward.sum() == 0
    assert all(value.sum() == 0 for value in after.info.values())
    assert after.truncated.all()
    assert not after.terminated.any()


def test_masked_reset_affects_selected_games() -> None:
    env = make(n_envs=3)
    env.reset()
    env.step(np.full((3, 5), 1))
    observation = env.reset(np.array([False, True, False]))["vector"]
    assert (observation[1, 0, :25].reshape(5, 5).argmax(1) == START).all()
    assert (observation[[0, 2], 0, :25].reshape(2, 5, 5).argmax(2) == 1).all()
    for _ in range(4):
        step = env.step(np.full((3, 5), 1))
    assert step.truncated.tolist() == [True, False, True]


def test_contexts_are_uniform() -> None:
    env = make(n_envs=3000)
    first = env.reset(seed=1)["vector"][:, 0, 25:].argmax(1)
    assert np.bincount(first, minlength=3).min() > 900
    assert np.array_equal(env.reset(seed=1)["vector"][:, 0, 25:].argmax(1), first)
    assert not np.array_equal(env.reset()["vector"][:, 0, 25:].argmax(1), first)


def test_context_change_applies_at_reset() -> None:
    env = started(context=0)
    env.set_context(1)
    assert rewards(env, 0, 0, DOOR, DOOR, DOOR)[2] == 10
    env.reset()
    assert rewards(env, 0, 0, DOOR, DOOR, DOOR)[2] == -1
    with pytest.raises(ConfigError, match="lever_2_works"):
        env.set_context(3)


def test_fixed_context_is_constant() -> None:
    env = make(n_envs=50, fixed_context=2)
    assert env.spec.contexts == ("lever_2_works",)
    assert (env.reset()["vector"][:, 0, 25:].argmax(1) == 2).all()
    env.set_context(0)
    assert (env.reset()["vector"][:, 0, 25:].argmax(1) == 2).all()


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"min_agents_per_lever": 5}, "min_agents_per_lever=5"),
        ({"fixed_context": 3}, "fixed_context=3"),
        ({"show_mechanism": True, "mechanism": False}, "show_mechanism"),
    ],
)
def test_error_names_impossible_options(options: dict[str, Any], phrase: str) -> None:
    with pytest.raises(ConfigError, match=phrase):
        make(**options)


def test_bad_actions() -> None:
    env = started()
    for bad in (np.full((1, 5), 5), np.full((1, 5), -1), np.zeros((1, 4), dtype=int)):
        with pytest.raises(ValueError, match="actions of"):
            env.step(bad)
    with pytest.raises(ValueError, match="reset"):
        make().step(np.zeros((1, 5), dtype=int))


def test_state_dict_goes_on_exactly() -> None:
    rng = np.random.default_rng(0)
    env = make(n_envs=7)
    env.reset()
    env.set_mechanism(rng.uniform(0, 5, 5))
    env.step(rng.integers(5, size=(7, 5)))
    copy = make_env("escape_room", Seeds(99), n_envs=7)
    copy.load_state_dict(env.state_dict())
    for _ in range(12):
        action = rng.integers(5, size=(7, 5))
        x, y = env.step(action), copy.step(action)
        assert np.array_equal(x.reward, y.reward)
        assert np.array_equal(x.observation["vector"], y.observation["vector"])
        assert np.array_equal(x.truncated, y.truncated)
        assert np.array_equal(env.reset(x.truncated)["vector"], copy.reset(y.truncated)["vector"])


def test_state_dict_is_snapshot() -> None:
    env = started()
    state = env.state_dict()
    env.step(np.full((1, 5), 1))
    env.load_state_dict(state)
    env.step(np.full((1, 5), 1))
    assert (state["place"] == START).all()


def test_picture_shows_door_lever_and_agents() -> None:
    env = started()
    closed = env.render()
    assert closed.dtype == np.uint8
    assert closed.shape == (112, 168, 3)
    env.step(np.array([[0, 0, DOOR, DOOR, DOOR]]))
    open_picture = env.render()
    assert not np.array_equal(closed[60, 168 - 5], open_picture[60, 168 - 5])  # the door's frame
    assert not np.array_equal(open_picture[5, 5], open_picture[5, 56 + 5])  # the working lever's frame
    assert len(np.unique(closed[64:104, 8:48].reshape(-1, 3), axis=0)) == 6  # at the start: floor and five agents
    assert len(np.unique(open_picture[64:104, 8:48].reshape(-1, 3), axis=0)) == 1  # all gone


def test_pettingzoo_api() -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    from llmrl.envs.adapters.parallel import ParallelAdapter

    parallel_api_test(ParallelAdapter(make(show_mechanism=True)), num_cycles=60)
    parallel_seed_test(lambda: ParallelAdapter(make()))


class SlowRoom:
    """A single game that follows the rules agent by agent."""

    def __init__(self, lever: int, n_agents: int, n_levers: int, n_required: int, pay: list[float], stay: bool) -> None:
        self.lever, self.door, self.n_required, self.pay, self.stay = lever, n_levers, n_required, pay, stay
        self.at = [n_levers + 1] * n_agents

    def step(self, action: list[int]) -> tuple[list[float], list[float]]:
        places_before, self.at = self.at, list(action)
        is_open = sum(1 for place in self.at if place == self.lever) >= self.n_required
        base = []
        for old, new in zip(places_before, self.at, strict=True):
            if is_open and new == self.door:
                base.append(10.0)
            elif old != new or (is_open and self.stay):
                base.append(-1.0)
            else:
                base.append(0.0)
        return base, [base_reward + self.pay[place] for base_reward, place in zip(base, self.at, strict=True)]


@settings(max_examples=60)
@given(data=st.data())
def test_batch_matches_reference(data: st.DataObject) -> None:
    n_envs, n_levers = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    n_agents = data.draw(st.integers(2, 6))
    n_required = data.draw(st.integers(1, n_agents - 1))
    stay, context = data.draw(st.booleans()), data.draw(st.integers(0, n_levers - 1))
    pay = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 5.0]), min_size=n_levers + 2, max_size=n_levers + 2))
    env = make(
        n_envs, n_agents=n_agents, n_levers=n_levers, min_agents_per_lever=n_required, stay_penalty=stay, horizon=4
    )
    env.set_context(context)
    env.set_mechanism(np.array(pay))
    env.reset()
    slow = [SlowRoom(context, n_agents, n_levers, n_required, pay, stay) for _ in range(n_envs)]
    place = st.integers(0, n_levers + 1)
    for _ in range(4):
        action = data.draw(
            st.lists(st.lists(place, min_size=n_agents, max_size=n_agents), min_size=n_envs, max_size=n_envs)
        )
        step = env.step(np.array(action))
        for i, game in enumerate(slow):
            base, reward = game.step(action[i])
            assert step.base_reward[i].tolist() == base
            assert step.reward[i].tolist() == reward
