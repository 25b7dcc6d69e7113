"""Environments in words: what is told fits the spaces, can be read back, and what a text lacks is named."""

import json
import re

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.cli.compose import options
from llmrl.core.errors import ConfigError
from llmrl.core.spaces import GameText
from llmrl.envs.gym.games import GameMaker
from llmrl.envs.texts import describer, describer_of
from llmrl.envs.texts.find import FILES, shipped
from llmrl.envs.texts.grid_view import sentences
from llmrl.envs.texts.own import draft, draft_actions
from llmrl.envs.texts.schema import parse_text, read_text
from llmrl.envs.texts.telling import teller

MUJOCO = ("InvertedPendulum", "InvertedDoublePendulum", "Reacher", "Swimmer", "Hopper", "Walker2d")
GAMES = {
    option["text"]: option["id"] for option in options("env").values() if option.get("text") not in (None, "own")
} | {"lunar_lander_vectors": "LunarLander-v3", "taxi_number": "Taxi-v4"}
TEXT = {
    "goal": "Win.",
    "observation": {"x": {"description": "a place"}, "y": {"description": "a height"}},
    "actions": {"left": "go left", "right": "go right"},
}


class TestShipped:
    def test_all_are_tested(self):
        assert set(shipped()) == set(GAMES)

    @pytest.mark.parametrize("name", GAMES)
    def test_they_fit_their_games(self, name):
        """Every field is told in every state, and every action has a name and a meaning."""
        import minigrid  # noqa: F401  (registers its levels)

        if GAMES[name].startswith(MUJOCO):
            pytest.importorskip("mujoco")
        words = describer(name, GameMaker(GAMES[name]))
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
        assert "{" not in words.game.goal and all(said for _, said in words.game.actions)
        env.close()

    @pytest.mark.parametrize("file", sorted(FILES.glob("*.yaml")), ids=lambda file: file.stem)
    def test_their_files_say_what_they_are_about(self, file):
        assert yaml.safe_load(file.read_text())["about"]


