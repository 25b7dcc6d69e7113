"""Custom texts of environments: any space can be described, and missing parts are reported."""

import json

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvDescription
from llmrl.core.trust import Trust
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.texts import build_describer
from llmrl.envs.texts.describers import draft_actions, draft_fields
from llmrl.envs.texts.observation_format import build_formatter
from llmrl.envs.texts.schema import parse_description, read_description

TEXT = {
    "goal": "Win.",
    "observation": {"x": {"description": "a place"}, "y": {"description": "a height"}},
    "actions": {"left": "go left", "right": "go right"},
}


FLAG = spaces.Box(0, 1, (1,), dtype=np.float32)


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
    def test_draft_contains_schema(self, space):
        tell = build_formatter(space, draft_fields(space), 3, "here")
        space.seed(0)
        for _ in range(10):
            description = tell(space.sample())
            assert json.loads(json.dumps(description, allow_nan=False)) == description

    @given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=2, max_size=2))
    @settings(max_examples=50)
    def test_any_number_becomes_json(self, numbers):
        text = parse_description(TEXT, "t")
        description = build_formatter(box(2), text.observation, 3, "here")(np.array(numbers, dtype=np.float32))
        assert list(json.loads(json.dumps(description, allow_nan=False))) == ["x", "y"]

    def test_nested_names(self):
        space = spaces.Dict({"lander": box(2), "legs": spaces.MultiBinary(2)})
        content = {
            "lander": {"description": "the lander", "fields": {"x": "place", "y": "height"}},
            "legs": {"description": "contact", "size": 2},
        }
        text = parse_description({**TEXT, "observation": content}, "t")
        description = build_formatter(space, text.observation, 2, "here")(
            {"lander": np.array([0.123, 1]), "legs": np.array([1, 0])}
        )
        assert description == {"lander": {"x": 0.12, "y": 1.0}, "legs": [1, 0]}

    @pytest.mark.parametrize(
        "space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2), box(2)], ids=str
    )
    def test_action_drafts(self, space):
        n = 3 if isinstance(space, spaces.Discrete) else 2
        assert len(draft_actions(space)) == n


