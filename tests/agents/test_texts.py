"""Environments in words: what is told of the shipped ones is true of them, and fits their spaces."""

import json
import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from llmrl.core.errors import ConfigError
from llmrl.core.option_files import options
from llmrl.envs.babyai.sentences import sentences
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.texts import describer
from llmrl.envs.texts.registry import FILES, shipped

MUJOCO = ("InvertedPendulum", "InvertedDoublePendulum", "Reacher", "Swimmer", "Hopper", "Walker2d")
GAMES = {
    option["text"]: option["id"]
    for option in options("env").values()
    if option.get("text") not in (None, "own") and option["_target_"].endswith(".GymnasiumEnv")
} | {"lunar_lander_vectors": "LunarLander-v3", "taxi_number": "Taxi-v4"}

WORLDS = ("connect_four", "tictactoe")
"""Of PettingZoo, see tests/envs/worlds."""


class TestShipped:
    def test_all_are_tested(self):
        assert set(shipped()) == set(GAMES) | set(WORLDS)

    @pytest.mark.parametrize("name", GAMES)
    def test_they_fit_their_games(self, name):
        """Every field is told in every state, and every action has a name and a meaning."""
        import minigrid  # noqa: F401  (registers its levels)

        if GAMES[name].startswith(MUJOCO):
            pytest.importorskip("mujoco")
        words = describer(name, EnvFactory(GAMES[name]))
        env = gymnasium.make(GAMES[name], disable_env_checker=True)
        env.action_space.seed(0)
        names = [field for field, _ in words.game.observation if "." not in field]
        observation, info = env.reset(seed=0)
        for _ in range(20):
            told = json.loads(words.describe(observation, info))
            assert list(told) == names
            observation, _, terminated, truncated, info = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, info = env.reset()
        choices = env.action_space
        assert len(words.game.actions) == (choices.n if isinstance(choices, spaces.Discrete) else choices.shape[0])
        assert "{" not in words.game.goal and "Changed settings" not in words.game.goal
        assert all(said for _, said in words.game.actions)
        env.close()

    @pytest.mark.parametrize("file", sorted(FILES.glob("*.yaml")), ids=lambda file: file.stem)
    def test_their_files_say_what_they_are_about(self, file):
        assert file.read_text().startswith("# ")