class TestWhatIsTold:
    def test_taxi_is_decoded(self):
        """Against Gymnasium's own decoding, in all 500 states."""
        words = describer("taxi", GameMaker("Taxi-v4"))
        game = gymnasium.make("Taxi-v4").unwrapped
        stands = ["Red", "Green", "Yellow", "Blue"]
        for state in range(500):
            row, column, passenger, destination = game.decode(state)
            told = json.loads(words.describe(state, {}))
            where = "in the taxi" if passenger == 4 else f"at {stands[passenger]}"
            assert list(told.values()) == [row, column, where, stands[destination]]

    def test_blackjack(self):
        words = describer("blackjack", GameMaker("Blackjack-v1"))
        assert json.loads(words.describe((15, 1, 0), {})) == {"player_sum": 15, "dealer_card": 1, "usable_ace": "no"}
        assert "1 is an ace" in dict(words.game.observation)["dealer_card"]

    def test_a_lander_is_told_part_by_part(self):
        words = describer("lunar_lander", GameMaker("LunarLander-v3"))
        seen = np.array([0.1, 1.23456, -0.5, -0.25, 0, -0.0001, 1, 0], dtype=np.float32)
        told = json.loads(words.describe(seen, {}))
        assert told == {
            **{"x": 0.1, "y": 1.235, "vx": -0.5, "vy": -0.25, "angle": 0.0, "angular_speed": 0.0},
            **{"left_leg": "yes", "right_leg": "no"},
        }

    @pytest.mark.parametrize("kwargs", [{}, {"map_name": "8x8"}, {"desc": ["SFH", "FFG"], "is_slippery": False}])
    def test_the_lake_that_is_played(self, kwargs):
        words = describer("frozen_lake", GameMaker("FrozenLake-v1", kwargs))
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
        words = describer("frozen_lake", GameMaker("FrozenLake-v1", {"success_rate": 0.8}))
        assert "probability 0.8" in words.game.goal
        for slippery, said in ((True, "The ground is slippery.*probability 0.33"), (False, "ground is not slippery")):
            words = describer("cliff_walking", GameMaker("CliffWalking-v1", {"is_slippery": slippery}))
            assert re.search(said, words.game.goal)

    @pytest.mark.parametrize(
        ("text", "game", "states"),
        [
            ("frozen_lake", GameMaker("FrozenLake-v1", {"map_name": "8x8"}), 64),
            ("cliff_walking", GameMaker("CliffWalking-v1"), 48),
            ("own", GameMaker("llmrl/Maze-v0"), 9),
            ("own", GameMaker("llmrl/Nim-v0"), 11),
            ("taxi", GameMaker("Taxi-v4"), 500),
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


class TestCircumstances:
    """What is told of the environment as it was made, not of its kind."""

    @pytest.mark.parametrize(
        ("text", "maker", "steps"),
        [
            ("taxi", GameMaker("Taxi-v4"), 200),
            ("taxi", GameMaker("Taxi-v4", horizon=50), 50),
            ("cartpole", GameMaker("CartPole-v1", horizon=70), 70),
            ("own", GameMaker("llmrl/Pong-v0", horizon=300), 300),
            ("auto", GameMaker("Pendulum-v1"), 200),
            ("minigrid", GameMaker("MiniGrid-Empty-5x5-v0", {"max_steps": 30}), 30),
            ("minigrid", GameMaker("MiniGrid-Empty-5x5-v0", {"max_steps": 30}, horizon=20), 20),
            ("cliff_walking", GameMaker("CliffWalking-v1"), None),
            ("blackjack", GameMaker("Blackjack-v1"), None),
            ("babyai", GameMaker("BabyAI-GoToRedBall-v0"), None),
        ],
    )
    def test_the_limit_of_steps(self, text, maker, steps):
        told = re.findall(r"(?:after|lasts) (\d+) steps(?! or more)", describer(text, maker).game.goal)
        assert told == ([] if steps is None else [str(steps)])

    @pytest.mark.parametrize(
        ("text", "name", "kwargs", "said"),
        [
            ("taxi", "Taxi-v4", {"is_rainy": True, "rainy_probability": 0.7}, "with probability 0.7"),
            ("taxi", "Taxi-v4", {"fickle_passenger": True}, "the passenger changes the destination"),
            ("blackjack", "Blackjack-v1", {"natural": True, "sab": False}, "gives 1.5"),
        ],
    )
    def test_arguments_that_change_the_rules(self, text, name, kwargs, said):
        assert said in describer(text, GameMaker(name, kwargs)).game.goal
        assert said not in describer(text, GameMaker(name)).game.goal

    def test_wind(self):
        pytest.importorskip("Box2D")
        for enable_wind in (True, False):
            goal = describer("lunar_lander", GameMaker("LunarLander-v3", {"enable_wind": enable_wind})).game.goal
            assert ("There is wind" in goal) is enable_wind


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
            describer("minigrid", GameMaker("Taxi-v4"))


def box(n):
    return spaces.Box(-10, 10, (n,), dtype=np.float32)


SPACES = [
    spaces.Discrete(5),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    box(4),
    spaces.Box(-np.inf, np.inf, (2, 2)),
    spaces.Text(8),
    spaces.Tuple([spaces.Discrete(3), box(2)]),
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Dict({"c": box(1), "d": spaces.Text(4)}), "e": box(3)}),
]