class TestFaults:
    """Each error is reported with its location."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"goal": None}, "^t .*'goal'"),
            ({"goal": "  "}, "^t .*'goal'"),
            ({"observation": None}, "^t .*'observation'"),
            ({"observation": {}}, "^t: observation .*empty"),
            ({"observation": {"x": {"unit": "m"}}}, r"^t: observation\.x .*'description'"),
            ({"observation": {"x": {"description": "a", "color": "b"}}}, r"^t: observation\.x .*'color'"),
            ({"observation": {"x": {"description": "a", "range": 3}}}, r"^t: observation\.x\.range=3: "),
            ({"observation": {"x": {"description": "a", "range": [8, -8]}}}, r"^t: observation\.x\.range=\[8, -8\] "),
            ({"observation": {"x": {"description": "a", "size": 0}}}, r"^t: observation\.x\.size=0"),
            ({"observation": {"x": {"description": "a", "values": "b"}}}, r"^t: observation\.x\.values='b': "),
            (
                {"observation": {"x": {"description": "a", "fields": {"y": {}}}}},
                r"^t: observation\.x\.fields\.y .*'description'",
            ),
            ({"observation": ["x"]}, "^t: observation .*list"),
            ({"actions": None}, "^t .*'actions'"),
            ({"actions": {"left": ""}}, r"^t: actions\.left "),
            ({"decimals": -1}, "^t: decimals=-1"),
            ({"rewards": "many"}, "^t .*'rewards'.*decoder"),
            ({"success": "you win"}, "^t: success .*str"),
            ({"success": {"score >= 3": "you win"}}, r"^t: success\.score >= 3 .*terminated"),
            ({"success": {"return >= many": "you win"}}, r"^t: success\.return >= many "),
            ({"success": {"terminated": ""}}, "^t: success .*'terminated'"),
            ({"arguments": ["speed"]}, "^t: arguments .*list"),
            ({"arguments": {"speed": "fast"}}, r"^t: arguments\.speed .*str"),
            ({"arguments": {"speed": {True: 3}}}, r"^t: arguments\.speed\.true "),
        ],
    )
    def test_errors_in_text(self, change, message):
        with pytest.raises(ConfigError, match=message):
            parse_description({**TEXT, **change}, "t")

    @pytest.mark.parametrize(
        ("space", "message"),
        [
            (box(3), r"2 .*\(x, y\).* 3$"),
            (spaces.Discrete(5), "x 1 x y 1 = 1 .* 5$"),
            (spaces.Tuple([spaces.Discrete(2)] * 3), "2 fields.* 3 members$"),
            (spaces.Dict({"x": box(1), "z": box(1)}), "'z'"),
            (spaces.Dict({"x": box(1)}), "'y'"),
            (spaces.Text(3), "2 fields.* Text$"),
        ],
        ids=str,
    )
    def test_fields_of_mismatched_space(self, space, message):
        with pytest.raises(ConfigError, match=message):
            build_formatter(space, parse_description(TEXT, "t").observation, 3, "t: observation")

    @pytest.mark.parametrize(
        ("space", "field", "message"),
        [
            (box(4), {"size": 3}, r"3 .*\(x\).* 4$"),
            (box(2), {"values": ["no", "yes"]}, r"1 .*\(x\).* 2$"),
            (box(2), {"values": ["no", "yes"], "size": 2}, "x .*2 .*`values`"),
            (box(1), {"values": ["no", "yes"]}, "-10 to 10.*`values`"),
            (spaces.Dict({"x": box(1)}), {"values": ["no", "yes"]}, "-10 to 10.*`values`"),
            (spaces.Discrete(5), {"size": 4}, "x 4 = 4 .* 5$"),
            (spaces.Dict({"x": box(4)}), {"size": 3}, r"3 .*\(x\).* 4$"),
        ],
        ids=str,
    )
    def test_errors_in_field(self, space, field, message):
        text = parse_description({**TEXT, "observation": {"x": {"description": "a place", **field}}}, "t")
        with pytest.raises(ConfigError, match=message):
            build_formatter(space, text.observation, 3, "t: observation")

    @pytest.mark.parametrize("space", [FLAG, spaces.Dict({"x": FLAG})], ids=str)
    def test_describes_scalar_range(self, space):
        field = {"description": "whether it is raised", "values": ["no", "yes"]}
        tell = build_formatter(
            space, parse_description({**TEXT, "observation": {"x": field}}, "t").observation, 3, "here"
        )
        inputs = np.ones(1)
        assert tell({"x": inputs} if isinstance(space, spaces.Dict) else inputs) == {"x": "yes"}
        with pytest.raises(ConfigError, match=r"x .*0\.75"):
            tell({"x": inputs * 0.75} if isinstance(space, spaces.Dict) else inputs * 0.75)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("taksi", "use acrobot, "),
            ("my/nowhere.yaml", "my/nowhere.yaml"),
            ("no_such_package.Words", r"trusted_modules=\[no_such_package\]"),
            (f"{__name__}.Speaking", r"Speaking.*game"),
            ("own", "get_goal_description"),
            ("blackjack", "3 numbers|player_sum"),
            ("cartpole", "tells|4 numbers"),
        ],
    )
    def test_errors_in_choice(self, text, message):
        with pytest.raises(ConfigError, match=message):
            game = "MountainCar-v0" if text in ("blackjack", "cartpole") else "Taxi-v4"
            build_describer(text, EnvFactory(game, trust=Trust((__name__,))))

    def test_unknown_actions(self, tmp_path):
        file = tmp_path / "car.yaml"
        file.write_text(yaml.safe_dump(TEXT))
        with pytest.raises(ConfigError, match=r"2 actions.*3 choices"):
            build_describer(str(file), EnvFactory("MountainCar-v0"))

    def test_errors_in_file(self, tmp_path):
        broken = tmp_path / "broken.yaml"
        broken.write_text("goal: [")
        with pytest.raises(ConfigError, match="YAML"):
            read_description(broken)
        broken.write_text("goal: x\ndecoder: crystal_ball\nobservation: {x: y}\nactions: {a: b}")
        with pytest.raises(ConfigError, match=r"decoder=crystal_ball.*frozen_lake, cliff_walking, grid_view"):
            build_describer(str(broken), EnvFactory("Taxi-v4"))


class Speaking(gymnasium.Wrapper):
    """A wrapper that describes Blackjack in the format of published players."""

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
    """A custom describer."""

    def __init__(self, env):
        self.game = EnvDescription("Win.", (("cards", "all of them"),), (("0", "stop"), ("1", "go on")))

    def describe(self, observation, info):
        return f"cards: {observation}"


class TestCustomText:
    def test_text_of_wrapper(self):
        words = build_describer("own", Speaking(gymnasium.make("Blackjack-v1")))
        assert words.game.goal == "Beat the dealer."
        assert words.game.actions == (("0", "stop"), ("1", "take a card"))
        assert json.loads(words.describe((14, 10, 1), {})) == {"sum": 14, "dealer": 10, "ace": 1}

    def test_text_of_class(self):
        words = build_describer(f"{__name__}.Words", gymnasium.make("Blackjack-v1"), trust=Trust((__name__,)))
        assert words.describe((14, 10, 1), {}) == "cards: (14, 10, 1)"

    def test_text_of_file(self, tmp_path):
        file = tmp_path / "car.yaml"
        file.write_text(yaml.safe_dump({**TEXT, "actions": {"left": "l", "nothing": "n", "right": "r"}}))
        words = build_describer(str(file), EnvFactory("MountainCar-v0"))
        assert json.loads(words.describe(np.array([0.5, -0.25]), {})) == {"x": 0.5, "y": -0.25}
