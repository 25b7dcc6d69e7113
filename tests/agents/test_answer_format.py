"""Conversion of replies into actions: clear replies are parsed, and illegal actions are rejected."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.agents.llm_player.answer_format import (
    PlayerReply,
    build_reply_schema,
    make_answer_format,
    parse_player_reply,
)
from llmrl.core.errors import ConfigError
from llmrl.core.spaces import Channel, ContinuousActions, EnvDescription, EnvSpec
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.scripted import draw_reply

ACTIONS = (("go left", "to the left"), ("stay", "nothing"), ("go_right", "to the right"))


def spec(numbers=None, actions=ACTIONS):
    text = EnvDescription("Win.", (("x", "a place"),), actions)
    n = 0 if numbers else 3
    channels = {"text": Channel((), "object")}
    return EnvSpec(
        "game", 1, 1, channels, n, tuple(str(i) for i in range(n)), 10, continuous_actions=numbers, text=text
    )


CHOICES = make_answer_format(spec(), "name", 2)
NUMBER_ANSWERS = make_answer_format(spec(), "number", 2)
PEDALS = make_answer_format(
    spec(ContinuousActions(("a", "b"), (-1.0, 0.0), (1.0, 10.0)), (("steer", "left or right"), ("gas", "how much"))),
    "name",
    2,
)
DIALS = make_answer_format(
    spec(ContinuousActions(("a", "b"), (0.0, 1.0), (3.0, 5.0), is_integer=(True, True)), (("one", "x"), ("two", "y"))),
    "name",
    2,
)


def read(answers, answer, legal=None):
    """Return the action of a reply with this `action`."""
    return parse_player_reply(json.dumps({"action": answer}), answers, legal).action


class TestAmounts:
    ANSWERS = make_answer_format(
        EnvSpec(
            *("game", 1, 1, {"text": Channel((), "object")}, 101, tuple(f"take_{n}" for n in range(101)), 10),
            text=EnvDescription(
                *("Fish.", (("stock", "tons"),), tuple((f"take_{n}", f"try to catch {n} tons") for n in range(101))),
                amount="how many tons to catch",
            ),
        ),
        "name",
        2,
    )

    def test_amounts_are_single_number(self):
        assert self.ANSWERS.descriptions == (("action", "how many tons to catch (a whole number from 0 to 100)"),)
        assert self.ANSWERS.build_schema() == {"type": "integer", "minimum": 0, "maximum": 100}
        assert self.ANSWERS.to_answer(7) == 7 and len(json.dumps(build_reply_schema(self.ANSWERS, True))) < 300

    @pytest.mark.parametrize("answer", [8, 8.0, "8", "8 tons", "take_8", "eight", {"amount": 8}])
    def test_units_are_parsed(self, answer):
        assert read(self.ANSWERS, answer) == 8

    @pytest.mark.parametrize("answer", [101, -1, 8.5, "8-10", "much"])
    def test_rejects_invalid_amounts(self, answer):
        with pytest.raises(InvalidReply, match="0 to 100"):
            read(self.ANSWERS, answer)

    def test_legal_amounts_are_range(self):
        legal = [n <= 30 for n in range(101)]
        assert self.ANSWERS.format_legal_answers(legal) == "0 to 30"
        assert self.ANSWERS.format_legal_answers([n in (0, 5, 7) for n in range(101)]) == [0, 5, 7]
        with pytest.raises(InvalidReply, match="0 to 30"):
            read(self.ANSWERS, 40, legal)


class TestChoices:
    @pytest.mark.parametrize(
        ("answer", "action"),
        [
            ("stay", 1),
            (" Stay ", 1),
            ("go_left", 0),
            ("GO RIGHT", 2),
            (2, 2),
            (2.0, 2),
            ("0", 0),
            ("\uff11", 1),  # a keyboard's full-width 1
            ("Go-Left", 0),
            ("action_go_left", 0),
            ("left", 0),
            ("2: go right", 2),
            ("2 (go_right)", 2),
            ("Action 2", 2),
            ("to the right", 2),  # what it is described as
            ("nach links", 0),
            (["stay"], 1),  # a list of one
            ({"stay": True}, 1),
        ],
    )
    def test_parses_valid_replies(self, answer, action):
        assert read(CHOICES, answer) == action

    @pytest.mark.parametrize(
        "answer",
        ["jump", "", 3, -1, 1.7, True, None, 1e300, "1: go left", "left or right", ["stay", "go left"]],
    )
    def test_rejects_invalid_replies(self, answer):
        with pytest.raises(InvalidReply, match='"go left", "stay", "go_right"'):
            read(CHOICES, answer)

    def test_legal_ones_only(self):
        legal = [True, False, True]
        with pytest.raises(InvalidReply, match='"go left", "go_right"'):
            read(CHOICES, "stay", legal)
        assert CHOICES.build_schema()["enum"] == CHOICES.names, "the same in every state"

    def test_parses_number(self):
        """Accept a name, which is unambiguous; next to a number it must be the name of that number."""
        assert NUMBER_ANSWERS.descriptions[2] == ("2", "go_right: to the right") and NUMBER_ANSWERS.to_answer(2) == 2
        assert (
            read(NUMBER_ANSWERS, 1)
            == read(NUMBER_ANSWERS, "1")
            == read(NUMBER_ANSWERS, "stay")
            == read(NUMBER_ANSWERS, "1: stay")
            == 1
        )
        assert NUMBER_ANSWERS.build_schema() == {"type": "integer", "enum": [0, 1, 2]}
        with pytest.raises(InvalidReply, match="0, 1, 2"):
            read(NUMBER_ANSWERS, "1: go left")

    def test_parses_alternative_form(self):
        assert CHOICES.choose_fallback(2, None) == 2
        assert CHOICES.choose_fallback(2, [False, True, False]) == 1
        assert CHOICES.choose_fallback(None, [False, False, True]) == 2
        assert CHOICES.choose_fallback(None, [False] * 3) == 0

    def test_text_describes_available_actions(self):
        with pytest.raises(ConfigError, match=r"2 actions.*3"):
            make_answer_format(spec(actions=ACTIONS[:2]), "name", 2)


class TestNumbers:
    @pytest.mark.parametrize(
        ("answer", "action"),
        [
            ({"steer": 0.126, "gas": 3}, [0.13, 3.0]),
            ([-1, 10], [-1.0, 10.0]),
            ({"steer": "0.5", "gas": 1}, [0.5, 1.0]),
            ({"steer": 1.0000001, "gas": 0}, [1.0, 0.0]),
            ({"Steer ": "1/2", "GAS": "one"}, [0.5, 1.0]),
            ({"steer": 0, "gas": 1, "brake": 0}, [0.0, 1.0]),
            ("steer=0.5, gas=1", [0.5, 1.0]),
        ],
    )
    def test_parses_numbers(self, answer, action):
        assert read(PEDALS, answer) == action

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            ({"steer": 1.2, "gas": 0}, "steer.*-1.*1.*1.2"),
            ({"steer": 0}, "no.*for gas"),
            ([1, 2, 3], "3 numbers, 2"),
            (0.5, "no action.*-1.*1.*0.*10"),
            ({"steer": None, "gas": 0}, "steer.*None"),
            ({"steer": True, "gas": 0}, "steer.*True"),
            ({"steer": "left", "gas": 0}, "steer.*'left'"),
            ({"steer": "0 to 1", "gas": 0}, "steer.*'0 to 1'"),
            ({"steer": float("nan"), "gas": 0}, "steer.*nan"),
            ({"steer": 0, "gas": 10**400}, "gas.*inf"),
        ],
    )
    def test_rejects_invalid_numbers(self, answer, message):
        with pytest.raises(InvalidReply, match=message):
            read(PEDALS, answer)

    def test_integers_are_parsed(self):
        assert read(DIALS, [3, 1.0]) == [3.0, 1.0]
        with pytest.raises(InvalidReply, match=r"two.*1.*5.*1\.5"):
            read(DIALS, [0, 1.5])
        assert DIALS.build_schema()["properties"]["two"] == {"type": "integer", "minimum": 1, "maximum": 5}

    def test_parses_alternative_numbers(self):
        assert PEDALS.choose_fallback([0.5, 2.0], None) == [0.5, 2.0]
        assert PEDALS.choose_fallback(None, None) == [0.0, 0.0] and DIALS.choose_fallback(None, None) == [0.0, 1.0]

    def test_parses_unbounded_numbers(self):
        numbers = ContinuousActions(("a", "b"), (-1.0, 0.0), (1.0, float("inf")))
        with pytest.raises(ConfigError, match="no bounds"):
            make_answer_format(spec(numbers, ACTIONS[:2]), "name", 2)


class TestReplies:
    @given(st.data())
    @settings(max_examples=100)
    def test_replies_that_match_schema_are_parsed(self, data):
        answers = data.draw(st.sampled_from([CHOICES, NUMBER_ANSWERS, PEDALS, DIALS]))
        legal = None
        schema = build_reply_schema(answers, has_reflection=True)
        reply = draw_reply(schema, data.draw(st.text(max_size=5)))
        parsed_reply = parse_player_reply(reply, answers, legal, require_reflection=True)
        reparsed = parse_player_reply(json.dumps({"action": answers.to_answer(parsed_reply.action)}), answers, legal)
        assert parsed_reply.reflection and reparsed == PlayerReply(parsed_reply.action)

    @given(
        st.one_of(
            st.text(max_size=60),
            st.recursive(
                st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
                max_leaves=6,
            ).map(lambda x: json.dumps({"reflection": "r", "action": x})),
        ),
        st.sampled_from([CHOICES, NUMBER_ANSWERS, PEDALS, DIALS]),
    )
    @settings(max_examples=200)
    def test_arbitrary_replies_are_invalid(self, text, answers):
        try:
            action = parse_player_reply(text, answers, None).action
        except InvalidReply as fault:
            assert str(fault)
        else:
            answers.to_answer(action)

    @pytest.mark.parametrize("reply", ['{"action": "stay"}', '{"reflection": " \\n", "action": "stay"}'])
    def test_missing_reflection_is_invalid(self, reply):
        with pytest.raises(InvalidReply, match="reflection"):
            parse_player_reply(reply, CHOICES, None, require_reflection=True)
        assert parse_player_reply(reply, CHOICES, None) == PlayerReply(1)
        with pytest.raises(InvalidReply, match="'jump'"):
            parse_player_reply(reply.replace("stay", "jump"), CHOICES, None, require_reflection=True)

    def test_reflection_comes_first(self):
        """Request the reflection first; accept any order."""
        assert list(build_reply_schema(CHOICES, has_reflection=True)["properties"]) == ["reflection", "action"]
        assert parse_player_reply(
            '{"action": "stay", "reflection": "a"}', CHOICES, None, require_reflection=True
        ) == PlayerReply(1, "a")

    def test_prose_around_reply_is_ignored(self):
        text = 'I think {"reflection": "hm"} no:\n```json\n{"reflection": "a\\n b", "action": "stay"}\n```'
        assert parse_player_reply(text, CHOICES, None) == PlayerReply(1, "a b")

    def test_unknown_fields_are_ignored(self):
        """Ignore names of actions in other fields."""
        reply = '{"reflection": "a", "plan": "go  right, then jump", "action": "stay"}'
        assert parse_player_reply(reply, CHOICES, None, require_reflection=True) == PlayerReply(1, "a")
        reply = '{"plan": "steer 1, then 0.5", "action": {"gas": 0.25, "steer": -0.5}}'
        assert parse_player_reply(reply, PEDALS, None).action == PEDALS.to_action([-0.5, 0.25], None)
