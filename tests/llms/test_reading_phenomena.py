"""General forms in which models answer with a choice or a plan, and near misses that hold no answer.

Written and labeled, by the rules in `corpus/README.md`, by who mends the reader; the corpora have other authors.
"""

import numpy as np
import pytest
from pydantic import BaseModel

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.choice_parser import ChoiceParser
from llmrl.llms.reading.object_parser import ObjectParser, TextParser
from llmrl.llms.reading.plan_parser import PlanParser

MINIGRID = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done"]
NIM = ["take 1", "take 2", "take 3"]
CARDS = ChoiceParser(["stick", "hit"], ["take no more cards; the dealer plays", "take one more card"])
TAXI = ChoiceParser(["south", "north", "east", "west", "pickup", "dropoff"])
GRID, NUMBERED_GRID = ChoiceParser(MINIGRID), ChoiceParser(MINIGRID, numbered=True)
STICKS = ChoiceParser(NIM, [f"take {i} stick" for i in (1, 2, 3)])
NUMBERED_STICKS = ChoiceParser(NIM, [f"take {i} stick" for i in (1, 2, 3)], numbered=True)
LIFT = ChoiceParser(["open_doors", "up", "down", "wait"])
TRAFFIC = ChoiceParser(["keep", "switch"], ["keep the phase", "switch the lights to the other road"])
LEFTS, LOADS = ChoiceParser(["turn left", "step left", "stay"]), ChoiceParser(["drop", "drop off"])
WALKS = [("explore", False), ("go to", True), ("pick up", True), ("drop", True), ("open", True)]
ROOM = PlanParser(WALKS, ["key", "door"], 20, "Agent sees <key>, <door>, holds <nothing>.")
COLORS = PlanParser(
    WALKS, ["red key", "blue door", "blue key"], 20, "Agent sees <red key>, <blue door>, holds <blue key>."
)
SPREAD_PLAN = PlanParser(
    [("go to", True), ("keep apart", False), ("stay", False)],
    [f"landmark {i}" for i in range(3)],
    20,
    "The agent is agent_1. Nearest to <landmark 2> is agent_1.",
)
SPEAK = PlanParser([("say", True), ("go to", True), ("stay", False)], ["green", "blue"], 20, "The agent is agent_0.")
FETCH = (("go to", "key"), ("pick up", "key"))
UNLOCK = (*FETCH, ("go to", "door"), ("open", "door"))


def read(question, reply):
    """Return the answer in a reply, or None if it contains none."""
    try:
        answer = parse_answer(reply, question).answer
    except InvalidReply:
        return None
    return answer.tolist() if isinstance(answer, np.ndarray) else answer


def answer_for(question, name):
    return None if name is None else question.matcher.names.index(name)