class TestWhatIsTold:
    def test_taxi_is_decoded(self):
        """Against Gymnasium's own decoding, in all 500 states."""
        words = describer("taxi", EnvFactory("Taxi-v4"))
        game = gymnasium.make("Taxi-v4").unwrapped
        stands = ["Red", "Green", "Yellow", "Blue"]
        for state in range(500):
            row, column, passenger, destination = game.decode(state)
            told = json.loads(words.describe(state, {}))
            where = "in the taxi" if passenger == 4 else f"at {stands[passenger]}"
            assert list(told.values()) == [row, column, where, stands[destination]]

    def test_blackjack(self):
        words = describer("blackjack", EnvFactory("Blackjack-v1"))
        assert json.loads(words.describe((15, 1, 0), {})) == {"player_sum": 15, "dealer_card": 1, "usable_ace": "no"}
        assert "1 is an ace" in dict(words.game.observation)["dealer_card"]

    @pytest.mark.parametrize("name", ["taxi", "taxi_number"])
    def test_what_the_taxi_pays_for(self, name):
        """A pickup and a dropoff, in every state, against Gymnasium's own table."""
        goal = describer(name, EnvFactory("Taxi-v4")).game.goal
        assert "Each step costs 1. Delivering the passenger gives 20 instead." in goal
        assert "A pickup where the passenger does not wait costs 10 instead" in goal
        assert "so does a dropoff without the passenger or away from the stands" in goal
        game = gymnasium.make("Taxi-v4").unwrapped
        for state in range(500):
            row, column, passenger, destination = game.decode(state)
            here = game.locs.index((row, column)) if (row, column) in game.locs else None
            waits = passenger < 4 and passenger == here
            [(_, after, reward, _)] = game.P[state][4]
            assert reward == (-1 if waits else -10)
            [(_, after, reward, over)] = game.P[state][5]
            if passenger != 4 or here is None:
                assert (after, reward, over) == (state, -10, False)
            else:
                # At another stand the passenger gets out and waits.
                assert list(game.decode(after))[2] == here
                assert (reward, over) == ((20, True) if here == destination else (-1, False))

    def test_a_lander_is_told_part_by_part(self):
        words = describer("lunar_lander", EnvFactory("LunarLander-v3"))
        seen = np.array([0.1, 1.23456, -0.5, -0.25, 0, -0.0001, 1, 0], dtype=np.float32)
        told = json.loads(words.describe(seen, {}))
        assert told == {
            **{"x": 0.1, "y": 1.235, "vx": -0.5, "vy": -0.25, "angle": 0.0, "angular_speed": 0.0},
            **{"left_leg": "yes", "right_leg": "no"},
        }

    @pytest.mark.parametrize("kwargs", [{}, {"map_name": "8x8"}, {"desc": ["SFH", "FFG"], "is_slippery": False}])
    def test_the_lake_that_is_played(self, kwargs):
        words = describer("frozen_lake", EnvFactory("FrozenLake-v1", kwargs))
        lake = gymnasium.make("FrozenLake-v1", **kwargs).unwrapped.desc.astype(str)
        assert "\n".join("".join(row) for row in lake) in words.game.goal
        assert ("not slippery" in words.game.goal) == (kwargs.get("is_slippery") is False)
        tiles = {"S": "start", "F": "ice", "H": "hole", "G": "goal"}
        rows, columns = lake.shape
        for state in range(rows * columns):
            told = json.loads(words.describe(state, {}))
            row, column = divmod(state, columns)
            assert (told["row"], told["column"]) == (row, column)
            right = tiles[lake[row, column + 1]] if column + 1 < columns else "edge of the map"
            assert told["neighbours"]["right"] == right

    def test_slipping_as_often_as_asked_for(self):
        words = describer("frozen_lake", EnvFactory("FrozenLake-v1", {"success_rate": 0.8}))
        assert "probability 0.8" in words.game.goal
        for slippery, said in ((True, "The ground is slippery.*probability 0.33"), (False, "ground is not slippery")):
            words = describer("cliff_walking", EnvFactory("CliffWalking-v1", {"is_slippery": slippery}))
            assert re.search(said, words.game.goal)

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
    def test_which_state_is_which(self, text, game, states):
        """The rule says of every state what is told of it."""
        words = describer(text, game)
        for s in range(states):
            told = json.loads(words.describe(s, {}))
            for name, over, rest, values in re.findall(
                r"(\w+) = s(?: // (\d+))?(?: % (\d+))?(?: (\([^)]*\)))?", words.game.states
            ):
                value = s // int(over or 1) % int(rest or states)
                assert told[name] == value or f'{value} "{told[name]}"' in values
            assert words.game.states.count(" = ") == len([key for key in told if key != "neighbours"])


class TestGridView:
    """The sentences of BabyAI-Text, in their order."""

    def view(self, *things, carrying=None):
        image = np.zeros((7, 7, 3), dtype=np.uint8)
        image[:, :, 0] = 1
        for right, forward, kind, colour, state in things:
            image[3 + right, 6 - forward] = (kind, colour, state)
        if carrying:
            image[3, 6] = (*carrying, 0)
        return image

    def test_the_published_example(self):
        """The first observation of a level: a wall to the left, and ten objects column by column, far to near."""
        objects = [
            *((-1, 2, 5, 3, 0), (-1, 1, 5, 4, 0), (0, 4, 5, 4, 0), (0, 3, 6, 1, 0), (1, 5, 6, 5, 0)),
            *((1, 2, 5, 1, 0), (1, 1, 6, 5, 0), (2, 4, 5, 1, 0), (2, 2, 7, 0, 0)),
        ]
        walls = [(-2, forward, 2, 5, 0) for forward in range(7)]
        assert sentences(self.view(*objects, *walls)) == [
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

    def test_doors_and_what_is_carried(self):
        seen = sentences(self.view((0, 2, 4, 3, 0), (2, 0, 4, 0, 2), carrying=(5, 0)))
        assert seen == [
            "You carry a red key",
            "You see a open purple door 2 steps forward",
            "You see a locked red door 2 steps right",
        ]

    def test_an_object_hides_the_wall_behind_it(self):
        wall, ball = (0, 5, 2, 5, 0), (0, 2, 6, 2, 0)
        assert sentences(self.view(wall)) == ["You see a wall 5 steps forward"]
        assert sentences(self.view(wall, ball)) == ["You see a blue ball 2 steps forward"]

    def test_of_another_game(self):
        with pytest.raises(ConfigError, match="the decoder grid_view is for MiniGrid and BabyAI"):
            describer("minigrid", EnvFactory("Taxi-v4"))
