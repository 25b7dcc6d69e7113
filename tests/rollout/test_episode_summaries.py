"""Welfare measures: definitions, logging, and use as the objective of a principal."""

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import find_run_folder, load_comparable_metrics, run
from llmrl.cli.evaluate import main as evaluate
from llmrl.core.errors import ConfigError
from llmrl.core.records import PolicyOutput, Step
from llmrl.core.seeding import Seeds
from llmrl.core.welfare_measures import OBJECTIVES, gini
from llmrl.envs.mechanisms import BracketedTax, Incentives, SocietyEvents
from llmrl.loops.design_results import score_vector
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_summaries import (
    compute_objective,
    compute_objective_from_welfare,
    compute_welfare,
    summarize_welfare,
)
from societies import make_spec
from some import mark_long_except, mark_long_except_every

incomes = st.lists(st.integers(0, 800).map(lambda x: x / 8), min_size=2, max_size=9)
returns = st.lists(st.integers(-800, 800).map(lambda x: x / 8), min_size=1, max_size=9)


class ScriptedSociety:
    """Game with given raw rewards [T, n] and cleaned cells [T, n] under a mechanism."""

    def __init__(self, raw, mechanism=None, values=(), cleaned=None):
        self.raw = np.array(raw, np.float32)
        self.cleaned = np.zeros_like(self.raw) if cleaned is None else np.array(cleaned, np.float32)
        self.mechanism, self.values = mechanism, np.array([values], np.float32)
        horizon, n_agents = self.raw.shape
        self.spec = make_spec(None, n_agents=n_agents, horizon=horizon)

    def reset(self, mask=None, seed=None):
        self.t = 0
        return {}

    def step(self, action):
        raw, cleaned = self.raw[None, self.t], self.cleaned[None, self.t]
        base = reward = raw
        if self.mechanism is not None:
            incentives = self.mechanism.settle(SocietyEvents(raw, cleaned, np.ones(raw.shape, bool)), self.values)
            base, reward = incentives.base_reward, incentives.reward
        self.t += 1
        return Step({}, reward, base, np.zeros(1, bool), np.array([self.t == len(self.raw)]))


class IdlePolicy:
    """Policy that plays action 0, or with probability `change_probability` the action `idle_action`."""

    channels = ()

    def __init__(self, spec, idle_action=0, change_probability=1.0):
        self.shape, self.idle_action, self.chance = (spec.n_envs, spec.n_agents), idle_action, change_probability

    def act(self, observation, state=None, generator=None, greedy=False):
        is_active = torch.rand(self.shape, generator=generator) < self.chance
        return PolicyOutput(
            torch.where(is_active, self.idle_action, torch.randint(1, 7, self.shape, generator=generator))
        )


def play(env, policy=None, steps=None):
    """Return the episodes that `env` plays in its horizon."""
    collector = Collector(env, policy or IdlePolicy(env.spec), "cpu")
    collector.reset(0)
    return collector.collect(steps or env.spec.horizon, Seeds(0).torch("actions"), learn=False).episodes


def summarize(raw, **kwargs):
    """Return the measures of one episode."""
    return {name: float(value[0]) for name, value in compute_welfare(play(ScriptedSociety(raw, **kwargs))).items()}


@given(returns)
def test_gini_range(x):
    assert 0 <= gini(np.array(x)) <= 1


@given(returns, st.sampled_from([0.01, 0.3, 7, 1e4]), st.randoms())
def test_gini_does_not_know_units_or_names(x, factor, random):
    value = gini(np.array(x))
    assert gini(factor * np.array(x)) == pytest.approx(value, abs=1e-12)
    assert gini(-np.array(x)) == pytest.approx(value, abs=1e-12)
    random.shuffle(x)
    assert gini(np.array(x)) == pytest.approx(value, abs=1e-12)


@given(incomes)
def test_gini_matches_normalized_textbook_value(x):
    """The formula uses ranks of incomes: 2 sum_i i x_(i) / (n sum x) - (n + 1) / n, times n / (n - 1)."""
    x = np.sort(x)
    n, total = len(x), x.sum()
    textbook = 2 * (np.arange(1, n + 1) * x).sum() / (n * total) - (n + 1) / n if total else 0.0
    assert gini(x) == pytest.approx(n / (n - 1) * textbook, abs=1e-12)


@given(st.integers(2, 9), st.integers(1, 800), st.data())
def test_gini_limits(n, value, data):
    returns = np.zeros(n)
    returns[data.draw(st.integers(0, n - 1))] = value / 7
    assert gini(np.full(n, value / 7)) == gini(np.full(n, -value / 7)) == gini(np.zeros(n)) == 0
    assert gini(returns) == gini(-returns) == pytest.approx(1, abs=1e-12)


def test_gini_with_negative_returns():
    """Maximum inequality: one agent has all gains, another has all losses."""
    assert gini(np.array([3.0, 0.0, 0.0, -2.0])) == 1
    assert gini(np.array([5.1, 0.0, -7.8])) == 1, "the quotient of its sums is larger by rounding"
    assert gini(np.array([[1.0, 3.0], [2.0, 2.0], [5.0, 0.0]])).tolist() == [0.5, 0.0, 1.0]