CUSTOM_OPTIONS = [
    ("Option 1: Go forward.\nOption 2: Turn left.\nOption 3: Toggle.\n\nI will go with Option 2.", "turn left"),
    ("**Option A:** turn right to face the door.\n**Option B:** toggle it.\n\n**Decision:** Option A", "turn right"),
    ("- Option 1: turn left\n- Option 2: turn right\n\nMy choice is option 1, since the ball is there.", "turn left"),
    ("### Option 1: go forward\nFast, but blind.\n\n### Option 2: toggle\nOpens the door.\n\nI choose Option "
     "2.", "toggle"),
    ("A) turn left\nB) go forward\nC) drop\n\nAnswer: B", None),
    ("A. turn left\nB. go forward\n\nThe best one is B, because the way is free.", None),
    ("(a) turn left - towards the key\n(b) turn right - towards the door\n\nI pick (b).", None),
    ("Option 1 is to go forward, option 2 is to turn left. Option 2 is better, so I go with it.", None),
    ("I see two options: 1) go forward, 2) turn left. I'll take option 2.", None),
    ("Candidates:\n1. go forward\n2. turn left\n3. toggle\n\nI will go with the second option.", None),
    ("Plan A: turn left and look. Plan B: go forward. I prefer plan B.", None),
    ("| Option | Action | Why |\n|---|---|---|\n| 1 | toggle | opens |\n| 2 | go forward | free |\n\nI choose "
     "option 2.", None),
    ("| Action | Then |\n|---|---|\n| 1. turn left | go forward |\n| 2. toggle | go forward |\n\nI choose "
     "option 2.", None),
    ("| Move | Better than |\n|---|---|\n| A: turn left | drop |\n| B: toggle | drop |\n\nDecision: B", None),
    ("| Idea | Next |\n|---|---|\n| 1. toggle | drop |\n| 2. drop | toggle |\n\nI choose option 1 or 2.", None),
    ("Option 1: go forward\nOption 2: turn left\n\nFinal answer: Option 2 (turn left)", None),
    ("Option 1: go forward\nOption 2: turn left\n\nI select the latter.", None),
    ("Option 1: turn left\nOption 2: go forward\nOption 3: toggle\n\n\\boxed{\\text{Option 3}}", None),
    ("Option 1: turn left\nOption 2: go forward\n\nBoth are possible.", None),
    ("Option 1: turn left\nOption 2: go forward\n\nShould I take option 2?", None),
    ("Option 1: turn left\nOption 2: go forward\n\nIf the door is locked I would go with option 2.", None),
    ("Option 1: turn left\nOption 2: go forward\n\nI will go with option 3.", None),
    ("Option 1: turn left\nOption 2: go forward\n\nI will not go with option 2.", None),
    ("Option 1: turn left or right\nOption 2: wait and see\n\nI will go with option 2.", None),
    ("Option 1: turn left\nOption 2: go forward\n\nOption 1 or option 2 would do.", None),
    ("Option 1: turn left\nOption 2: go forward\n\nWhich option do you want?", None),
    ("Option 1: turn left\nOption 2: go forward\n\nOption 2 has the risk of lava. Option 1 takes longer.", None),
    ("A) turn left\nB) go forward\n\nAnswer: A or B", None),
]  # fmt: skip


@pytest.mark.parametrize("question", [GRID, NUMBERED_GRID], ids=["by name", "by number"])
@pytest.mark.parametrize(("reply", "name"), CUSTOM_OPTIONS)
def test_renumbered_options(question, reply, name):
    assert read(question, reply) == answer_for(question, name)


@pytest.mark.parametrize(
    ("reply", "index"),
    [
        ("Option 1: take 1 stick, which leaves nine.\nOption 2: take 2 sticks.\n\nI choose Option 1.", 0),
        ("0: take 1\n1: take 2\n2: take 3\n\nI choose option 1.", None),
        ("0. take 1\n1. take 2\n2. take 3\n\nFinal answer: 2", None),
        ("I choose option 2: take 3.", 2),
        ('Option 1: take 2. Option 2: take 1. I choose option 2.\n\n{"action": 0}', 0),
        ("1. take 1 leaves nine\n2. take 2 leaves eight\n\nAnswer: 1", None),
    ],
)
def test_model_numbering_next_to_question_numbering(reply, index):
    assert read(NUMBERED_STICKS, reply) == index


TYPESET = [
    (CARDS, r"$$\boxed{\text{action} = \text{stick}}$$", "stick"),
    (CARDS, r"The final answer is: $\boxed{\text{Hit}}$", "hit"),
    (CARDS, r"\boxed{\text{Action: hit}}", "hit"),
    (CARDS, r"\boxed{\mathbf{stick}}", "stick"),
    (CARDS, r"\(\boxed{\texttt{hit}}\)", "hit"),
    (CARDS, r'\boxed{\{"action": "stick"\}}', "stick"),
    (CARDS, r'\[ \boxed{\text{"hit"}} \]', "hit"),
    (CARDS, r"\boxed{\mathrm{my\ action} = \mathrm{hit}}", "hit"),
    (CARDS, r"$P(\text{bust}) = \frac{8}{13}$, so $\boxed{\textbf{stick}}$.", "stick"),
    (CARDS, r"**Answer:** $\text{hit}$", "hit"),
    (GRID, r"\boxed{\text{turn\_left}}", "turn left"),
    (GRID, r"$\boxed{\text{turn left} \rightarrow \text{face the ball}}$", "turn left"),
    (STICKS, r"\boxed{\text{take } 2}", "take 2"),
    (CARDS, r"\boxed{\text{hit or stick}}", None),
    (CARDS, r"\boxed{\frac{8}{13}}", None),
    (CARDS, r"\boxed{\text{action}}", None),
    (CARDS, r"\boxed{\text{P(bust)} = 0.62}", None),
    (CARDS, r"$\text{hit}$ wins in 38% and $\text{stick}$ in 23% of the games.", None),
    (CARDS, r"\boxed{\text{stick}} and then \boxed{\text{hit}}? I am not sure.", None),
]


