"""Texts of the package's environments are true and match the spaces."""

import json
import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options
from llmrl.envs.babyai.language import describe_view
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.texts import build_describer
from llmrl.envs.texts.describers import TEXTS_DIR, list_shipped_texts

MUJOCO = ("InvertedPendulum", "InvertedDoublePendulum", "Reacher", "Swimmer", "Hopper", "Walker2d")
GAMES = {
    option["text"]: option["id"]
    for option in load_options("env").values()
    if option.get("text") not in (None, "own") and option["_target_"].endswith(".GymnasiumEnv")
} | {"lunar_lander_vectors": "LunarLander-v3", "taxi_number": "Taxi-v4"}

WORLDS = ("connect_four", "tictactoe")
"""Of PettingZoo, see tests/envs/worlds."""


class TestPackageTexts:
    def test_all_texts_are_covered(self):
        assert set(list_shipped_texts()) == set(GAMES) | set(WORLDS)

    @pytest.mark.parametrize("name", GAMES)
    def test_texts_match_games(self, name):
        """Check that each field is described in each state and that each action has a name and a meaning."""
        import minigrid  # noqa: F401  (registers its levels)

        if GAMES[name].startswith(MUJOCO):
            pytest.importorskip("mujoco")
        words = build_describer(name, EnvFactory(GAMES[name]))
        env = gymnasium.make(GAMES[name], disable_env_checker=True)
        env.action_space.seed(0)
        names = [field for field, _ in words.game.observation if "." not in field]
        observation, info = env.reset(seed=0)
        for _ in range(20):
            description = json.loads(words.describe(observation, info))
            assert list(description) == names
            observation, _, terminated, truncated, info = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, info = env.reset()
        choices = env.action_space
        assert len(words.game.actions) == (choices.n if isinstance(choices, spaces.Discrete) else choices.shape[0])
        assert "{" not in words.game.goal and "Changed settings" not in words.game.goal
        assert all(action_text for _, action_text in words.game.actions)
        env.close()

    @pytest.mark.parametrize("file", sorted(TEXTS_DIR.glob("*.yaml")), ids=lambda file: file.stem)
    def test_files_have_header_comments(self, file):
        assert file.read_text().startswith("# ")


class TestObservationText:
    def test_taxi_is_decoded(self):
        """Compare with Gymnasium's own decoding in all 500 states."""
        words = build_describer("taxi", EnvFactory("Taxi-v4"))
        game = gymnasium.make("Taxi-v4").unwrapped
        stands = ["Red", "Green", "Yellow", "Blue"]
        for state in range(500):
            row, column, passenger, destination = game.decode(state)
            description = json.loads(words.describe(state, {}))
            location = "in the taxi" if passenger == 4 else f"at {stands[passenger]}"
            assert list(description.values()) == [row, column, location, stands[destination]]

    def test_blackjack(self):
        words = build_describer("blackjack", EnvFactory("Blackjack-v1"))
        assert json.loads(words.describe((15, 1, 0), {})) == {"player_sum": 15, "dealer_card": 1, "usable_ace": "no"}
        assert "1 is an ace" in dict(words.game.observation)["dealer_card"]

    @pytest.mark.parametrize("name", ["taxi", "taxi_number"])
    def test_taxi_rewards(self, name):
        """Compare pickup and dropoff in each state with Gymnasium's own table."""
        goal = build_describer(name, EnvFactory("Taxi-v4")).game.goal
        assert "Each step costs 1. Delivering the passenger gives 20 instead." in goal
        assert "A pickup where the passenger does not wait costs 10 instead" in goal
        assert "so does a dropoff without the passenger or away from the stands" in goal
        game = gymnasium.make("Taxi-v4").unwrapped
        for state in range(500):
            row, column, passenger, destination = game.decode(state)
            stand_index = game.locs.index((row, column)) if (row, column) in game.locs else None
            waits = passenger < 4 and passenger == stand_index
            [(_, after, reward, _)] = game.P[state][4]
            assert reward == (-1 if waits else -10)
            [(_, after, reward, done)] = game.P[state][5]
            if passenger != 4 or stand_index is None:
                assert (after, reward, done) == (state, -10, False)
            else:
                # At another stand the passenger gets out and waits.
                assert list(game.decode(after))[2] == stand_index
                assert (reward, done) == ((20, True) if stand_index == destination else (-1, False))

    def test_lander_parts(self):
        words = build_describer("lunar_lander", EnvFactory("LunarLander-v3"))
        observation = np.array([0.1, 1.23456, -0.5, -0.25, 0, -0.0001, 1, 0], dtype=np.float32)
        description = json.loads(words.describe(observation, {}))
        assert description == {
            **{"x": 0.1, "y": 1.235, "vx": -0.5, "vy": -0.25, "angle": 0.0, "angular_speed": 0.0},
            **{"left_leg": "yes", "right_leg": "no"},
        }

    @pytest.mark.parametrize("kwargs", [{}, {"map_name": "8x8"}, {"desc": ["SFH", "FFG"], "is_slippery": False}])
    def test_lake_map(self, kwargs):
        words = build_describer("frozen_lake", EnvFactory("FrozenLake-v1", kwargs))
        lake = gymnasium.make("FrozenLake-v1", **kwargs).unwrapped.desc.astype(str)
        assert "\n".join("".join(row) for row in lake) in words.game.goal
        assert ("not slippery" in words.game.goal) == (kwargs.get("is_slippery") is False)
        tiles = {"S": "start", "F": "ice", "H": "hole", "G": "goal"}
        rows, columns = lake.shape
        for state in range(rows * columns):
            description = json.loads(words.describe(state, {}))
            row, column = divmod(state, columns)
            assert (description["row"], description["column"]) == (row, column)
            right = tiles[lake[row, column + 1]] if column + 1 < columns else "edge of the map"
            assert description["neighbors"]["right"] == right

    def test_slip_probability(self):
        words = build_describer("frozen_lake", EnvFactory("FrozenLake-v1", {"success_rate": 0.8}))
        assert "probability 0.8" in words.game.goal
        for slippery, pattern in (
            (True, "The ground is slippery.*probability 0.33"),
            (False, "ground is not slippery"),
        ):
            words = build_describer("cliff_walking", EnvFactory("CliffWalking-v1", {"is_slippery": slippery}))
            assert re.search(pattern, words.game.goal)

    @pytest.mark.parametrize(
        ("text", "game", "states"),
        [
            ("frozen_lake", EnvFactory("FrozenLake-v1", {"map_name": "8x8"}), 64),
            ("cliff_walking", EnvFactory("CliffWalking-v1"), 48),
            ("own", EnvFactory("llmrl/Maze-v0"), 9),
            ("own", EnvFactory("llmrl/Nim-v0"), 11),
            ("taxi", EnvFactory("Taxi-v4"), 500),
        ],
    )
    def test_state_numbering(self, text, game, states):
        """Compare the rule for state numbers with the text of each state."""
        words = build_describer(text, game)
        for s in range(states):
            description = json.loads(words.describe(s, {}))
            for name, state_text, rest, values in re.findall(
                r"(\w+) = s(?: // (\d+))?(?: % (\d+))?(?: (\([^)]*\)))?", words.game.states
            ):
                value = s // int(state_text or 1) % int(rest or states)
                assert description[name] == value or f'{value} "{description[name]}"' in values
            assert words.game.states.count(" = ") == len([key for key in description if key != "neighbors"])


