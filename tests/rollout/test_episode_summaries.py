"""Measures of welfare: what they are, that runs log them, and that they are what a principal is judged on."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import comparable_metrics, only_run_folder, run
from llmrl.cli.evaluate import main as evaluate
from llmrl.core.errors import ConfigError
from llmrl.core.records import PolicyOutput, Step
from llmrl.core.seeding import Seeds
from llmrl.core.welfare_measures import OBJECTIVES, gini
from llmrl.envs.mechanisms import BracketedTax, Incentives, SocietyEvents
from llmrl.loops.proposal_outcomes import score
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_summaries import episode_welfare, judged, measures, summarize_welfare
from societies import spec

incomes = st.lists(st.integers(0, 800).map(lambda x: x / 8), min_size=2, max_size=9)
returns = st.lists(st.integers(-800, 800).map(lambda x: x / 8), min_size=1, max_size=9)


class Society:
    """One game in which given things happen: raw rewards [T, n], cells cleaned [T, n]; all under a mechanism."""

    def __init__(self, raw, mechanism=None, values=(), cleaned=None):
        self.raw = np.array(raw, np.float32)
        self.cleaned = np.zeros_like(self.raw) if cleaned is None else np.array(cleaned, np.float32)
        self.mechanism, self.values = mechanism, np.array([values], np.float32)
        horizon, n_agents = self.raw.shape
        self.spec = spec(None, n_agents=n_agents, horizon=horizon)

    def reset(self, mask=None, seed=None):
        self.t = 0
        return {}

    def step(self, action):
        raw, cleaned = self.raw[None, self.t], self.cleaned[None, self.t]
        base = reward = raw
        if self.mechanism is not None:
            settled = self.mechanism.settle(SocietyEvents(raw, cleaned, np.ones(raw.shape, bool)), self.values)
            base, reward = settled.base_reward, settled.reward(self.values)
        self.t += 1
        return Step({}, reward, base, np.zeros(1, bool), np.array([self.t == len(self.raw)]))


class Idle:
    """A policy that plays action 0, or with a chance of `other_chance` the action `other`."""

    channels = ()

    def __init__(self, spec, other=0, other_chance=1.0):
        self.shape, self.other, self.chance = (spec.n_envs, spec.n_agents), other, other_chance

    def act(self, observation, state=None, generator=None, greedy=False):
        chosen = torch.rand(self.shape, generator=generator) < self.chance
        return PolicyOutput(torch.where(chosen, self.other, torch.randint(1, 7, self.shape, generator=generator)))


def play(env, policy=None, steps=None):
    """The episodes that `env` plays in its horizon."""
    collector = Collector(env, policy or Idle(env.spec), "cpu")
    collector.reset(0)
    return collector.collect(steps or env.spec.horizon, Seeds(0).torch("actions"), learn=False).episodes


def measured(raw, **kwargs):
    """The measures of one episode."""
    return {name: float(value[0]) for name, value in measures(play(Society(raw, **kwargs))).items()}


@given(returns)
def test_gini_lies_between_0_and_1(x):
    assert 0 <= gini(np.array(x)) <= 1


@given(returns, st.sampled_from([0.01, 0.3, 7, 1e4]), st.randoms())
def test_gini_does_not_know_units_or_names(x, factor, random):
    value = gini(np.array(x))
    assert gini(factor * np.array(x)) == pytest.approx(value, abs=1e-12)
    assert gini(-np.array(x)) == pytest.approx(value, abs=1e-12)
    random.shuffle(x)
    assert gini(np.array(x)) == pytest.approx(value, abs=1e-12)


@given(incomes)
def test_gini_is_the_textbook_one_scaled_to_end_at_1(x):
    """By the ranks of sorted incomes: 2 sum_i i x_(i) / (n sum x) - (n + 1) / n, times n / (n - 1)."""
    x = np.sort(x)
    n, total = len(x), x.sum()
    textbook = 2 * (np.arange(1, n + 1) * x).sum() / (n * total) - (n + 1) / n if total else 0.0
    assert gini(x) == pytest.approx(n / (n - 1) * textbook, abs=1e-12)


@given(st.integers(2, 9), st.integers(1, 800), st.data())
def test_ends_of_gini(n, value, data):
    one = np.zeros(n)
    one[data.draw(st.integers(0, n - 1))] = value / 7
    assert gini(np.full(n, value / 7)) == gini(np.full(n, -value / 7)) == gini(np.zeros(n)) == 0
    assert gini(one) == gini(-one) == pytest.approx(1, abs=1e-12)


def test_gini_of_gains_and_losses():
    """As unequal as can be: all gains are one agent's, all losses another's."""
    assert gini(np.array([3.0, 0.0, 0.0, -2.0])) == 1
    assert gini(np.array([5.1, 0.0, -7.8])) == 1, "the quotient of its sums is larger by rounding"
    assert gini(np.array([[1.0, 3.0], [2.0, 2.0], [5.0, 0.0]])).tolist() == [0.5, 0.0, 1.0]


@given(st.lists(returns.filter(lambda x: len(x) == 3), min_size=1, max_size=4))
def test_what_agents_collect(raw):
    found, total = measured(raw), np.sum(raw, axis=0)
    expected = {"mean": total.mean(), "sum": total.sum(), "minimum": total.min(), "spending": 0.0}
    expected["gini"] = gini(total)
    expected["equality"] = 1 - gini(total)
    expected["equality_productivity"] = (1 - gini(total)) * total.sum()
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert "peace" not in found


def test_equality_times_productivity():
    """10 in equal parts is worth 10, in one hand nothing; a loss is the smaller the less equal it is."""
    societies = {"equal": [5, 5], "skewed": [8, 2], "one": [10, 0], "losses": [-5, -5], "one loss": [-10, 0]}
    of = {name: measured([row])["equality_productivity"] for name, row in societies.items()}
    assert of == pytest.approx({"equal": 10, "skewed": 4, "one": 0, "losses": -10, "one loss": 0})


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ([[1, 1], [1, 1], [1, 1], [1, 1]], 2.5),  # steps 1 to 4
        ([[1, 0], [0, 0], [0, 0], [0, 1]], 2.5),  # 1 and 4
        ([[9, 0], [0, 0], [0, 0], [1, 1]], 3.25),  # 2.5, however much, and 4
        ([[1, 0], [0, 0], [0, 0], [0, 0]], 1.0),  # the other agent never gains
        ([[0, 0], [0, 0], [0, 0], [1, 1]], 4.0),
        ([[-1, 0], [0, -2], [0, 0], [0, 0]], 0.0),  # nobody gains
    ],
)
def test_sustainability(raw, expected):
    assert measured(raw)["sustainability"] == expected


def test_sustainability_forgets_the_episode_before():
    episodes = play(Society([[0, 0], [1, 1]]), steps=4)
    assert measures(episodes)["sustainability"].tolist() == [2.0, 2.0]


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 16).map(lambda x: x / 16), min_size=3, max_size=3))
def test_a_tax_that_is_shared_out_spends_nothing(seed, rates):
    raw = np.random.default_rng(seed).integers(0, 2, (30, 5))
    found = measured(raw, mechanism=BracketedTax(), values=rates)
    assert found["spending"] == pytest.approx(0, abs=1e-3) and found["sum"] == raw.sum()


def test_minted_incentives_are_spending():
    """Two apples at 0.5, one cleaning at 3, five times anything else at 0.25; the game pays 0.1, 0.1 and -1."""
    raw, cleaned = [[1, 0], [0, 0], [0, 1], [0, 0]], [[0, 2], [0, 0], [0, 0], [0, 0]]
    found = measured(raw, mechanism=Incentives(0.1), values=[0.5, 3.0, 0.25], cleaned=cleaned)
    assert found["spending"] == pytest.approx(2 * 0.5 + 3 + 5 * 0.25)
    assert found["sum"] == pytest.approx(-0.8) and found["minimum"] == pytest.approx(-0.9)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_spending_is_charged_to_any_objective(objective):
    judged = OBJECTIVES[objective]
    episodes = play(Society([[1, 0, 0], [1, 1, 0]], mechanism=Incentives(), values=[1.0, 0.0, 0.5]))
    free, charged = (episode_welfare(episodes, judged, cost) for cost in (0.0, 0.2))
    np.testing.assert_allclose(free, measures(episodes)[objective])
    np.testing.assert_allclose(free - charged, 0.2 * (3 * 1.0 + 3 * 0.5))


def test_an_outcome_tells_all_measures():
    env = Society([[1, 0], [2, 5]])
    collector = Collector(env, Idle(env.spec), "cpu")
    collector.reset(0)
    rollout = collector.collect(2, Seeds(0).torch("actions"), learn=False)
    outcome = score(np.zeros(1), [rollout], env.spec, None, OBJECTIVES["minimum"], 0.0).outcome
    assert outcome.value == outcome.welfare["minimum"] == 3.0
    assert {f"welfare/{name}": x for name, x in outcome.welfare.items()} == summarize_welfare(rollout.episodes)


@pytest.mark.parametrize(
    ("own", "cost", "spending"),
    [(np.nan, 0.0, 0.0), (np.inf, 0.0, 0.0), (0.0, 1e308, 10.0), (1e308, 1e308, -1.0), (-np.inf, 1e308, 10.0)],
)
def test_an_objective_that_is_not_finite_is_an_error(own, cost, spending):
    measured = {"mean": np.array([1.0, own]), "spending": np.array([0.0, spending])}
    with pytest.raises(ConfigError):
        judged(measured, OBJECTIVES["mean"], cost)
    assert judged({"mean": measured["mean"][:1], "spending": np.zeros(1)}, OBJECTIVES["mean"], cost).tolist() == [1.0]


GOVERNED = ("env=escape_room", "principal=fixed", "principal.contexts=[[5,0,0,0,1],[0,5,0,0,1],[0,0,5,0,1]]",
            "env.n_envs=8", "design.steps=2", "design.adapt_rounds=1", "design.validate_episodes=16")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("cost", [0.0, 0.1])
def test_a_principal_is_judged_on_what_was_chosen(tmp_path, objective, cost):
    """Recomputed from other numbers that the run logs: the same games are played whatever they are judged by."""
    judged_on = (f"design.objective={objective}", f"design.spending_cost={cost}")
    run(*GOVERNED, *judged_on, f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path)
    steps = comparable_metrics(folder, "proposal")
    assert len(steps) == 2
    for row in steps:
        assert row["validation/incentives_paid"] > 10
        spent = 5 * (row["validation/return"] - row["validation/base_return"])
        assert row["welfare/spending"] == pytest.approx(row["validation/incentives_paid"]) == pytest.approx(spent)
        assert row["welfare/sum"] == pytest.approx(5 * row["validation/base_return"]) != 0
        assert row["welfare/mean"] == pytest.approx(row["validation/base_return"])
        assert row["welfare/minimum"] < row["welfare/mean"] and 0 < row["welfare/gini"] < 1
        assert row["welfare/equality"] == pytest.approx(1 - row["welfare/gini"])
        expected = row[f"welfare/{objective}"] - cost * row["validation/incentives_paid"]
        assert row["principal/objective"] == pytest.approx(expected) != 0
    summary = json.loads((folder / "summary.json").read_text())
    assert [step["objective"] for step in summary["history"]] == [row["principal/objective"] for row in steps]


def test_equality_productivity_of_a_single_episode(tmp_path):
    """Of one episode the logged means are its own numbers, so their product is the objective."""
    one = ("env.n_envs=1", "design.validate_episodes=1", "design.objective=equality_productivity")
    run(*GOVERNED, *one, "design.spending_cost=0.1", f"output_root={tmp_path}")
    for row in comparable_metrics(only_run_folder(tmp_path), "proposal"):
        product = row["welfare/equality"] * 5 * row["validation/base_return"]
        assert row["principal/objective"] == pytest.approx(product - 0.1 * row["validation/incentives_paid"])


def test_learning_and_evaluating_report_it_too(tmp_path, capsys):
    names = {"mean", "sum", "minimum", "gini", "equality", "equality_productivity", "sustainability", "spending"}
    run("env=escape_room", "env.n_envs=4", "learn.env_steps=40", "learn.evaluate_episodes=8", f"output_root={tmp_path}")
    row = comparable_metrics(only_run_folder(tmp_path))[-1]
    assert {name.removeprefix("welfare/") for name in row if name.startswith("welfare/")} == names
    assert row["welfare/sum"] == pytest.approx(5 * row["evaluation/base_return"]) == row["evaluation/objective"]
    judged_on = ("design.objective=minimum", "design.spending_cost=0.5", "name=with_principal")
    run(*GOVERNED, *judged_on, f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path / "with_principal")
    evaluate([str(folder), "--episodes", "8"])
    found = json.loads((folder / "evaluation" / "results.json").read_text())["per_episode"]
    assert {f"welfare/{name}" for name in names - {"mean", "sum"}} <= set(found)
    np.testing.assert_allclose(found["welfare/spending"], found["incentives_paid"], rtol=1e-6)
    charged = np.array(found["welfare/minimum"]) - 0.5 * np.array(found["incentives_paid"])
    np.testing.assert_allclose(found["objective (minimum)"], charged, rtol=1e-6)
    assert "welfare/sustainability" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_peace_is_broken_by_zaps(substrate):
    """Players who are zapped leave the game for a while; who cannot be zapped stays."""
    from llmrl.envs.melting_pot.env_spec import SubstrateSettings
    from llmrl.envs.melting_pot.vec_env import MeltingPotEnv

    for rules, zap in [("upstream", 7), ("legislative", None)]:
        if substrate == "cleanup" and zap is None:
            continue  # zapping is part of its legislative rules
        env = MeltingPotEnv(SubstrateSettings(substrate, 1, horizon=200, rules=rules, observe=["vector"]), Seeds(0))
        try:
            policy = Idle(env.spec, other=zap or 0, other_chance=0.5)
            episodes = play(env, policy)
        finally:
            env.close()
        [episode] = episodes
        [peace] = measures(episodes)["peace"]
        assert peace == episode.summaries["players_present"] == summarize_welfare(episodes)["welfare/peace"]
        assert (0 < peace < 7) if zap else peace == 7
        assert (episode.summaries["zaps"] > 0) == bool(zap)