@pytest.mark.parametrize(("question", "reply", "name"), TYPESET)
def test_typeset_choices(question, reply, name):
    assert read(question, reply) == answer_for(question, name)


MARKUP = [
    (TAXI, '<action name="north"/>', "north"),
    (TAXI, '<action value="north" />', "north"),
    (TAXI, '<answer action="north"></answer>', "north"),
    (TAXI, '<invoke name="act"><parameter name="action">north</parameter></invoke>', "north"),
    (TAXI, '<response>\n  <reflection>Go up.</reflection>\n  <action type="move">north</action>\n</response>', "north"),
    (TAXI, '<action name="north"/> or <action name="south"/>', None),
    (TAXI, '<option name="north"/>\n<option name="south"/>', None),
    (TAXI, '<observation direction="north"/>', None),
]


@pytest.mark.parametrize(("question", "reply", "name"), MARKUP)
def test_choices_in_markup(question, reply, name):
    assert read(question, reply) == answer_for(question, name)


STATEMENTS = [
    (LIFT, "There is nobody here, so I'll wait. That is the safest thing to do.", "wait"),
    (LIFT, "I'll go up. Actually, hold on. Somebody is below us, so I'll go down.", "down"),
    (TRAFFIC, "My decision is to keep the current phase.", "keep"),
    (CARDS, "Given the odds, the best choice for me is to hit.", "hit"),
    (CARDS, "**Decision: Stick**\n\nI have 19, and hitting would probably bust.", "stick"),
    (TAXI, "**Chosen action:** `north` (one row up)", "north"),
    (TAXI, "Next action → north", "north"),
    (TAXI, "Output: north", "north"),
    (TAXI, "Final decision — **north**.", "north"),
    (TAXI, "The example shows north. Should I go north?", None),
    (TAXI, "In the example the action is north.", None),
    (TAXI, 'The format is {"action": "north"}, for instance.', None),
    (TAXI, 'As the prompt\'s example shows, one answers {"action": "north"}.', None),
    (TAXI, 'The expected output, as in the example, is {"action": "north"}. I do not know the state.', None),
    (TAXI, 'Following the example, my answer is {"action": "north"}.', "north"),
    (TAXI, 'Here is the answer in the format of the example:\n\n{"action": "north"}', "north"),
    (TAXI, "| Option | Action | Next |\n|---|---|---|\n| A | north | west |\n| B | south | east |\n\n"
           "I choose option B.", None),
    (GRID, '{"action": "two"}', "go forward"),
    (NUMBERED_GRID, '{"action": "two"}', "go forward"),
    (GRID, '{"action": "left"}', "turn left"),
    (GRID, '{"action": "left, then turn right at the wall"}', None),
    (GRID, '{"action": "north"}', None),
    (LEFTS, '{"action": "left"}', None),
    (LOADS, '{"action": "d\u00e9poser"}', None),
    (TAXI, 'In the example the taxi went south. I go north.\n\n{"action": "north"}', "north"),
]  # fmt: skip


@pytest.mark.parametrize(("question", "reply", "name"), STATEMENTS)
def test_decision_examples(question, reply, name):
    assert read(question, reply) == answer_for(question, name)