@given(st.lists(returns.filter(lambda x: len(x) == 3), min_size=1, max_size=4))
def test_return_statistics(raw):
    actual, total = summarize(raw), np.sum(raw, axis=0)
    reference = {"mean": total.mean(), "sum": total.sum(), "minimum": total.min(), "spending": 0.0}
    reference["gini"] = gini(total)
    reference["equality"] = 1 - gini(total)
    reference["equality_productivity"] = (1 - gini(total)) * total.sum()
    assert {name: actual[name] for name in reference} == pytest.approx(reference, abs=1e-9)
    assert "peace" not in actual


def test_equality_times_productivity():
    """A total of 10 is worth 10 in equal parts and 0 for a single agent; unequal losses have smaller magnitudes."""
    societies = {"equal": [5, 5], "skewed": [8, 2], "one": [10, 0], "losses": [-5, -5], "one loss": [-10, 0]}
    products = {name: summarize([row])["equality_productivity"] for name, row in societies.items()}
    assert products == pytest.approx({"equal": 10, "skewed": 4, "one": 0, "losses": -10, "one loss": 0})


@pytest.mark.parametrize(
    ("raw", "reference"),
    [
        ([[1, 1], [1, 1], [1, 1], [1, 1]], 2.5),  # steps 1 to 4
        ([[1, 0], [0, 0], [0, 0], [0, 1]], 2.5),  # 1 and 4
        ([[9, 0], [0, 0], [0, 0], [1, 1]], 3.25),  # 2.5, however much, and 4
        ([[1, 0], [0, 0], [0, 0], [0, 0]], 1.0),  # the other agent never gains
        ([[0, 0], [0, 0], [0, 0], [1, 1]], 4.0),
        ([[-1, 0], [0, -2], [0, 0], [0, 0]], 0.0),  # nobody gains
    ],
)
def test_sustainability(raw, reference):
    assert summarize(raw)["sustainability"] == reference


def test_sustainability_resets_per_episode():
    episodes = play(ScriptedSociety([[0, 0], [1, 1]]), steps=4)
    assert compute_welfare(episodes)["sustainability"].tolist() == [2.0, 2.0]


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 16).map(lambda x: x / 16), min_size=3, max_size=3))
def test_redistributive_tax_spends_nothing(seed, rates):
    raw = np.random.default_rng(seed).integers(0, 2, (30, 5))
    actual = summarize(raw, mechanism=BracketedTax(), values=rates)
    assert actual["spending"] == pytest.approx(0, abs=1e-3) and actual["sum"] == raw.sum()


def test_minted_incentives_are_spending():
    """Two apples at 0.5, one cleaning at 3, five times anything else at 0.25; the game pays 0.1, 0.1 and -1."""
    raw, cleaned = [[1, 0], [0, 0], [0, 1], [0, 0]], [[0, 2], [0, 0], [0, 0], [0, 0]]
    actual = summarize(raw, mechanism=Incentives(0.1), values=[0.5, 3.0, 0.25], cleaned=cleaned)
    assert actual["spending"] == pytest.approx(2 * 0.5 + 3 + 5 * 0.25)
    assert actual["sum"] == pytest.approx(-0.8) and actual["minimum"] == pytest.approx(-0.9)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_spending_cost_applies_to_all_objectives(objective):
    definition = OBJECTIVES[objective]
    episodes = play(ScriptedSociety([[1, 0, 0], [1, 1, 0]], mechanism=Incentives(), values=[1.0, 0.0, 0.5]))
    free, penalized = (compute_objective(episodes, definition, cost) for cost in (0.0, 0.2))
    np.testing.assert_allclose(free, compute_welfare(episodes)[objective])
    np.testing.assert_allclose(free - penalized, 0.2 * (3 * 1.0 + 3 * 0.5))


def test_an_outcome_tells_all_measures():
    env = ScriptedSociety([[1, 0], [2, 5]])
    collector = Collector(env, IdlePolicy(env.spec), "cpu")
    collector.reset(0)
    rollout = collector.collect(2, Seeds(0).torch("actions"), learn=False)
    outcome = score_vector(np.zeros(1), [rollout], env.spec, None, OBJECTIVES["minimum"], 0.0).outcome
    assert outcome.value == outcome.welfare["minimum"] == 3.0
    assert {f"welfare/{name}": x for name, x in outcome.welfare.items()} == summarize_welfare(rollout.episodes)


@pytest.mark.parametrize(
    ("own_measure", "cost", "spending"),
    [(np.nan, 0.0, 0.0), (np.inf, 0.0, 0.0), (0.0, 1e308, 10.0), (1e308, 1e308, -1.0), (-np.inf, 1e308, 10.0)],
)
def test_non_finite_objective_raises(own_measure, cost, spending):
    measures = {"mean": np.array([1.0, own_measure]), "spending": np.array([0.0, spending])}
    with pytest.raises(ConfigError):
        compute_objective_from_welfare(measures, OBJECTIVES["mean"], cost)
    assert compute_objective_from_welfare(
        {"mean": measures["mean"][:1], "spending": np.zeros(1)}, OBJECTIVES["mean"], cost
    ).tolist() == [1.0]