class TestAnySpace:
    @pytest.mark.parametrize("space", SPACES, ids=str)
    def test_a_draft_tells_it(self, space):
        tell = teller(space, draft(space), 3, "here")
        space.seed(0)
        for _ in range(10):
            told = tell(space.sample())
            assert json.loads(json.dumps(told, allow_nan=False)) == told

    @given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=2, max_size=2))
    @settings(max_examples=50, deadline=None)
    def test_any_number_becomes_json(self, numbers):
        text = parse_text(TEXT, "t")
        told = teller(box(2), text.observation, 3, "here")(np.array(numbers, dtype=np.float32))
        assert list(json.loads(json.dumps(told, allow_nan=False))) == ["x", "y"]

    def test_nested_names(self):
        space = spaces.Dict({"lander": box(2), "legs": spaces.MultiBinary(2)})
        content = {
            "lander": {"description": "the lander", "fields": {"x": "place", "y": "height"}},
            "legs": {"description": "contact", "size": 2},
        }
        text = parse_text({**TEXT, "observation": content}, "t")
        told = teller(space, text.observation, 2, "here")({"lander": np.array([0.123, 1]), "legs": np.array([1, 0])})
        assert told == {"lander": {"x": 0.12, "y": 1.0}, "legs": [1, 0]}

    @pytest.mark.parametrize(
        "space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2), box(2)], ids=str
    )
    def test_drafts_of_actions(self, space):
        n = 3 if isinstance(space, spaces.Discrete) else 2
        assert len(draft_actions(space)) == n