PLANS = {
    "attributes": [
        (ROOM, '<plan>\n<step skill="go to" object="key"/>\n<step skill="pick up" object="key"/>\n</plan>', FETCH),
        (ROOM, '<plan><step><skill>go to</skill><object>key</object></step>'
               '<step><skill>pick up</skill><object>key</object></step></plan>', FETCH),
        (ROOM, '<plan>\n<step n="1" skill="go to" object="key" />\n<step n="2" skill="pick up" object="key" '
               '/>\n</plan>',
         FETCH),
        (ROOM, '<step skill="go to" object="key"/>\n<step skill="pick up" object="key"/>', FETCH),
        (ROOM, '<plan><action name="go to" object="key"/><action name="pick up" object="key"/></plan>', FETCH),
        (ROOM, "<plan>\n<step skill='go to'>key</step>\n<step skill='pick up'>key</step>\n</plan>", FETCH),
        (ROOM, "<plan>\n<step>go to key</step>\n<step>pick up key</step>\n</plan>", FETCH),
        (ROOM, '<plan>\n<step skill="..." object="..."/>\n</plan>', None),
        (ROOM, '<plan>\n<step skill="fly" object="key"/>\n</plan>', None),
    ],
    "objects": [
        (ROOM, '{"plan": {"action": "go to", "object": "key"}}', (("go to", "key"),)),
        (ROOM, '{"plan": [{"skill": "go to", "object": {"name": "key"}}, {"skill": "pick up", "object": ["key"]}]}',
         FETCH),
        (ROOM, '{"plan": ["I should go to the key", "then finally pick up it", "Next I must go to door"]}',
         (*FETCH, ("go to", "door"))),
    ],
    "calls": [
        (ROOM, "The agent should execute:\n\ngo_to(key)\npick_up(key)\n\nThen it holds the key.", FETCH),
        (ROOM, 'I suggest this:\n```python\ngo_to("key")\npick_up("key")\n```\nThat is all.', FETCH),
        (ROOM, "1. `go_to(key)`\n2. `pick_up(key)`", FETCH),
        (ROOM, "go_to(key); pick_up(key)", FETCH),
        (ROOM, "agent.go_to('key')\nagent.pick_up('key')", FETCH),
        (ROOM, "```\nGoTo(key)\nPickUp(key)\n```", FETCH),
        (ROOM, "The calls are go_to(key), pick_up(key) in this order.", FETCH),
        (ROOM, "go_to(object='key')\npick_up(object='key')", FETCH),
        (ROOM, "(go-to key)\n(pick-up key)", FETCH),
        (ROOM, "The functions go_to(object) and pick_up(object) exist.", None),
        (ROOM, "One may call go_to(key) or go_to(door).", None),
        (ROOM, "go_to(x)\npick_up(x)", None),
    ],
    "prefix": [
        (COLORS, "1. go to(blue door)\n2. insert(blue key)\n3. open(blue door)", (("go to", "blue door"),)),
        (ROOM, "1. Go to the key\n2. Insert it firmly\n3. Open the door", (("go to", "key"),)),
        (ROOM, "- go to key\n- pick up key\n- fly to door", FETCH),
        (ROOM, "go_to(key)\npick_up(key)\nteleport(door)", FETCH),
        (ROOM, "1. fly everywhere\n2. go to key", None),
        (ROOM, "1. find(key)\n2. pick up(key)", None),
    ],
    "sentences": [
        (ROOM, "### Plan\n\n**Step 1 \u2013 Go to the key.** It lies here.\n\n**Step 2 \u2013 Pick up the key.** "
               "The door is locked.", FETCH),
        (ROOM, "**Step 1:** Go to the key, as it is in view.\n**Step 2:** Pick up the key.", FETCH),
        (ROOM, "## Step 1: Go to the key\nIt is near.\n\n## Step 2: Pick up the key\nIt opens the door.", FETCH),
        (ROOM, "The agent should:\n* Go to the key, because it is needed.\n* Pick up the key, so that the door opens.",
         FETCH),
        (SPEAK, "The agent should do this:\n* Say \"green\" to agent_1, because it must go to the green landmark.\n"
                "* Go to the blue landmark, because that is what agent_1 says.", (("say", "green"), ("go to", "blue"))),
        (ROOM, "1\ufe0f\u20e3 Go to the key\n2\ufe0f\u20e3 Pick up the key", FETCH),
        (ROOM, "\u2460 go to key\n\u2461 pick up key", FETCH),
        (ROOM, "First: go to the key.\nSecond: pick up the key.\nThird: go to the door.\nFourth: open the "
               "door.", UNLOCK),
        (ROOM, "**Plan**\n1. **Go to** the key \u2013 it is in view.\n2. **Pick up** the key.\n3. **Go to** the door.\n"
               "4. **Open** the door.\n\n**Why:** the key is needed first.", UNLOCK),
        (ROOM, "- Step 1: go to key\n- Step 2: pick up key", FETCH),
        (ROOM, "| Step | Skill | Object |\n|---|---|---|\n| 1 | go to | key |\n| 2 | pick up | key |", FETCH),
        (ROOM, "| # | Skill | Object | Why |\n|---|---|---|---|\n| 1 | go to | key | near |\n| 2 | pick up | "
               "key | - |", FETCH),
        (ROOM, "\u8ba1\u5212\uff1a\n1\u3001\u8d70\u5230\u94a5\u5319\n2\u3001\u62fe\u53d6\u94a5\u5319", FETCH),
        (ROOM, "| Step | To |\n|---|---|\n| go to | key |\n| pick up | key |", None),
        (ROOM, "Step 1: look at the state. Step 2: think about the key. Step 3: decide.", None),
        (ROOM, "## Step 1: Analyze the state\nThe agent sees a key.\n\n## Step 2: Decide\nI am not sure.", None),
        (ROOM, "The agent cannot:\n* go to the key\n* pick up the key", None),
        (ROOM, "Skills:\n1. explore\n2. go to\n3. pick up\n4. drop\n5. open", None),
    ],
    "prose": [
        (SPREAD_PLAN, "Agent_0 is closest to landmark 0 and landmark 1, so the best choice for agent_1 is to go to "
                 "landmark 2.",
         (("go to", "landmark 2"),)),
        (SPREAD_PLAN, "Landmark 0 is taken. Therefore agent_1 should go to landmark 2.", (("go to", "landmark 2"),)),
        (ROOM, "The right thing to do is to go to the key and pick it up.", FETCH),
        (ROOM, "My plan is to go to the key, pick it up, go to the door and open it.", UNLOCK),
        (ROOM, "It is best to explore.", (("explore", ""),)),
        (ROOM, "The agent needs to go to the key first and then pick it up.", FETCH),
        (ROOM, "\\boxed{Action: \\{go to <key>, pick up <key>\\}}", FETCH),
        (ROOM, "$\\boxed{\\text{go to key} \\rightarrow \\text{pick up key}}$", FETCH),
        (ROOM, "Agent_0 wants to go to the key, so it is best to wait for it.", None),
        (ROOM, "The best choice depends on whether the door is locked.", None),
        (ROOM, "The agent was to go to the key.", None),
    ],
    "options": [
        (ROOM, "**Plan A**\n- go to key\n- pick up key\n\n**Plan B**\n- explore\n\nI choose Plan A.", None),
        (ROOM, "Option 1: explore\nOption 2: go to key, pick up key\n\nI'll go with option 2.", FETCH),
        (ROOM, 'Plan A: {"plan": [{"skill": "explore"}]}\nPlan B: {"plan": [{"skill": "go to", "object": "key"}]}\n\n'
               "Final choice: Plan B", None),
        (ROOM, "**Plan A**\n- go to key\n- pick up key\n\n**Plan B**\n- explore\n\nBoth are good.", None),
        (ROOM, "**Plan A**\n- go to key\n\n**Plan B**\n- explore\n\nWhich one would you prefer?", None),
    ],
    "examples": [
        (ROOM, 'The example shows that for the state "Agent sees <key>." one answers {"plan": [{"skill": "go to", '
               '"object": "key"}]}.', None),
        (ROOM, 'A sample answer from the prompt: {"plan": [{"skill": "go to", "object": "key"}]}', None),
        (ROOM, 'In the example, the plan was {"plan": [{"skill": "explore"}]}. Here it is {"plan": [{"skill": "go to", '
               '"object": "key"}]}.', (("go to", "key"),)),
        (ROOM, 'As in the example, I answer with JSON:\n{"plan": [{"skill": "go to", "object": "key"}]}',
         (("go to", "key"),)),
        (ROOM, 'State: "Agent sees <box>, holds <nothing>."\n{"plan": [{"skill": "explore"}]}', None),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("question", "reply", "plan"),
    [pytest.param(*case, id=f"{form}: {case[1][:40]!r}") for form, cases in PLANS.items() for case in cases],
)
def test_plans(question, reply, plan):
    assert read(question, reply) == plan


class Preference(BaseModel):
    number: int
    text: str = ""


PREFERENCE, LESSON = ObjectParser(Preference), TextParser("lesson", 40)
MESSAGES = [
    (ROOM, '{"plan": []}', "a plan has 1 to 20 steps, and this one has 0"),
    (ROOM, '{"plan": [{"skill": "fly", "object": "key"}]}',
     "there is no skill 'fly'; there are explore, go to, pick up, drop, open"),
    (ROOM, '{"plan": [{"skill": "go to", "object": "moon"}]}',
     "the skill 'go to' needs an object of this state, and 'moon' is none; there are: key, door"),
    (ROOM, '{"a": [{"skill": "go to", "object": "key"}], "b": [{"skill": "go to", "object": "door"}]}',
     "there are several different plans in the reply; give one"),
    (ROOM, '{"plan": [""]}', "there is no skill ''; there are explore, go to, pick up, drop, open"),
    (ROOM, "Nothing.", "there is no plan in the reply, and no JSON object"),
    (TAXI, '{"action": "fly"}', "the action 'fly' does not exist"),
    (TAXI, f'{{"action": "{80 * "f"}"}}', f"the action '{59 * 'f'} does not exist"),
    (TAXI, '{"a": {"action": "north"}, "b": {"action": "south"}}',
     "there are several different answers in the reply; give one"),
    (PREFERENCE, '{"text": 1}',
     "the field 'number' is missing; the field 'text': input should be a valid string, got 1"),
    (PREFERENCE, f'{{"number": "{90 * "x"}"}}',
     "the field 'number': input should be a valid integer, unable to parse string as an integer, got "
     f'"{79 * "x"}'),
    (PREFERENCE, '{"other": 1}', "there is no JSON object of the form asked for in the reply"),
    (LESSON, '{"lesson": " "}', "the lesson is empty or no text"),
    (LESSON, '{"lesson": 4}', "the lesson is empty or no text"),
]  # fmt: skip


@pytest.mark.parametrize(
    "reply",
    [
        '{"Number": 1, "text": "a"}',
        '[{"number": 1, "text": "a"}]',
        '{"thing": [{"other": 2, "number": 1, "text": "a"}]}',
    ],
)
def test_objects(reply):
    assert parse_answer(reply, PREFERENCE).answer == Preference(number=1, text="a")


@pytest.mark.parametrize(
    "reply",
    [
        '{"lesson": "Look twice."}',
        '{"lesson": ["Look twice."]}',
        '[{"lesson": "Look twice."}]',
        '{"a": {"Lesson": "Look twice."}}',
        "My lesson: Look twice.",
        "Look twice.\n\nLesson: Look twice.",
    ],
)
def test_texts(reply):
    assert parse_answer(reply, LESSON).answer == "Look twice."


@pytest.mark.parametrize(("question", "reply", "message"), MESSAGES)
def test_no_answer_message(question, reply, message):
    with pytest.raises(InvalidReply) as invalid:
        parse_answer(reply, question)
    assert str(invalid.value) == message
