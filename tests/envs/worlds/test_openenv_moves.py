"""Names of the actions of environments behind OpenEnv's protocol."""

import json

import pytest

from llmrl.envs.pettingzoo.text_worlds import name_moves


@pytest.mark.parametrize(
    ("moves", "names"),
    [
        ([{"actions": {"player_0": "hit"}}, {"actions": {"player_0": "stick"}}], ["hit", "stick"]),
        ([{"x": "go north"}, {"x": True}, {"x": [1, -2.5]}], ["go_north", "True", "1_-2.5"]),
    ],
)
def test_names_are_the_values(moves, names):
    assert name_moves(moves) == names


@pytest.mark.parametrize("moves", [[{"a": 1}, {"b": 1}], [{}, {"a": 1}], [{"a": "!"}, {"a": "x"}]])
def test_ambiguous_moves_are_named_as_json(moves):
    assert name_moves(moves) == [json.dumps(move) for move in moves]