class TestFaults:
    """Every one is named, with the place."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"goal": None}, "t has no 'goal'"),
            ({"goal": "  "}, "t has no 'goal'"),
            ({"observation": None}, "t has no 'observation'"),
            ({"observation": {}}, "t: observation is empty"),
            ({"observation": {"x": {"unit": "m"}}}, "t: observation.x has no 'description'"),
            ({"observation": {"x": {"description": "a", "colour": "b"}}}, "t: observation.x has 'colour'"),
            ({"observation": {"x": {"description": "a", "range": 3}}}, "t: observation.x.range: a list of two"),
            ({"observation": {"x": {"description": "a", "size": 0}}}, "t: observation.x.size=0"),
            ({"observation": {"x": {"description": "a", "values": "b"}}}, "t: observation.x.values: a list"),
            ({"observation": {"x": {"description": "a", "fields": {"y": {}}}}}, "t: observation.x.fields.y has no"),
            ({"observation": ["x"]}, "t: observation: a mapping of names"),
            ({"actions": None}, "t has no 'actions'"),
            ({"actions": {"left": ""}}, "t: actions.left has no description"),
            ({"decimals": -1}, "t: decimals=-1"),
            ({"rewards": "many"}, "t has 'rewards', and a text has: about"),
        ],
    )
    def test_of_a_text(self, change, message):
        with pytest.raises(ConfigError) as error:
            parse_text({**TEXT, **change}, "t")
        assert str(error.value).startswith(message)

    @pytest.mark.parametrize(
        ("space", "message"),
        [
            (box(3), "names 2 numbers (x, y), and the observation has 3"),
            (spaces.Discrete(5), "tells x 1 x y 1 = 1 states apart, and there are 5"),
            (spaces.Tuple([spaces.Discrete(2)] * 3), "has 2 fields, and the observation has 3 members"),
            (spaces.Dict({"x": box(1), "z": box(1)}), "lacks 'z', which is part of the observation"),
            (spaces.Dict({"x": box(1)}), "has 'y', and the observation has: x"),
            (spaces.Text(3), "has 2 fields, and the observation is one Text"),
        ],
        ids=str,
    )
    def test_of_fields_for_another_space(self, space, message):
        with pytest.raises(ConfigError) as error:
            teller(space, parse_text(TEXT, "t").observation, 3, "t: observation")
        assert message in str(error.value)

    @pytest.mark.parametrize(
        ("space", "field", "message"),
        [
            (box(4), {"size": 3}, "names 3 numbers (x), and the observation has 4"),
            (box(2), {"values": ["no", "yes"]}, "names 1 numbers (x), and the observation has 2"),
            (box(2), {"values": ["no", "yes"], "size": 2}, "has values, which name one number, and 2 numbers"),
            (spaces.Discrete(5), {"size": 4}, "tells x 4 = 4 states apart, and there are 5"),
            (spaces.Dict({"x": box(4)}), {"size": 3}, "names 3 numbers (x), and the observation has 4"),
        ],
        ids=str,
    )
    def test_of_a_single_field(self, space, field, message):
        text = parse_text({**TEXT, "observation": {"x": {"description": "a place", **field}}}, "t")
        with pytest.raises(ConfigError) as error:
            teller(space, text.observation, 3, "t: observation")
        assert message in str(error.value)

    @pytest.mark.parametrize("space", [box(1), spaces.Dict({"x": box(1)})], ids=str)
    def test_values_of_a_single_number_are_told(self, space):
        field = {"description": "whether it is raised", "values": ["no", "yes"]}
        tell = teller(space, parse_text({**TEXT, "observation": {"x": field}}, "t").observation, 3, "here")
        seen = np.ones(1)
        assert tell({"x": seen} if isinstance(space, spaces.Dict) else seen) == {"x": "yes"}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("taksi", "there are acrobot, "),
            ("my/nowhere.yaml", "there is no such file"),
            ("no_such_package.Words", "there is no such class"),
            ("builtins.str", "it has no attribute game"),
            ("own", "does not put itself into words: it has no method get_goal_description"),
            ("blackjack", "names 3 numbers|tells player_sum"),
            ("cartpole", "tells|names 4 numbers"),
        ],
    )
    def test_of_a_choice(self, text, message):
        with pytest.raises(ConfigError, match=message):
            describer(text, GameMaker("MountainCar-v0" if text in ("blackjack", "cartpole") else "Taxi-v4"))

    def test_of_actions_that_are_not_the_games(self, tmp_path):
        file = tmp_path / "car.yaml"
        file.write_text(yaml.safe_dump(TEXT))
        with pytest.raises(ConfigError, match="describes 2 actions, and there are 3 choices"):
            describer(str(file), GameMaker("MountainCar-v0"))

    def test_of_a_file(self, tmp_path):
        broken = tmp_path / "broken.yaml"
        broken.write_text("goal: [")
        with pytest.raises(ConfigError, match="is no YAML"):
            read_text(broken)
        broken.write_text("goal: x\ndecoder: crystal_ball\nobservation: {x: y}\nactions: {a: b}")
        with pytest.raises(ConfigError, match="decoder=crystal_ball: there are frozen_lake, cliff_walking, grid_view"):
            describer(str(broken), GameMaker("Taxi-v4"))


class Speaking(gymnasium.Wrapper):
    """A wrapper that says of Blackjack what a player needs to know, as published players want it."""

    def get_goal_description(self):
        return "Beat the dealer."

    def get_observation_schema(self):
        return {
            "sum": {"description": "of your cards", "type": "int", "size": 1},
            "dealer": {"description": "the card that you see", "type": "int", "size": 1},
            "ace": {"description": "a usable ace", "type": "bool", "size": 1},
        }

    def get_action_schema(self):
        return {1: "take a card", 0: "stop"}


class Words:
    """A describer of one's own."""

    def __init__(self, env):
        self.game = GameText("Win.", (("cards", "all of them"),), (("0", "stop"), ("1", "go on")))

    def describe(self, observation, info):
        return f"cards: {observation}"


class TestOwnWords:
    def test_of_a_wrapper(self):
        words = describer_of("own", Speaking(gymnasium.make("Blackjack-v1")))
        assert words.game.goal == "Beat the dealer."
        assert words.game.actions == (("0", "stop"), ("1", "take a card"))
        assert json.loads(words.describe((14, 10, 1), {})) == {"sum": 14, "dealer": 10, "ace": 1}

    def test_of_a_class(self):
        words = describer_of(f"{__name__}.Words", gymnasium.make("Blackjack-v1"))
        assert words.describe((14, 10, 1), {}) == "cards: (14, 10, 1)"

    def test_of_a_file(self, tmp_path):
        file = tmp_path / "car.yaml"
        file.write_text(yaml.safe_dump({**TEXT, "actions": {"left": "l", "nothing": "n", "right": "r"}}))
        words = describer(str(file), GameMaker("MountainCar-v0"))
        assert json.loads(words.describe(np.array([0.5, -0.25]), {})) == {"x": 0.5, "y": -0.25}
