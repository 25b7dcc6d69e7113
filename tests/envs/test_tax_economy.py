"""The tax economy: rules by hand and by property, texts for workers, and the best response."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from environments import make_env
from llmrl.agents.heuristic_agent import HeuristicAgent
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import get_root, read_file
from llmrl.core.protocols import VecEnv
from llmrl.core.welfare_measures import SocietyEpisodes
from llmrl.envs.mechanisms import validate_bracket_edges
from llmrl.envs.tax_citizens import (
    EconomyRules,
    WageDistribution,
    compute_yearly_income,
    find_top_brackets,
    split_by_bracket,
)
from llmrl.envs.tax_economy import VECTOR_FIELDS, TaxEconomy

EDGES = (0.0, 50.0, 100.0)
RATES = st.lists(st.integers(0, 18).map(lambda n: n / 20), min_size=3, max_size=3)
INCOMES = st.lists(st.floats(0, 1e4), min_size=1, max_size=6)


def make(n_envs: int = 1, n_agents: int = 3, **options: Any) -> TaxEconomy:
    return make_env("tax_economy", n_envs=n_envs, n_agents=n_agents, **{"brackets": EDGES, **options})


def started(wages: list[float], rates: list[float] | None = None, **options: Any) -> TaxEconomy:
    """Return a game whose workers have these wages."""
    env = make(n_agents=len(wages), **options)
    env.set_mechanism([0.0, 0.0, 0.0] if rates is None else rates)
    env.reset()
    env._wage[:] = wages
    return env


def make_rules(eta: float = 0.0, n_hours: int = 11, steps: int = 1) -> EconomyRules:
    return make(eta=eta, n_hours=n_hours, steps_per_year=steps).rules


def option(name: str) -> Any:
    """Return the contents of an option file."""
    return read_file(get_root() / f"{name}.yaml")


def acting(env: TaxEconomy) -> Callable[[dict[str, Any]], np.ndarray]:
    """Return a function that gives the actions of `agent=heuristic`."""
    policy = HeuristicAgent(env.spec).policy

    def act(observation: dict[str, Any]) -> np.ndarray:
        channels = {name: torch.from_numpy(observation[name]) for name in policy.channels}
        return np.asarray(policy.act(channels).action)

    return act


class TestTax:
    def test_income_spans_three_brackets(self) -> None:
        parts = split_by_bracket(np.array([0.0, 20.0, 50.0, 120.0]), EDGES)
        assert parts.tolist() == [[0, 0, 0], [20, 0, 0], [50, 0, 0], [50, 50, 20]]
        assert (parts @ [0.1, 0.2, 0.4]).tolist() == [0, 2, 5, 23]

    def test_income_ends_in_single_bracket(self) -> None:
        assert find_top_brackets(np.array([0.0, 50.0, 50.1, 1e6]), EDGES).argmax(-1).tolist() == [0, 0, 1, 2]

    @given(INCOMES)
    def test_parts_add_up(self, incomes: list[float]) -> None:
        assert np.allclose(split_by_bracket(np.array(incomes), EDGES).sum(-1), incomes)
        assert (find_top_brackets(np.array(incomes), EDGES).sum(-1) == 1).all()

    def test_treatment_matches_federal_schedule(self) -> None:
        """Incomes on an edge pay the federal tax of 2024 for single filers (IRS, Rev. Proc. 2023-34).

        It is 5,426 dollars on 47,150 and 17,168.50 on 100,525. The last bracket ends at the highest federal edge.
        """
        federal_edges = (0.0, 11.6, 47.15, 100.525, 191.95, 243.725, 609.35)
        federal_rates = (0.10, 0.12, 0.22, 0.24, 0.32, 0.35, 0.37)
        brackets = option("env/tax_economy")["env"]["brackets"]
        rates = option("treatment/us_federal")["principal"]["values"]
        incomes = np.array([*brackets[1:], federal_edges[-1]])
        tax = split_by_bracket(incomes, federal_edges) @ np.array(federal_rates)
        assert tax[:2] == pytest.approx([5.426, 17.1685])
        assert split_by_bracket(incomes, brackets) @ np.array(rates) == pytest.approx(tax, rel=1e-3)

    @pytest.mark.parametrize("edges", [[], [1.0, 2.0], [0.0, 5.0, 5.0], [0.0, float("inf")]])
    def test_invalid_edges(self, edges: list[float]) -> None:
        with pytest.raises(ConfigError, match=r"brackets .*taxes"):
            validate_bracket_edges(edges)


class TestMoney:
    def test_year_by_hand(self) -> None:
        """Compute 25 dollars an hour for 40 and 80 hours: 52,000 and 104,000 dollars."""
        env = started([25.0, 25.0], [0.1, 0.2, 0.5])
        step = env.step(np.array([[4, 8]]))
        taxes = np.array([50 * 0.1 + 2 * 0.2, 50 * 0.1 + 50 * 0.2 + 4 * 0.5])
        psi = 52 / 3.5
        assert env.rules.psi == pytest.approx(psi)
        effort = np.array([psi, psi * 2**3.5])
        net = np.array([52, 104]) - taxes + taxes.mean()
        assert step.reward[0] == pytest.approx(net - effort, rel=1e-5)
        assert step.base_reward[0] == pytest.approx([52 - effort[0], 104 - effort[1]], rel=1e-5)
        info = {name: float(x[0]) for name, x in step.info.items()}
        assert info["income"] == pytest.approx(78) and info["hours"] == 60 and info["tax"] == pytest.approx(11.2)
        assert [info[f"workers_{k}"] for k in (1, 2, 3)] == [0, 0.5, 0.5]
        assert [info[f"earned_{k}"] for k in (1, 2, 3)] == pytest.approx([0, 26, 52])
        assert [info[f"taxed_{k}"] for k in (1, 2, 3)] == pytest.approx([50, 26, 2])
        # Weights proportional to 1/52 and 1/104, with mean 1: 4/3 and 2/3.
        assert info["social_welfare"] == pytest.approx(((net - effort) * [4 / 3, 2 / 3]).mean(), rel=1e-5)
        assert info["weighted_2"] == pytest.approx((2 * 4 / 3 + 50 * 2 / 3) / 2)
        gap = abs(net[0] - net[1]) / net.sum()  # of two workers
        assert info["net_income_gini"] == pytest.approx(gap)
        assert info["income_equality_productivity"] == pytest.approx((1 - gap) * 78)

    def test_utility(self) -> None:
        income, net = np.array([52.0, 0.5]), np.array([52.0, 1.0])
        assert make_rules(0).income_utility(income).tolist() == [52, 0.5]
        assert make_rules(1).income_utility(income) == pytest.approx(np.log(net))
        assert make_rules(2).income_utility(income) == pytest.approx([1 - 1 / 52, 0])
        assert make_rules(0.5).marginal_utility(net) == pytest.approx(net**-0.5)

    def test_taxes_cover_full_year(self) -> None:
        """Check that halves of 20,000 and 80,000 dollars are taxed as one income of 100,000 at the end of the year."""
        env = started([100 / 5.2], [0.1, 0.2, 0.5], steps_per_year=2, years=2)
        first, second = env.step(np.array([[4]])), env.step(np.array([[10]]))
        psi = env.rules.psi / 2
        income = 20 + 50
        assert first.reward[0, 0] == first.base_reward[0, 0] == pytest.approx(-psi)
        # The only worker gets all its taxes back.
        assert second.reward[0, 0] == pytest.approx(income - psi * 2.5**3.5, rel=1e-5)
        assert first.info["income"][0] == 0 and second.info["income"][0] == pytest.approx(2 * income)
        assert env._last[1, 0, 0] == pytest.approx(5 + 4)
        assert not second.truncated[0]

    @settings(max_examples=40)
    @given(RATES, st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 1.0]))
    def test_money_is_conserved(self, rates: list[float], seed: int, eta: float) -> None:
        env = make(n_envs=2, n_agents=5, eta=eta)
        env.set_mechanism([rates, [0.0, 0.0, 0.0]])
        env.reset(seed=seed)
        step = env.step(np.random.default_rng(seed).integers(11, size=(2, 5)))
        income, tax, transfer, net, _ = env._last
        assert tax.sum(-1) == pytest.approx(transfer.sum(-1)) and income.sum(-1) == pytest.approx(net.sum(-1))
        assert (step.reward[1] == step.base_reward[1]).all()

    @settings(max_examples=40)
    @given(RATES, st.integers(0, 10**6), st.integers(1, 3))
    def test_linear_rewards_follow_jacobian(self, rates: list[float], seed: int, steps: int) -> None:
        env = make(n_envs=2, n_agents=5, welfare="utilitarian", steps_per_year=steps)
        env.set_mechanism(rates)
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        for _ in range(env.spec.horizon or 0):
            step = env.step(rng.integers(11, size=(2, 5)))
            assert step.reward_jacobian is not None
            assert step.reward == pytest.approx(step.base_reward + step.reward_jacobian @ rates, abs=1e-3)
            assert step.reward.mean() == pytest.approx(step.base_reward.mean(), abs=1e-3)

    def test_jacobian_requires_base_reward_welfare(self) -> None:
        assert not make().spec.has_reward_jacobian
        assert not make(welfare="utilitarian", eta=1.0).spec.has_reward_jacobian


class TestBestResponse:
    @pytest.mark.parametrize("rate", [0.0, 0.3, 0.6])
    def test_optimum_matches_closed_form(self, rate: float) -> None:
        """Check a flat tax: hours = 40 ((1 - rate) 40 wage 52 / 1000 / (psi delta))^(1 / (delta - 1))."""
        rules, wage = make_rules(n_hours=2001), np.array([8.0, 25.0, 60.0])
        best = rules.possible_hours[rules.find_best_actions(wage, np.full((3, 3), rate), np.zeros(3))]
        closed = 40 * ((1 - rate) * compute_yearly_income(wage, np.array(40.0)) / (rules.psi * rules.delta)) ** (
            1 / 2.5
        )
        assert best == pytest.approx(closed, abs=0.05)

    def test_logarithmic_utility_with_no_taxes(self) -> None:
        """Check that income and substitution effects cancel: all work 40 hours."""
        rules = make_rules(eta=1.0, n_hours=2001)
        best = rules.find_best_actions(np.array([8.0, 25.0, 60.0]), np.zeros((3, 3)), np.zeros(3))
        assert rules.possible_hours[best] == pytest.approx(40, abs=0.05)

    @settings(max_examples=60)
    @given(RATES, st.integers(0, 2), st.floats(5, 200), st.floats(0, 100))
    def test_higher_rates_reduce_labor(self, rates: list[float], bracket: int, wage: float, transfer: float) -> None:
        higher = list(rates)
        higher[bracket] = 0.95
        rules = make_rules()
        small, large = rules.find_best_actions(np.full(2, wage), np.array([higher, rates]), np.full(2, transfer))
        assert small <= large

    @pytest.mark.parametrize("eta", [0.0, 1.0])
    def test_optimal_hours_have_no_improvement(self, eta: float) -> None:
        """Play in a large society, whose transfer hardly depends on one worker."""
        env = make(n_agents=400, eta=eta, years=8)
        env.set_mechanism([0.2, 0.4, 0.6])
        observation, act = env.reset(seed=3), acting(env)
        for _ in range(7):  # the transfer settles
            action, saved_state = act(observation), env.state_dict()
            step = env.step(action)
            observation = step.observation
        given = env._last[2]
        for action_index in range(11):
            env.load_state_dict(saved_state)
            changed = action.copy()
            changed[0, ::40] = action_index
            gain = env.step(changed).reward - step.reward
            gain -= env._last[2] - given if eta == 0 else 0.0
            assert gain[0, ::40].max() < (1e-4 if eta == 0 else 0.02)

    def test_heuristic_rule_plans_remaining_year(self) -> None:
        env = make(n_envs=8, n_agents=5, steps_per_year=3, years=4)
        env.set_mechanism([0.1, 0.3, 0.5])
        observation, act = env.reset(seed=2), acting(env)
        rng = np.random.default_rng(0)
        for t in range(12):
            rates, steps_left = np.broadcast_to([0.1, 0.3, 0.5], (8, 5, 3)), np.full((8, 5), 3 - t % 3)
            best = env.rules.find_best_actions(env._wage, rates, env._last[2], env._earned, steps_left)
            assert (act(observation) == best).all()
            observation = env.step(rng.integers(11, size=(8, 5))).observation
        # Who has worked too little early in the year works more later, and taxes are of the whole year.
        rules = env.rules
        late = rules.find_best_actions(
            np.full(2, 40.0), np.zeros((2, 3)), np.zeros(2), np.array([0.0, 90.0]), np.full(2, 1.0)
        )
        assert late[0] == late[1]
        steep = np.tile([0.0, 0.0, 0.9], (2, 1))
        late = rules.find_best_actions(np.full(2, 40.0), steep, np.zeros(2), np.array([0.0, 99.0]), np.full(2, 1.0))
        assert late[0] > late[1]

    def test_rule_requires_visible_rates(self) -> None:
        with pytest.raises(ConfigError, match="'mechanism'"):
            HeuristicAgent(make(show_mechanism=False).spec)


class TestWelfare:
    def optimal_welfare(self, welfare: str, **options: Any) -> float:
        env = started([10.0, 25.0, 50.0], [0.1, 0.2, 0.5], welfare=welfare, **options)
        step = env.step(np.array([[2, 4, 6]]))
        utility = env._last[4, 0]
        self.utility, self.net, self.income = utility, env._last[3, 0], env._last[0, 0]
        episode = SocietyEpisodes(*[np.zeros((1, 3))] * 4, metrics=step.info)
        objective_score = env.spec.objective.of(episode)
        assert objective_score is not None and objective_score[0] == step.info["social_welfare"][0]
        return float(objective_score[0])

    def test_all_utility_kinds(self) -> None:
        assert self.optimal_welfare("utilitarian") == pytest.approx(self.utility.mean(), rel=1e-5)
        assert self.optimal_welfare("lowest") == pytest.approx(self.utility.min(), rel=1e-5)
        weight = 1 / np.array([10.0, 25.0, 50.0])
        assert self.optimal_welfare("inverse_wage") == pytest.approx(
            (weight * self.utility).sum() / weight.sum(), rel=1e-5
        )
        weight = 1 / self.income
        assert self.optimal_welfare("inverse_income") == pytest.approx(
            (weight * self.utility).sum() / weight.sum(), rel=1e-5
        )
        assert 0 < self.optimal_welfare("equality_productivity") < self.income.mean()

    def test_idle_worker_has_minimum_labor_weight(self) -> None:
        env = started([10.0, 10.0])
        step = env.step(np.array([[0, 1]]))
        assert step.info["social_welfare"][0] == pytest.approx(env._last[4, 0].mean(), rel=1e-5)

    def test_objectives_explain_themselves(self) -> None:
        for welfare in ("inverse_income", "inverse_wage", "utilitarian", "lowest", "equality_productivity"):
            description = make(welfare=welfare).spec.objective.format_payoff(3)
            assert description.startswith("Your payoff is") and "{" not in description

    def test_redistribution_increases_welfare(self) -> None:
        """Keep all hours fixed and check that welfare, measured after taxes, rises."""
        gains = []
        for rates in ([0.0, 0.0, 0.0], [0.5, 0.5, 0.5]):
            env = started([10.0, 100.0], rates)
            gains.append(float(env.step(np.array([[4, 4]])).info["social_welfare"][0]))
        assert gains[1] > gains[0] + 10


class TestWages:
    def test_quantiles_match_samples(self) -> None:
        wages = WageDistribution(25.0, 0.5, 3.0)
        samples = wages.sample(np.random.default_rng(0).random((200_000, 3)))
        assert np.exp(np.log(samples).mean()) == pytest.approx(25, rel=0.01)
        middle = (np.arange(10) + 0.5) / 10
        assert np.quantile(samples, middle) == pytest.approx(wages.quantiles(10), rel=0.02)

    def test_upper_tail_is_pareto(self) -> None:
        samples = WageDistribution(25.0, 0.5, 3.0).sample(np.random.default_rng(0).random((400_000, 3)))
        top = samples[samples > np.quantile(samples, 0.999)]
        assert 1 / np.log(top / top.min()).mean() == pytest.approx(3.0, rel=0.2)  # Hill's estimator
        assert WageDistribution(25.0, 0.5, None).sample(np.array([[0.5, 0.25, 0.999]]))[0] == pytest.approx(25.0)

    def test_skills_are_drawn_per_episode_or_fixed(self) -> None:
        varying, fixed = make(n_envs=2), make(n_envs=2, skills="quantiles")
        for env, changes in ((varying, True), (fixed, False)):
            env.reset()
            first_wages = env._wage.copy()
            env.reset(np.array([True, False]))
            assert (first_wages[0] != env._wage[0]).any() == changes and (first_wages[1] == env._wage[1]).all()

    def test_paired_games_share_workers(self) -> None:
        env = make(n_envs=6)
        env.share_random_numbers(3)
        env.reset(seed=4)
        assert (env._wage[:2] == env._wage[2:4]).all() and (env._wage[:2] == env._wage[4:]).all()
        env.reset(seed=[4, 4, 5])
        assert (env._wage[:2] == env._wage[2:4]).all() and (env._wage[:2] != env._wage[4:]).any()


class TestGame:
    def test_spec(self) -> None:
        env = make(observe=("vector", "text"))
        assert isinstance(env, VecEnv)
        assert env.spec.action_names[:2] == ("0_hours", "10_hours") and env.spec.horizon == 3
        assert env.spec.observation["vector"].shape == (len(VECTOR_FIELDS),)
        assert env.spec.mechanism is not None
        assert env.spec.mechanism.describe_effects(np.array([0.1, 0.0, 0.0])) == (
            "Takes of each income 10% of what falls into 0 to 50,000 dollars a year; all workers share the revenue "
            "equally."
        )
        assert EconomyRules.from_facts(env.spec.facts) == env.rules

    @pytest.mark.parametrize("eta", [0.0, 1.0])
    def test_goes_on_bit_for_bit(self, eta: float) -> None:
        options = {"n_envs": 3, "eta": eta, "steps_per_year": 2, "observe": ("vector", "text")}
        original, restored = make(**options), make(**options)
        rng, actions = np.random.default_rng(0), []
        original.set_mechanism([0.1, 0.3, 0.5])
        original.reset(seed=7)
        for _ in range(3):
            original.step(rng.integers(11, size=(3, 3)))
        restored.load_state_dict(original.state_dict())
        actions = rng.integers(11, size=(8, 3, 3))
        for action in actions:
            first, second = original.step(action), restored.step(action)
            assert (first.reward == second.reward).all() and first.info.keys() == second.info.keys()
            for name, channels in first.observation.items():
                assert channels.tolist() == second.observation[name].tolist()
            if first.truncated.any():
                assert (original.reset(first.truncated)["vector"] == restored.reset(second.truncated)["vector"]).all()

    def test_completed_game_waits(self) -> None:
        env = make(years=1)
        env.reset()
        final_step = env.step(np.array([[4, 4, 4]]))
        after = env.step(np.array([[8, 8, 8]]))
        assert final_step.truncated.all() and after.truncated.all() and not final_step.terminated.any()
        assert not after.reward.any() and not any(x.any() for x in after.info.values())
        assert (final_step.observation["vector"] == after.observation["vector"]).all()

    @pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
    def test_texts_are_accurate(self, eta: float) -> None:
        env = started([20.0, 60.0], [0.1, 0.2, 0.5], eta=eta, steps_per_year=2, observe=("text",))
        previous_facts = json.loads(env.step(np.array([[4, 9]])).observation["text"][0, 1])
        assert (
            previous_facts["year"] == 1 and previous_facts["step_of_year"] == 2 and previous_facts["last_year"] is None
        )
        assert previous_facts["income_so_far_this_year"] == 60 * 90 * 26 and previous_facts["last_hours"] == 90
        step = env.step(np.array([[4, 5]]))
        facts = [json.loads(text) for text in step.observation["text"][0]]
        incomes = [20 * 40 * 52, 60 * 140 * 26]
        taxes = [0.1 * incomes[0], 5000 + 10000 + 0.5 * (incomes[1] - 100000)]
        for workers, income, tax in zip(facts, incomes, taxes, strict=True):
            last = workers["last_year"]
            assert (last["income"], last["tax_paid"]) == (income, tax)
            assert last["transfer_received"] == sum(taxes) / 2
            assert last["net_income"] == income - tax + sum(taxes) / 2
            assert workers["average_income_last_year"] == sum(incomes) / 2 and workers["tax_rates"] == [0.1, 0.2, 0.5]
            assert workers["year"] == 2 and workers["step_of_year"] == 1 and workers["income_so_far_this_year"] == 0
        net = facts[0]["last_year"]["net_income"] / 1000
        utility = env.rules.income_utility(np.array(net)) - env.rules.psi
        assert facts[0]["last_year"]["utility"] == pytest.approx(float(utility), abs=1e-3)
        description = env.spec.text
        assert description is not None and set(facts[0]) == {name for name, _ in description.observation}
        assert set(json.loads(description.example)) == set(facts[0])

    def test_texts_with_hidden_rates(self) -> None:
        env = make(show_mechanism=False, observe=("text",))
        assert "tax_rates" not in json.loads(env.reset()["text"][0, 0]) and env.spec.text is not None
        assert "tax_rates" not in {name for name, _ in env.spec.text.observation}

    def test_picture(self) -> None:
        env = make()
        env.reset()
        blank = env.render()
        env.step(np.array([[4, 5, 6]]))
        assert env.render().shape == blank.shape and env.render().dtype == np.uint8 and (env.render() != blank).any()

    def test_refusals(self) -> None:
        env = make()
        with pytest.raises(ValueError, match=r"reset\(\)"):
            env.step(np.zeros((1, 3), dtype=int))
        env.reset()
        with pytest.raises(ValueError, match=r"actions.*1.*3"):
            env.step(np.zeros((1, 2), dtype=int))
        with pytest.raises(ValueError, match=r"actions.*0.*10.*0.*11"):
            env.step(np.array([[0, 1, 11]]))
        with pytest.raises(ConfigError, match=r"rate_1=0.95 .*\[0, 0.9\]"):
            env.set_mechanism([0.95, 0, 0])
        with pytest.raises(ConfigError, match="no contexts"):
            env.set_context(0)
        with pytest.raises(ConfigError, match=r"env\.max_rate"):
            make(max_rate=1.5)
