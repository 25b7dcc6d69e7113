"""Rules of foragers, cleaners, turn-takers and the crew of an escape room."""

import numpy as np
import pytest
import torch

from environments import make_env
from llmrl.agents.heuristic_agent import HeuristicAgent, _shift_cells
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.rollout.collector import Collector, evaluate_policy


def game(substrate, **options):
    settings = SubstrateSettings(substrate, 2, **{"observe": ["grid"], "horizon": 400, "map": "own", **options})
    return NativeEnv(settings, Seeds(0), tile_source="plain")


def play(env, **options):
    return evaluate_policy(Collector(env, HeuristicAgent(env.spec, **options).policy, "cpu"), 2, Seeds(1))


def test_rule_solves_escape_room():
    env = make_env("escape_room", n_envs=4)
    assert all(episode.base_returns.sum() == 140 for episode in play(env))


def test_cleaners_skip_apples():
    [cleaner, idle] = play(game("cleanup"), role="cleaner")
    for episode in (cleaner, idle):
        assert episode.summaries["cells_cleaned"] > 100
        assert episode.summaries["dirt"] < 40


def test_turn_takers_alternate_tasks():
    for episode in play(game("cleanup"), role="turn_taker", turn=50):
        assert episode.summaries["cells_cleaned"] > 50
        assert (episode.base_returns > 5).all()


def test_foragers_eat_visible_apples():
    view = torch.zeros((1, 1, 11, 11, 4), dtype=torch.uint8)
    view[..., 0] = 1
    policy = HeuristicAgent(game("harvest").spec, role="forager").policy
    names = game("harvest").spec.action_names

    def act(apple):
        view_copy = view.clone()
        view_copy[0, 0, *apple, 0] = 6
        return names[int(policy.act({"grid": view_copy}).action[0, 0])]

    assert [act((8, 5)), act((9, 4)), act((9, 7)), act((10, 5))] == ["forward", "step_left", "step_right", "backward"]
    view_with_wall = view.clone()
    view_with_wall[0, 0, 8, :, 0] = 5  # a wall ahead, and the apple behind it
    view_with_wall[0, 0, 7, 5, 0] = 6
    assert names[int(policy.act({"grid": view_with_wall}).action[0, 0])] in ("turn_left", "turn_right")


def test_turns_go_round():
    policy = HeuristicAgent(game("cleanup").spec, role="turn_taker", turn=10, max_cleaners=2).policy
    view_copy = torch.zeros((1, 7, 11, 11, 4), dtype=torch.uint8)
    view_copy[..., 0] = 1
    view_copy[:, :, 8, 5, 0] = 4  # dirt ahead of everybody
    clean = game("cleanup").spec.action_names.index("clean")
    acting = [
        np.flatnonzero(policy.act({"grid": view_copy}, torch.full((1, 7, 1), float(t))).action[0] == clean).tolist()
        for t in (0, 9, 10, 30, 35)
    ]
    assert acting == [[0, 1], [0, 1], [2, 3], [0, 6], [0, 6]]


@pytest.mark.parametrize(("dy", "right"), [(0, 0), (-1, 0), (-3, 0), (-2, 1), (0, -1), (2, 3)])
def test_shifting(dy, right):
    cells = np.random.default_rng(0).random((2, 11, 11)) < 0.5
    shifted = _shift_cells(cells, dy, right)
    for y in range(11):
        for x in range(11):
            in_view = 0 <= y + dy < 11 and 0 <= x + right < 11
            expected = cells[:, y + dy, x + right] if in_view else np.zeros(2, bool)
            np.testing.assert_array_equal(shifted[:, y, x], expected)


def test_rejects_unknown_roles():
    with pytest.raises(ConfigError, match="river"):
        HeuristicAgent(game("harvest").spec, role="cleaner")
    with pytest.raises(ConfigError, match=r"agent\.role=cleaner.*env=harvest"):
        HeuristicAgent(make_env("escape_room").spec, role="cleaner")
    with pytest.raises(ConfigError, match=r"'grid'.*env\.observe"):
        HeuristicAgent(game("harvest", observe=["vector"]).spec)
