"""Explanatory metrics of societies on both engines, compared with their definitions step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_native_prompt_facts import ENGINES, SMALL

from llmrl.core.observers import Transition
from llmrl.core.protocols import VecEnv
from llmrl.core.records import Observation, PolicyOutput, to_numpy
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import BracketedTax, Incentives
from llmrl.rollout.collector import Collector
from native_games import flatten_step, make_native_env
from some import mark_long_except

HORIZON = 120
# A nearly flat orchard that is soon clean, and a field.
MAPS = {"cleanup": "WWWWWWW\nWHFHHHW\nWP P PW\nWBBBBBW\nWWWWWWW\n", "harvest": SMALL["harvest"]}


class Wanderers:
    """Players who walk, turn and clean at random."""

    channels = ("grid",)

    def __init__(self, n_actions: int) -> None:
        self.rng = np.random.default_rng(0)
        self.likely = np.array([1, 1, 3, 4, 5, 6, n_actions - 1])
        self.steps: list[dict[str, np.ndarray]] = []

    def act(
        self, observation: dict[str, Any], state: Any = None, generator: Any = None, greedy: bool = False
    ) -> PolicyOutput:
        shape = to_numpy(observation["grid"]).shape[:2]
        return PolicyOutput(torch.from_numpy(self.rng.choice(self.likely, size=shape)))

    def values(self, observation: dict[str, Any], state: Any = None) -> torch.Tensor:
        raise AssertionError("nobody learns")

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """Do nothing, because all episodes start at once."""

    def on_step(self, transition: Transition) -> None:
        self.steps.append({name: x.copy() for name, x in flatten_step(transition.step).items()})


def game(engine: str, substrate: str, **options: Any) -> VecEnv:
    mechanism = Incentives(eat_reward=1.0) if substrate == "cleanup" else BracketedTax(edges=[0, 2, 4])
    game_options = {
        "map": MAPS[substrate],
        "n_agents": 2,
        "horizon": HORIZON,
        "mechanism": mechanism,
        "observe": ["grid"],
    }
    if engine == "native":
        return make_native_env(substrate, 3, **{**game_options, **options})
    from llmrl.envs.melting_pot.vec_env import MeltingPotEnv
    from llmrl.envs.substrate.society_env import SubstrateSettings

    return MeltingPotEnv(SubstrateSettings(substrate, 1, **{**game_options, **options}), Seeds(0))  # type: ignore[arg-type]


def play(env: VecEnv, players: Wanderers, steps: int = HORIZON) -> list[Episode]:
    try:
        collector = Collector(env, players, "cpu")  # type: ignore[arg-type]
        collector.reset(4)
        env.set_mechanism([0.5, 1.0, 0.25])
        # In pieces, as agents who learn several times an episode play.
        pieces = [steps // 3, steps - steps // 3]
        return [e for n in pieces for e in collector.collect(n, Seeds(0).torch("a"), learn=False).episodes]
    finally:
        env.close()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("substrate", mark_long_except(["cleanup"], ["cleanup", "harvest"]))
def test_metrics_match_definitions(engine: str, substrate: str) -> None:
    env = game(engine, substrate)
    players = Wanderers(env.spec.n_actions)
    episodes = play(env, players)
    assert [e.game for e in episodes] == list(range(env.spec.n_envs))
    metrics = {name: np.array([e.summaries[name] for e in episodes]) for name in env.spec.metrics}
    steps = {name: np.stack([step[name] for step in players.steps]) for name in players.steps[0]}
    info = {name: steps[f"info/{name}"].astype(np.float64) for name in env.spec.per_step}
    apples_eaten, live = info["apples_eaten"], info["apples_live"]
    assert (apples_eaten.sum(0) > 0).any()

    def says(name: str, numerator: np.ndarray, denominator: np.ndarray) -> None:
        expected = np.divide(numerator, denominator, out=np.full(len(episodes), np.nan), where=denominator > 0)
        np.testing.assert_allclose(metrics[name], expected, rtol=1e-5, err_msg=name)

    says("mean_eating_step", (apples_eaten * np.arange(1, HORIZON + 1)[:, None]).sum(0), apples_eaten.sum(0))
    for k, quarter in enumerate(np.split(live, 4)):
        np.testing.assert_allclose(metrics[f"apples_live_quarter_{k + 1}"], quarter.mean(0))
    if substrate == "cleanup":
        shots = info["cleaning_shots"].sum(0)
        assert (shots > 0).any()
        says("apples_per_shot", apples_eaten.sum(0), shots)
        says("cells_per_shot", info["cells_cleaned"].sum(0), shots)
        jacobian_sums = steps["reward_jacobian"].astype(np.float64).sum((0, 2)) * [0.5, 1.0, 0.25]
        for k, kind in enumerate(("eat", "clean", "other")):
            assert (jacobian_sums[:, k] > 0).any()
            np.testing.assert_allclose(metrics[f"incentives_{kind}"], jacobian_sums[:, k])
        np.testing.assert_allclose(metrics["incentives_paid"], jacobian_sums.sum(1))
    else:
        raw = steps["base"].astype(np.float64)
        income = np.stack([raw[max(0, t - 10) : t + 1].sum(0) for t in range(HORIZON)])
        bracket = np.digitize(income, [2, 4])
        assert (np.bincount(bracket[raw > 0], minlength=3)[:2] > 0).all()
        for k in range(3):
            np.testing.assert_array_equal(metrics[f"apples_bracket_{k + 1}"], (raw * (bracket == k)).sum((0, 2)))


@pytest.mark.meltingpot
@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_engines_agree_on_metrics(substrate: str) -> None:
    specs = [game(engine, substrate).spec for engine in ("native", "meltingpot")]
    assert list(specs[0].metrics.items()) == list(specs[1].metrics.items()) and specs[0].details == specs[1].details


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_empty_episodes_give_nan(engine: str) -> None:
    """Use a world without apples or shots."""
    env = game(engine, "cleanup", map="WWWWWWW\nWFFFHHW\nWP P PW\nW B   W\nWWWWWWW\n", horizon=8)
    players = Wanderers(env.spec.n_actions)
    players.likely = np.array([0])
    for episode in play(env, players, 8):
        silent = {name for name, x in episode.summaries.items() if np.isnan(x)}
        yields = {"apples_per_shot", "cells_per_shot"}
        assert silent == {"mean_eating_step", *yields}


def test_omits_unknown_metrics() -> None:
    metrics = game("native", "harvest", observe=["vector"], horizon=None).spec.metrics
    assert not [name for name in metrics if "quarter" in name]


def test_principals_receive_descriptions() -> None:
    """Check that details and derived metrics are reported to users but not in prompts."""
    spec = game("native", "harvest").spec
    assert list(spec.principal_metrics) == ["apples_live", "apples_eaten", "zaps", "players_present", "tax_collected"]
    assert (
        set(spec.per_step) - set(spec.principal_metrics)
        == set(spec.details)
        == {f"apples_bracket_{k}" for k in (1, 2, 3)}
    )
