"""The common-pool resource game: rules, measures computed by hand, and texts."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments import make_env
from llmrl.agents.heuristic_agent import HeuristicAgent
from llmrl.agents.random_agent import RandomAgent
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import VecEnv
from llmrl.core.seeding import Seeds
from llmrl.core.welfare_measures import gini
from llmrl.envs.commons import Commons, allocate_units
from llmrl.envs.commons_text import SCENARIOS
from llmrl.rollout.collector import Collector, evaluate_policy
from llmrl.rollout.episode_summaries import summarize
from models import make_scripted_client
from players import make_llm_player

TEXT: dict[str, Any] = {"observe": ["vector", "text"], "mechanism": False}
STORIES = pytest.mark.parametrize("scenario", SCENARIOS)


def make(n_envs: int = 1, **options: Any) -> Commons:
    return make_env("fishery", n_envs=n_envs, **options)


def started(n_envs: int = 1, **options: Any) -> Commons:
    env = make(n_envs, **options)
    env.reset(seed=1)
    return env


def month(env: Commons, *amounts: int) -> Any:
    """Return the step of one game with these demands; actions are 0, 1, ..., most."""
    return env.step(np.array([amounts]))


class TestRules:
    def test_published_game(self) -> None:
        env = make()
        spec = env.spec
        assert isinstance(env, VecEnv) and spec.deterministic
        assert (spec.name, spec.n_agents, spec.horizon, spec.n_actions) == ("fishery", 5, 12, 21)
        assert spec.facts == {"capacity": 100, "growth": 2, "collapse_threshold": 5, "sustainable": 50}
        assert make(max_catch=100).spec.action_names[-1] == "take_100"

    def test_remaining_stock_doubles_to_capacity(self) -> None:
        """Check the published example: 30 of 90 tons are caught, 60 remain, and the next month starts with 100."""
        env = started()
        assert month(env, 20, 20, 15, 0, 0).info["stock"] == 90
        assert month(env, 10, 10, 10, 0, 0).info["stock"] == 100
        assert month(env, 20, 20, 20, 20, 0).info["stock"] == 40
        assert month(env, 6, 6, 6, 6, 6).info["stock"] == 20

    @pytest.mark.parametrize(("stock", "max_amount"), [(100, 50), (99, 49), (64, 32), (10, 5), (11, 5)])
    def test_sustainable_amount(self, stock: int, max_amount: int) -> None:
        """Search for the largest x with 2 (h - x) >= h."""
        assert max_amount == max(x for x in range(stock + 1) if 2 * (stock - x) >= stock)
        assert make()._compute_sustainable_harvest(np.array(stock)) == max_amount

    @settings(max_examples=60)
    @given(stock=st.integers(0, 200), growth=st.integers(2, 7))
    def test_sustainable_amount_under_alternative_growth(self, stock: int, growth: int) -> None:
        env = make(growth=growth, capacity=200)
        amounts = (x for x in range(stock + 1) if growth * (stock - x) >= stock)
        assert env._compute_sustainable_harvest(np.array(stock)) == max(amounts)

    def test_collapse_threshold_is_below_five(self) -> None:
        env = started(n_envs=2)
        step = env.step(np.array([[20, 20, 20, 20, 15], [20, 20, 20, 20, 16]]))
        assert step.info["stock"].tolist() == [10, 4]
        assert step.terminated.tolist() == [False, True] and not step.truncated.any()

    def test_collapsed_stock_is_constant_until_reset(self) -> None:
        env = started()
        month(env, 20, 20, 20, 20, 18)
        step = month(env, 1, 1, 0, 0, 0)
        assert not step.reward.any() and not step.base_reward.any() and step.terminated.all()
        assert {name: value.item() for name, value in step.info.items() if name not in ("stock", "efficiency")} == {
            "harvested": 0, "months": 0, "survived": 0, "over_usage": 0, "tax_collected": 0,
        }  # fmt: skip
        assert step.observation["vector"][0, 0].tolist() == pytest.approx([0.02, 1 / 12, 0.2, 0.2, 0.2, 0.2, 0.18, 0.2])
        assert env.reset()["vector"][0, 0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]

    def test_twelve_months_at_most(self) -> None:
        env = started()
        steps = [month(env, 10, 10, 10, 10, 10) for _ in range(12)]
        assert [bool(step.truncated[0]) for step in steps] == [False] * 11 + [True]
        assert {float(step.info["stock"][0]) for step in steps} == {100} and not steps[-1].terminated.any()
        assert [float(step.info["survived"][0]) for step in steps] == [0] * 11 + [1]

    def test_last_month_follows_empty_stock(self) -> None:
        env = started(horizon=2)
        month(env, 10, 10, 10, 10, 10)
        step = month(env, 20, 20, 20, 20, 20)
        assert step.terminated.all() and not step.truncated.any() and step.info["survived"] == 1

    def test_excess_demand_is_rationed_fully(self) -> None:
        env = started(max_catch=100)
        step = month(env, 100, 100, 0, 7, 1)
        assert step.base_reward.sum() == 100 and step.base_reward[0, 2] == 0
        assert (step.base_reward[0] <= [100, 100, 0, 7, 1]).all() and step.info["stock"] == 0

    def test_mask_lists_legal_amounts(self) -> None:
        env = started()
        assert env.reset()["action_mask"].all()
        mask = month(env, 20, 20, 20, 20, 13).observation["action_mask"]  # 14 are there then
        assert (mask == (np.arange(21) <= 14)).all() and mask.shape == (1, 5, 21)
        assert "action_mask" not in make(max_catch=10).spec.observation  # which are always there

    @pytest.mark.parametrize("scenario", SCENARIOS)
    def test_stories_share_game(self, scenario: Any) -> None:
        env, fishery = started(scenario=scenario), started()
        assert env.spec.name == scenario
        rng = np.random.default_rng(0)
        for _ in range(12):
            action = rng.integers(21, size=(1, 5))
            assert np.array_equal(env.step(action).reward, fishery.step(action).reward)


class TestAllocation:
    def test_units_are_allocated_sequentially(self) -> None:
        """Compare means and deviations with the published rule, unit by unit."""

        def slowly(rng: np.random.Generator) -> list[int]:
            shares = [0, 0, 0]
            for _ in range(10):
                index = rng.choice([i for i in range(3) if shares[i] < demands[i]])
                shares[index] += 1
            return shares

        demands, n, rng = np.array([2, 9, 30]), 3000, np.random.default_rng(0)
        allocations = np.array([allocate_units(demands, 10, rng) for _ in range(n)])
        references = np.array([slowly(rng) for _ in range(n)])
        error = np.sqrt((allocations.var(0) + references.var(0)) / n)
        assert (np.abs(allocations.mean(0) - references.mean(0)) < 4 * error + 1e-9).all()
        assert allocations.std(0) == pytest.approx(references.std(0), rel=0.1)

    @settings(max_examples=100)
    @given(
        demands=st.lists(st.integers(0, 100), min_size=1, max_size=8), share=st.floats(0, 1), seed=st.integers(0, 99)
    )
    def test_allocation_never_exceeds_demand(self, demands: list[int], share: float, seed: int) -> None:
        stock = int(share * sum(demands))
        shares = allocate_units(np.array(demands), stock, np.random.default_rng(seed))
        assert shares.sum() == stock and (shares <= demands).all() and (shares >= 0).all()


class TestProperties:
    @settings(max_examples=50)
    @given(data=st.data())
    def test_stocks_harvests_and_rewards(self, data: st.DataObject) -> None:
        n_envs, n_agents = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
        env = started(n_envs, n_agents=n_agents, max_catch=data.draw(st.sampled_from([3, 20, 100])))
        taxes = np.array(data.draw(st.lists(st.floats(0, 2), min_size=2, max_size=2)))
        env.set_mechanism(taxes)
        stock = np.full(n_envs, 100)
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        for _ in range(14):
            step = env.step(rng.integers(env.spec.n_actions, size=(n_envs, n_agents)))
            harvest = step.base_reward.sum(1)
            assert (step.base_reward >= 0).all() and (harvest <= stock).all()
            remaining = stock - harvest
            is_over = env._collapsed | (step.info["months"] == 0)
            assert np.array_equal(step.info["stock"], np.where(is_over, remaining, np.minimum(100, 2 * remaining)))
            assert np.allclose(step.reward, step.base_reward + step.reward_jacobian @ taxes, atol=1e-3)
            assert np.allclose(step.reward_jacobian.sum(1), 0, atol=1e-4)  # what is paid is shared
            stock = step.info["stock"].astype(int)

    @settings(max_examples=30)
    @given(n_agents=st.integers(1, 12), capacity=st.integers(10, 300), growth=st.integers(2, 5))
    def test_sustainable_shares_keep_full_stock(self, n_agents: int, capacity: int, growth: int) -> None:
        env = started(n_agents=n_agents, capacity=capacity, growth=growth, collapse_threshold=2, max_catch=capacity)
        for _ in range(12):
            share = int(env._compute_sustainable_shares()[0])
            step = env.step(np.full((1, n_agents), share))
            assert step.info["stock"] == capacity and step.info["over_usage"] == 0
        assert step.info["survived"] == 1

    @STORIES
    def test_maximum_harvest_ends_after_first_month(self, scenario: Any) -> None:
        step = month(started(scenario=scenario, max_catch=100), *[100] * 5)
        assert step.terminated.all() and step.info["stock"] == 0 and step.base_reward.sum() == 100


class TestMetrics:
    def run_metrics(self, env: Commons, *months: Any) -> dict[str, float]:
        class Plays:
            channels: tuple[str, ...] = ()

            def act(self, observation: Any, state: Any = None, generator: Any = None, greedy: bool = False) -> Any:
                import torch

                from llmrl.core.records import PolicyOutput

                return PolicyOutput(torch.tensor([months[int(env._month[0])]]))

            def values(self, observation: Any, state: Any = None) -> Any:
                raise AssertionError

        [episode] = evaluate_policy(Collector(env, Plays(), "cpu"), 1, Seeds(0))  # type: ignore[arg-type]
        returned = gini(episode.base_returns[None])[0]
        return {**summarize([episode], "x"), "gini": float(returned)}

    def test_greedy_month_is_minimum(self) -> None:
        """Check Table 1: survival time 1, gain 20 per player, efficiency 16.7 %."""
        metrics = self.run_metrics(make(), [20] * 5)
        assert (metrics["x/months"], metrics["x/survived"], metrics["x/over_usage"]) == (1, 0, 1)
        assert metrics["x/base_return"] == 20 and metrics["x/efficiency"] == pytest.approx(1 / 6)

    def test_optimum(self) -> None:
        metrics = self.run_metrics(make(), *[[10] * 5] * 12)
        assert (metrics["x/months"], metrics["x/survived"], metrics["x/over_usage"]) == (12, 1, 0)
        assert metrics["x/base_return"] == 120 and metrics["x/efficiency"] == 1

    def test_months_by_hand(self) -> None:
        """Compute stocks of 100, 90, 44 and 4 with shares of 10, 9 and 4."""
        metrics = self.run_metrics(make(), [20, 20, 15, 0, 0], [20, 20, 9, 9, 10], [20, 0, 0, 0, 20])
        assert metrics["x/harvested"] == 55 + 68 + 40 and metrics["x/months"] == 3 and metrics["x/stock"] == 4
        assert metrics["x/over_usage"] == pytest.approx((3 / 5 + 3 / 5 + 2 / 5) / 3)
        assert metrics["x/efficiency"] == pytest.approx(163 / 600)

    def test_efficiency_is_at_most_one(self) -> None:
        assert self.run_metrics(make(), *[[10] * 5] * 11, [20] * 5)["x/efficiency"] == 1

    def test_published_equality(self) -> None:
        """Check E = 1 - (n - 1) / n * gini of section 2.4: 0.2 if one of five players has everything."""
        gains = np.array([3.0, 9.0, 14.0, 20.0, 9.0])
        e = 1 - np.abs(gains[:, None] - gains).sum() / (2 * 5 * gains.sum())
        assert e == pytest.approx(1 - 4 / 5 * gini(gains))
        assert 1 - 4 / 5 * gini(np.array([9.0, 0, 0, 0, 0])) == pytest.approx(0.2)


class TestTaxes:
    def test_tax_by_hand(self) -> None:
        """Compute with shares of 10: 15 of 40 units are above them, and each player receives a fifth."""
        env = started()
        env.set_mechanism(np.array([0.5, 1.0]))
        step = month(env, 20, 15, 5, 0, 0)
        assert step.base_reward[0].tolist() == [20, 15, 5, 0, 0]
        refund = (0.5 * 40 + 1.0 * 15) / 5
        assert step.reward[0] == pytest.approx([20 - 20 + refund, 15 - 12.5 + refund, 5 - 2.5 + refund, refund, refund])
        assert step.info["tax_collected"] == pytest.approx(35)
        assert step.reward_jacobian is not None and step.reward_jacobian.shape == (1, 5, 2)

    def test_taxes_vary_per_game_and_survive_reset(self) -> None:
        env = make(n_envs=2, show_mechanism=True)
        env.set_mechanism(np.array([[0.0, 0.0], [1.0, 2.0]]))
        assert env.reset()["mechanism"][:, 0].tolist() == [[0, 0], [1, 2]]
        step = env.step(np.array([[20, 0, 0, 0, 0]] * 2))
        assert step.reward[:, 0].tolist() == [20, pytest.approx(20 - 40 * 4 / 5)]

    @pytest.mark.parametrize("bad", [[0, 2.01], [-0.1, 0], [1], [0, np.nan]])
    def test_rejects_invalid_taxes(self, bad: list[float]) -> None:
        with pytest.raises(ConfigError, match="harvest taxes"):
            started().set_mechanism(np.array(bad))

    def test_no_mechanism(self) -> None:
        env = started(mechanism=False)
        assert env.spec.mechanism is None and month(env, 1, 1, 1, 1, 1).reward_jacobian is None
        with pytest.raises(ConfigError, match="mechanism=false"):
            env.set_mechanism(np.zeros(2))


class TestTexts:
    @STORIES
    @settings(max_examples=20)
    @given(seed=st.integers(0, 999))
    def test_text_numbers_match_game(self, scenario: Any, seed: int) -> None:
        env = make(n_envs=2, scenario=scenario, max_catch=100, universalization=True, **TEXT)
        description, rng = env.reset(seed=seed)["text"], np.random.default_rng(seed)
        stock, total = np.full(2, 100), np.zeros((2, 5))
        assert "last_month" not in json.loads(description[0, 0])
        for month_number in range(1, 13):
            action = np.minimum(rng.integers(26, size=(2, 5)), stock[:, None])
            was_active = ~env._ended
            step = env.step(action)
            total += step.base_reward
            stock = step.info["stock"].astype(int)
            for game, agent in np.argwhere(np.repeat(was_active[:, None], 5, axis=1)).tolist():
                facts = json.loads(step.observation["text"][game, agent])
                rewards = step.base_reward[game].tolist()
                assert (facts["stock"], facts["months_played"]) == (stock[game], month_number)
                assert facts["months_left"] == 12 - month_number
                assert list(facts["last_month"].values()) == rewards and facts["total_last_month"] == sum(rewards)
                assert facts["you_wanted"] == action[game, agent] and facts["you_got"] == rewards[agent]
                assert facts["you_got_so_far"] == total[game, agent]
                if not step.terminated[game]:
                    [limit] = map(int, re.findall(r"more than (\d+)", facts["if_everybody"]))
                    assert 2 * (stock[game] - 5 * limit) >= stock[game] > 2 * (stock[game] - 5 * (limit + 1))

    @STORIES
    def test_description_lists_observations(self, scenario: Any) -> None:
        env = make(scenario=scenario, universalization=True, **TEXT)
        text = env.spec.text
        assert text is not None and [name for name, _ in text.actions] == list(env.spec.action_names)
        env.reset()
        facts = json.loads(month(env, 1, 1, 1, 1, 1).observation["text"][0, 0])
        assert list(facts) == [name for name, _ in text.observation] == list(json.loads(text.example))
        assert "if there are 90 and 30 are taken, there will be 100" in text.goal

    def test_end_is_optional_in_text(self) -> None:
        env = make(show_horizon=False, **TEXT)
        assert env.spec.text is not None and "12" not in env.spec.text.goal
        observation = env.reset()
        assert "months_left" not in json.loads(observation["text"][0, 0]) and observation["vector"].shape == (1, 5, 7)

    def test_describes_changed_numbers(self) -> None:
        description = make(growth=3, capacity=60, collapse_threshold=7, n_agents=4, horizon=9, **TEXT).spec.text
        assert description is not None
        for words in ("4 fishermen", "at most 60 tons", "triples, up to 60", "fewer than 7", "After 9 months"):
            assert words in description.goal


class TestPlayers:
    def play(self, env: Commons, agent: Any) -> dict[str, float]:
        return summarize(evaluate_policy(Collector(env, agent.policy, "cpu"), 8, Seeds(1)), "x")

    @STORIES
    def test_rule_sustains_stock(self, scenario: Any) -> None:
        env = make(4, scenario=scenario)
        metrics = self.play(env, HeuristicAgent(env.spec))
        assert (metrics["x/months"], metrics["x/efficiency"], metrics["x/over_usage"]) == (12, 1, 0)

    def test_random_players_last_short_time(self) -> None:
        env = make(8)
        assert 3 < self.play(env, RandomAgent(env.spec))["x/months"] < 8

    @STORIES
    @pytest.mark.parametrize(("is_described", "months"), [(False, 1), (True, 12)])
    def test_rule_players(self, scenario: Any, is_described: bool, months: int) -> None:
        """Take an equal part of the stock, or of the sustainable amount if it is described."""
        env = make(2, scenario=scenario, max_catch=100, universalization=is_described, **TEXT)
        metrics = self.play(env, make_llm_player(env.spec, make_scripted_client(), None))
        assert metrics["x/months"] == months and metrics["x/base_return"] == (120 if is_described else 20)


class TestStateAndSeeds:
    def test_loaded_state_is_identical(self) -> None:
        rng = np.random.default_rng(0)
        env = make(n_envs=6, max_catch=60)
        env.reset(seed=[1, 2, 3])
        env.set_mechanism(rng.uniform(0, 2, 2))
        env.step(rng.integers(61, size=(6, 5)))
        copy = make_env("fishery", Seeds(99), n_envs=6, max_catch=60)
        copy.load_state_dict(env.state_dict())
        for _ in range(20):
            action = rng.integers(61, size=(6, 5))
            x, y = env.step(action), copy.step(action)
            assert np.array_equal(x.reward, y.reward) and np.array_equal(x.terminated, y.terminated)
            done = x.terminated | x.truncated
            observation, restored = env.reset(done), copy.reset(done)
            assert all(np.array_equal(observation[name], restored[name]) for name in observation)

    def test_state_is_snapshot(self) -> None:
        env = started()
        state = env.state_dict()
        month(env, 20, 20, 20, 20, 20)
        env.load_state_dict(state)
        assert month(env, 10, 10, 10, 10, 10).info["stock"] == 100 and state["stock"] == 100

    def test_allocation_follows_seed_game_episode_month(self) -> None:
        def harvests(env: Commons, seed: Any, games: slice = slice(None)) -> list[Any]:
            env.reset(seed=seed)
            harvest_list = []
            for _ in range(3):
                step = env.step(np.full((env.spec.n_envs, 5), 60))
                harvest_list.append(step.base_reward[games].tolist())
                env.reset()
            return harvest_list

        first = harvests(make(4, max_catch=60), 5)
        assert first == harvests(make(4, max_catch=60), 5) and first != harvests(make(4, max_catch=60), 6)
        assert first == harvests(make(8, max_catch=60), 5, slice(4))
        assert first[0] != first[1] and first[0][0] != first[0][1]
        paired_env = make(8, max_catch=60)
        paired_env.share_random_numbers(2)
        assert harvests(paired_env, 5, slice(4)) == harvests(paired_env, 5, slice(4, 8)) == first
        grouped = harvests(make(8, max_catch=60), [7, 5], slice(4, 8))
        assert grouped == first

    def test_pettingzoo_api(self) -> None:
        from pettingzoo.test import parallel_api_test, parallel_seed_test

        from llmrl.envs.adapters.parallel import ParallelAdapter

        parallel_api_test(ParallelAdapter(make(show_mechanism=True)), num_cycles=60)
        parallel_seed_test(lambda: ParallelAdapter(make()))


def test_picture_shows_stock() -> None:
    env = started()
    full = env.render()
    assert full.dtype == np.uint8 and full.shape == (136, 224, 3)
    month(env, 20, 20, 20, 20, 0)
    later_picture = env.render()
    assert (later_picture == (88, 150, 196)).all(-1).sum() < (full == (88, 150, 196)).all(-1).sum()
    bars = (later_picture[:, 84:] == (60, 62, 68)).all(-1)
    assert bars.any(0).sum() == 4 * 20 and bars.any(1).sum() == 59  # a line at the sustainable share crosses them


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"observe": []}, "observe"),
        ({"universalization": True}, "add text to env.observe"),
        ({"show_mechanism": True, "mechanism": False}, "show_mechanism"),
        ({"max_catch": 101}, "env.max_catch=101 must be at most env.capacity=100"),
        ({"collapse_threshold": 60}, "at most capacity / growth = 50"),
    ],
)
def test_error_names_impossible_options(options: dict[str, Any], phrase: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(phrase)):
        make(**options)


def test_bad_actions() -> None:
    env = started()
    for bad in (np.full((1, 5), 21), np.full((1, 5), -1), np.zeros((1, 4), dtype=int)):
        with pytest.raises(ValueError, match="actions of"):
            env.step(bad)
    with pytest.raises(ValueError, match="reset"):
        make().step(np.zeros((1, 5), dtype=int))
    with pytest.raises(ConfigError, match="no contexts"):
        env.set_context(0)