class TestGridView:
    """The sentences of BabyAI-Text, in their order."""

    def view(self, *objects, carrying=None):
        image = np.zeros((7, 7, 3), dtype=np.uint8)
        image[:, :, 0] = 1
        for right, forward, kind, color, state in objects:
            image[3 + right, 6 - forward] = (kind, color, state)
        if carrying:
            image[3, 6] = (*carrying, 0)
        return image

    def test_published_example(self):
        """Check the first observation of a level. A wall is on the left, and ten objects follow column by column."""
        objects = [
            *((-1, 2, 5, 3, 0), (-1, 1, 5, 4, 0), (0, 4, 5, 4, 0), (0, 3, 6, 1, 0), (1, 5, 6, 5, 0)),
            *((1, 2, 5, 1, 0), (1, 1, 6, 5, 0), (2, 4, 5, 1, 0), (2, 2, 7, 0, 0)),
        ]
        walls = [(-2, forward, 2, 5, 0) for forward in range(7)]
        assert describe_view(self.view(*objects, *walls)) == [
            "You see a wall 2 steps left",
            "You see a purple key 1 step left and 2 steps forward",
            "You see a yellow key 1 step left and 1 step forward",
            "You see a yellow key 4 steps forward",
            "You see a green ball 3 steps forward",
            "You see a grey ball 1 step right and 5 steps forward",
            "You see a green key 1 step right and 2 steps forward",
            "You see a grey ball 1 step right and 1 step forward",
            "You see a green key 2 steps right and 4 steps forward",
            "You see a red box 2 steps right and 2 steps forward",
        ]

    def test_door_states(self):
        shown_sentences = describe_view(self.view((0, 2, 4, 3, 0), (2, 0, 4, 0, 2), carrying=(5, 0)))
        assert shown_sentences == [
            "You carry a red key",
            "You see a open purple door 2 steps forward",
            "You see a locked red door 2 steps right",
        ]

    def test_object_occludes_wall(self):
        wall, ball = (0, 5, 2, 5, 0), (0, 2, 6, 2, 0)
        assert describe_view(self.view(wall)) == ["You see a wall 5 steps forward"]
        assert describe_view(self.view(wall, ball)) == ["You see a blue ball 2 steps forward"]

    def test_text_of_different_game(self):
        with pytest.raises(ConfigError, match=r"grid_view.*MiniGrid.*BabyAI"):
            build_describer("minigrid", EnvFactory("Taxi-v4"))