FIXED_MECHANISM = ("env=escape_room", "principal=fixed", "principal.contexts=[[5,0,0,0,1],[0,5,0,0,1],[0,0,5,0,1]]",
            "env.n_envs=8", "design.evaluations=1",
            "design.steps=2", "design.adapt_rounds=1", "design.validate_episodes=16")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "cost"), mark_long_except_every(5, itertools.product(OBJECTIVES, [0.0, 0.1])))
def test_principal_objective_follows_option(tmp_path, objective, cost):
    """Recomputed from other metrics of the run, because the games do not depend on the objective."""
    objective_options = (f"design.objective={objective}", f"design.spending_cost={cost}")
    run(*FIXED_MECHANISM, *objective_options, f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    steps = load_comparable_metrics(folder, "proposal")
    assert len(steps) == 2
    for row in steps:
        assert row["validation/incentives_paid"] > 10
        spending = 5 * (row["validation/return"] - row["validation/base_return"])
        assert row["welfare/spending"] == pytest.approx(row["validation/incentives_paid"]) == pytest.approx(spending)
        assert row["welfare/sum"] == pytest.approx(5 * row["validation/base_return"]) != 0
        assert row["welfare/mean"] == pytest.approx(row["validation/base_return"])
        assert row["welfare/minimum"] < row["welfare/mean"] and 0 < row["welfare/gini"] < 1
        assert row["welfare/equality"] == pytest.approx(1 - row["welfare/gini"])
        reference = row[f"welfare/{objective}"] - cost * row["validation/incentives_paid"]
        assert row["principal/objective"] == pytest.approx(reference) != 0
    summary = json.loads((folder / "summary.json").read_text())
    assert [step["objective"] for step in summary["history"]] == [row["principal/objective"] for row in steps]


def test_equality_productivity_for_single_episode(tmp_path):
    """The objective of one episode is the product of its logged means."""
    single_game = ("env.n_envs=1", "design.validate_episodes=1", "design.objective=equality_productivity")
    run(*FIXED_MECHANISM, *single_game, "design.spending_cost=0.1", f"output_root={tmp_path}")
    for row in load_comparable_metrics(find_run_folder(tmp_path), "proposal"):
        product = row["welfare/equality"] * 5 * row["validation/base_return"]
        assert row["principal/objective"] == pytest.approx(product - 0.1 * row["validation/incentives_paid"])


def test_learn_mode_reports_statistics(tmp_path, capsys):
    names = {"mean", "sum", "minimum", "gini", "equality", "equality_productivity", "sustainability", "spending"}
    run("env=escape_room", "env.n_envs=4", "learn.env_steps=40", "learn.evaluate_episodes=8", f"output_root={tmp_path}")
    row = load_comparable_metrics(find_run_folder(tmp_path))[-1]
    assert {name.removeprefix("welfare/") for name in row if name.startswith("welfare/")} == names
    assert row["welfare/sum"] == pytest.approx(5 * row["evaluation/base_return"]) == row["evaluation/objective"]
    objective_options = ("design.objective=minimum", "design.spending_cost=0.5", "name=with_principal")
    run(*FIXED_MECHANISM, *objective_options, f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path / "with_principal")
    evaluate([str(folder), "--episodes", "8"])
    per_episode = json.loads((folder / "evaluation" / "results.json").read_text())["per_episode"]
    assert {f"welfare/{name}" for name in names - {"mean", "sum"}} <= set(per_episode)
    np.testing.assert_allclose(per_episode["welfare/spending"], per_episode["incentives_paid"], rtol=1e-6)
    penalized = np.array(per_episode["welfare/minimum"]) - 0.5 * np.array(per_episode["incentives_paid"])
    np.testing.assert_allclose(per_episode["objective (minimum)"], penalized, rtol=1e-6)
    assert "welfare/sustainability" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize("substrate", mark_long_except(["harvest"], ["cleanup", "harvest"]))
def test_zaps_lower_peace(substrate):
    """Zapped players leave the game temporarily."""
    from llmrl.envs.melting_pot.vec_env import MeltingPotEnv
    from llmrl.envs.substrate.society_env import SubstrateSettings

    for rules, zap in [("upstream", 7), ("legislative", None)]:
        if substrate == "cleanup" and zap is None:
            continue  # zapping is part of its legislative rules
        env = MeltingPotEnv(SubstrateSettings(substrate, 1, horizon=100, rules=rules, observe=["vector"]), Seeds(0))
        try:
            policy = IdlePolicy(env.spec, idle_action=zap or 0, change_probability=0.5)
            episodes = play(env, policy)
        finally:
            env.close()
        [episode] = episodes
        [peace] = compute_welfare(episodes)["peace"]
        assert peace == episode.summaries["players_present"] == summarize_welfare(episodes)["welfare/peace"]
        assert (0 < peace < 7) if zap else peace == 7
        assert (episode.summaries["zaps"] > 0) == bool(zap)
