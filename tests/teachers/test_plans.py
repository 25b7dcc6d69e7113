import contextlib
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.teachers.plans import MAX_PLAN_STEPS, PlanStep, build_reply_schema, format_plan, parse_plan, parse_reply
from llmrl.teachers.rooms.skills import SKILLS

OBJECTS = ("red key", "blue door")
FETCH = (PlanStep("go to", "red key"), PlanStep("pick up", "red key"))


def reply(*steps, **extra):
    return json.dumps({"reasoning": "", "plan": [{"skill": s, "object": o} for s, o in steps], **extra})


def parse(text, objects=OBJECTS):
    return parse_reply(text, SKILLS, objects)


@pytest.mark.parametrize(
    "text",
    [
        reply(("go to", "red key"), ("pick up", "red key")),
        reply(("Go To", "<red key>"), ("pick_up", "the Red Key")),
        "Let me think.\n```json\n" + reply(("go to", "red key"), ("pick up", "red key")) + "\n```",
        "1. I see a key.\nAction: {go to <red key>, pick up <red key>}",
        "Actions: { Go to <red key>,pick up red key. }",
        "action: {explore}\nNo, wait. Action: {go to the <red key>, pick up <red key>}",
    ],
)
def test_equal_plans_in_different_words_are_equal(text):
    assert parse(text) == FETCH


def test_explicit_correction_selects_later_plan():
    first, last = reply(("explore", "")), reply(("go to", "red key"), ("pick up", "red key"))
    assert parse(f"Action: {{explore}} {first} Wait, correction: {last}") == FETCH
    with pytest.raises(InvalidReply, match="different answers"):
        parse(f"{first} {last}")


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("go to <red key>", [("go to", "red key")]),
        ('{"plan": "go to red key"}', [("go to", "red key")]),
        (reply(("go to", "red key"))[:-2], [("go to", "red key")]),  # the end is missing, and nothing else
        (reply(("open", "blue door with red key")), [("open", "blue door")]),
        (reply(("explore", "the east")), [("explore", "")]),
        ("Action: {go to <key>}", [("go to", "red key")]),  # there is one key
        (reply(*[("explore", "")] * (MAX_PLAN_STEPS + 1)), [("explore", "")] * MAX_PLAN_STEPS),
        (reply(("explore", ""), ("fly to", "red key"), ("open", "blue door")), [("explore", "")]),
        (reply(("explore", ""), ("go to", "green key")), [("explore", "")]),
        (reply(("go to", "green key"), ("explore", "")), [("explore", "")]),  # it is not there yet
        ("Action: {open <green door>, go to <red key>}", [("go to", "red key")]),
        (
            '{"steps": [{"action": "GoTo", "target": "Red Key"}, "pick up red key"]}',
            [(s.skill, s.object) for s in FETCH],
        ),
        ("<tool_call>" + reply(("explore", "")) + "</tool_call>", [("explore", "")]),
    ],
)
def test_tolerant_parsing(text, steps):
    """Additions are dropped and steps for absent objects are skipped.

    A plan ends before the first step that cannot be valid.
    """
    assert parse(text) == tuple(PlanStep(*step) for step in steps)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the reply is empty"),
        ("I cannot plan that.", "there is no plan in the reply, and no JSON object"),
        (reply(), "1 to 20 steps, and this one has 0"),
        (reply(("fly to", "red key")), "no skill 'fly to'; there are explore, go to, pick up, drop, open"),
        (reply(("go to", "green key")), "'green key' is none; there are: red key, blue door"),
        (reply(("go to", "")), "needs an object of this state"),
        ("Action: {use <red key>}", "there is no skill 'use red key'"),
        ("Action: {go}", "there is no skill 'go'"),
        ('{"plan": [{"object": "red key"}]}', "there is no skill"),
        ('{"plan": [{"skill": }]', "there is no skill"),
    ],
)
def test_invalid_plan_explains_reason(text, complaint):
    with pytest.raises(InvalidReply, match=complaint.replace("(", r"\(")):
        parse(text)


def test_truncated_plan_is_invalid():
    text = reply(("go to", "red key"), ("pick up", "red key"))[:-3]
    assert len(parse(text)) == 2
    with pytest.raises(InvalidReply, match="cut off"):
        parse_reply(text, SKILLS, OBJECTS, is_truncated=True)


def test_empty_scene_allows_exploring():
    assert parse(reply(("explore", "nothing")), ()) == (PlanStep("explore"),)
    with pytest.raises(InvalidReply, match="are: none"):
        parse(reply(("go to", "red key")), ())


@given(st.text() | st.from_regex(r"(?s).*[Aa]ctions? ?: ?\{.*\}.*"))
@example("Action: {" + "go to <red key>," * 1000 + "}")
@example('{"plan": [' * 1500)
@example('{"plan": [{"skill": ' + "9" * 5000 + "}]}")
@example('{"plan": [{"skill": "\ud800", "object": "\\ud800"}]}')
def test_only_invalid_reply_is_raised(text):
    try:
        plan = parse(text)
    except InvalidReply:
        return
    assert 1 <= len(plan) <= MAX_PLAN_STEPS


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["go to", "red key"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["plan", "skill", "object"]), inner),
    max_leaves=8,
)


@given(JSON)
def test_arbitrary_json_parses_or_raises_invalid_reply(value):
    with contextlib.suppress(InvalidReply):
        assert parse(json.dumps({"plan": value}))


STEPS = st.one_of(
    st.just(("explore", "")),
    st.tuples(st.sampled_from([s.name for s in SKILLS if s.takes_object]), st.sampled_from(OBJECTS)),
)


@given(st.lists(STEPS, min_size=1, max_size=MAX_PLAN_STEPS))
def test_round_trip(steps):
    plan = tuple(PlanStep(*step) for step in steps)
    assert parse_plan(format_plan(plan), SKILLS, OBJECTS) == plan
    assert parse(f"Action: {{{format_plan(plan)}}}") == plan
    assert parse(reply(*steps)) == plan


def test_schema_lists_skills():
    schema = build_reply_schema(SKILLS)
    assert list(schema["properties"]) == ["reasoning", "plan"] == schema["required"]
    step = schema["$defs"]["_Step"]
    assert step["properties"]["skill"]["enum"] == [skill.name for skill in SKILLS]
    assert step["required"] == ["skill", "object"] and step["additionalProperties"] is False
