"""Foragers, cleaners and turn-takers do what they are called, and an escape room's crew gets all there is."""

import numpy as np
import pytest
import torch

from llmrl.agents.heuristic_agent import HeuristicAgent
from llmrl.agents.society_rules import _shifted
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.escape_room import EscapeRoom
from llmrl.envs.melting_pot.env_spec import SubstrateSettings
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.rollout.collector import Collector
from llmrl.rollout.evaluate_policy import evaluate_policy


def game(substrate, **options):
    settings = SubstrateSettings(substrate, 2, **{"observe": ["grid"], "horizon": 400, "map": "own", **options})
    return NativeEnv(settings, Seeds(0), tiles="plain")


def played(env, **options):
    return evaluate_policy(Collector(env, HeuristicAgent(env.spec, **options).policy, "cpu"), 2, Seeds(1))


def test_a_crew_gets_what_an_escape_room_has():
    env = EscapeRoom(Seeds(0), n_envs=4)
    assert all(episode.base_returns.sum() == 140 for episode in played(env))


def test_cleaners_clean_and_leave_apples():
    [one, other] = played(game("cleanup"), role="cleaner")
    for episode in (one, other):
        assert episode.summaries["cells_cleaned"] > 100
        assert episode.summaries["dirt"] < 40


def test_turn_takers_clean_and_all_of_them_eat():
    for episode in played(game("cleanup"), role="turn_taker", turn=50):
        assert episode.summaries["cells_cleaned"] > 50
        assert (episode.base_returns > 5).all()


def test_foragers_eat_what_they_see():
    view = torch.zeros((1, 1, 11, 11, 4), dtype=torch.uint8)
    view[..., 0] = 1
    policy = HeuristicAgent(game("harvest").spec, role="forager").policy
    names = game("harvest").spec.action_names

    def act(apple):
        seen = view.clone()
        seen[0, 0, *apple, 0] = 6
        return names[int(policy.act({"grid": seen}).action[0, 0])]

    assert [act((8, 5)), act((9, 4)), act((9, 7)), act((10, 5))] == ["forward", "step_left", "step_right", "backward"]
    walled = view.clone()
    walled[0, 0, 8, :, 0] = 5  # a wall ahead, and the apple behind it
    walled[0, 0, 7, 5, 0] = 6
    assert names[int(policy.act({"grid": walled}).action[0, 0])] in ("turn_left", "turn_right")


def test_turns_go_round():
    policy = HeuristicAgent(game("cleanup").spec, role="turn_taker", turn=10, at_once=2).policy
    seen = torch.zeros((1, 7, 11, 11, 4), dtype=torch.uint8)
    seen[..., 0] = 1
    seen[:, :, 8, 5, 0] = 4  # dirt ahead of everybody
    clean = game("cleanup").spec.action_names.index("clean")
    who = [
        np.flatnonzero(policy.act({"grid": seen}, torch.full((1, 7, 1), float(t))).action[0] == clean).tolist()
        for t in (0, 9, 10, 30, 35)
    ]
    assert who == [[0, 1], [0, 1], [2, 3], [0, 6], [0, 6]]


@pytest.mark.parametrize(("down", "right"), [(0, 0), (-1, 0), (-3, 0), (-2, 1), (0, -1), (2, 3)])
def test_shifting(down, right):
    cells = np.random.default_rng(0).random((2, 11, 11)) < 0.5
    found = _shifted(cells, down, right)
    for y in range(11):
        for x in range(11):
            inside = 0 <= y + down < 11 and 0 <= x + right < 11
            expected = cells[:, y + down, x + right] if inside else np.zeros(2, bool)
            np.testing.assert_array_equal(found[:, y, x], expected)


def test_roles_of_other_games_are_refused():
    with pytest.raises(ConfigError, match="needs a river to clean"):
        HeuristicAgent(game("harvest").spec, role="cleaner")
    with pytest.raises(ConfigError, match="is for env=cleanup and env=harvest"):
        HeuristicAgent(EscapeRoom(Seeds(0)).spec, role="cleaner")
    with pytest.raises(ConfigError, match=r"reads the channel 'grid'.*env\.observe"):
        HeuristicAgent(game("harvest", observe=["vector"]).spec)
