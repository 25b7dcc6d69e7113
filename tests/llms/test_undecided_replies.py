"""Parsing of replies that retract, change or merely mention an answer, and of similar replies with valid answers."""

import numpy as np
import pytest

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.choice_parser import ChoiceParser
from llmrl.llms.reading.object_parser import TextParser
from llmrl.llms.reading.plan_parser import PlanParser
from llmrl.llms.reading.vector_parser import VectorParser
from llmrl.principals.vote import BallotParser

CARDS = ChoiceParser(["stick", "hit"])
SNAKE = ChoiceParser(["straight", "left", "right"])
LIFT = ChoiceParser(["up", "down", "open_doors", "wait"])
AMOUNTS = ChoiceParser([f"take_{i}" for i in range(101)])
BALLOT = BallotParser(["option_1", "option_2", "option_3"])
RATES = VectorParser(["rate_1", "rate_2", "rate_3"], bounds=[(0, 1)] * 3)
FISH = VectorParser(["quota", "fee"], bounds=[(0, 30), (0, 2)])
POINT = VectorParser(["params[0]", "params[1]"])
ROOM = PlanParser(
    [("explore", False), ("go to", True), ("pick up", True), ("drop", True), ("open", True)],
    ["blue key", "door"],
    20,
    "Agent sees <blue key>, <door>, holds <nothing>.",
)
MESSAGE = TextParser("message", 200)
HIT = '{"reflection": "x", "action": "hit"}'
TAX = '{"reasoning": "x", "rate_1": 0, "rate_2": 0.5, "rate_3": 1}'
KEY_PLAN = (("go to", "blue key"), ("pick up", "blue key"))


def read(question, reply):
    """Return the answer in a reply, or None if it contains none."""
    try:
        answer = parse_answer(reply, question).answer
    except InvalidReply:
        return None
    return answer.tolist() if isinstance(answer, np.ndarray) else answer


RETRACTIONS = {
    "English": "Scrap that. I would like to look at the cards again before I commit.",
    "English, with an interjection": "Hmm... the dealer shows a six. I need another look.",
    "English, without a verb": "Actually no. The odds are against it.",
    "German": "Vergessen Sie das bitte, ich hatte die Karten verwechselt.",
    "French": "Attendez, j'annule : j'ai mal compt\u00e9 les cartes.",
    "Spanish": "Espere, retiro lo dicho: cont\u00e9 mal las cartas.",
    "Portuguese": "Espera a\u00ed, anula isso, contei mal as cartas.",
    "Italian": "Stai, mi correggo: non so pi\u00f9 se convenga.",
    "Dutch": "Stop, dat neem ik terug; ik moet er nog even over nadenken.",
    "Swedish": "V\u00e4nta, gl\u00f6m det d\u00e4r, jag r\u00e4knade fel.",
    "Polish": "Poczekaj, wycofuj\u0119 t\u0119 odpowied\u017a.",
    "Russian": "\u0417\u0430\u0431\u0443\u0434\u044c\u0442\u0435 \u044d\u0442\u043e.",
    "Turkish": "Dur, bunu geri al\u0131yorum.",
    "Indonesian": "Tunggu, saya batalkan jawaban itu.",
    "Chinese": "\u7b49\u7b49\uff0c\u6211\u6536\u56de\u8fd9\u4e2a\u7b54\u6848\u3002",
    "Japanese": "\u4eca\u306e\u7b54\u3048\u306f\u53d6\u308a\u6d88\u3057\u307e\u3059\u3002",
    "Korean": "\uc7a0\uae50\ub9cc\uc694, \uc774 \ub2f5\uc740 \ucde8\uc18c\ud560\uac8c\uc694.",
}


@pytest.mark.parametrize("retraction", RETRACTIONS.values(), ids=RETRACTIONS)
def test_retracted_answer_is_invalid(retraction):
    assert read(CARDS, f"{HIT}\n\n{retraction}") is None


@pytest.mark.parametrize(
    "addition",
    [
        "The dealer shows a six, so one more card is worth the risk.",
        "Ich hoffe, das hilft!",
        "J'esp\u00e8re que ce choix vous convient.",
        "Good luck to the dealer!",
        "I stop as soon as I have 17.",
    ],
)
def test_remark_after_an_answer_keeps_it(addition):
    assert read(CARDS, f"{HIT}\n\n{addition}") == 1


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        (RATES, f"{TAX}\n\nOne correction: rate_2 should be 0.3."),
        (RATES, f"{TAX}\n\nOops, the last one is too harsh. Make it 0.8."),
        (RATES, f"{TAX}\n\nBitte rate_2 = 0.3, der Rest bleibt."),
        (FISH, '{"quota": 11, "fee": 0.5}\n\nPlease set the fee to 0.6.'),
        (FISH, "quota = 11 and fee = 0.5 \u2013 no, 0.6 is better."),
        (AMOUNTS, '{"action": 12}\n\nLet us say 9.'),
        (AMOUNTS, '{"action": 12}\n\nMejor 9.'),
        (BALLOT, '{"choice": "option_2"}\n\nHaving read it once more, I prefer option_3.'),
        (LIFT, '{"action": "up"}\n\nI go down.'),
        (POINT, '{"params": [10, -10]}\nThe second value should be -20 instead of -10.'),
        (ROOM, "Plan: explore. Non, je retire ce plan."),
        (ROOM, "First go to the door. Wait, the blue key is needed, so go there."),
        (ROOM, "Let us go to the door! Oh, hang on, it is locked."),
    ],
)
def test_answer_with_later_change_is_invalid(question, reply):
    assert read(question, reply) is None


@pytest.mark.parametrize(
    ("question", "reply", "answer"),
    [
        (RATES, f"{TAX}\n\nIn the last generation rate_2 was 0.3.", [0, 0.5, 1]),
        (RATES, f"{TAX}\n\nNote that rate_3 = 1 is the limit.", [0, 0.5, 1]),
        (CARDS, f'{HIT}\n\nWait, that is wrong. {{"reflection": "y", "action": "stick"}}', 0),
        (AMOUNTS, '{"action": 12}\n\nI hope that 12 tons are fine.', 12),
        (LIFT, '{"action": "up"}\n\nThe passengers below have to wait.', 0),
        (AMOUNTS, "I take 12. My final answer is 9.", 9),
        (LIFT, '{"action": "wait"}\n\nI wait for more passengers.', 3),
        (LIFT, "I'll go up. No, sorry. I'll go down.", 1),
        (ROOM, "Action: {go to blue key, pick up blue key}", KEY_PLAN),
    ],
)
def test_near_misses_of_changes_are_answers(question, reply, answer):
    assert read(question, reply) == answer


@pytest.mark.parametrize(
    "amount",
    [
        "up to 8",
        "less than 8 tons",
        "at most 8",
        "8 at most",
        "around 8",
        "h\u00f6chstens 8",
        "8-10",
        "8 or 9",
        "2 more than last time",
        "10 % of the stock",
        "same as player 3",
        "step 5",
        "+2",
    ],
)
@pytest.mark.parametrize("form", ['{{"action": "{}"}}', "Action: {}", "I take {}."])
def test_bounds_and_differences_are_no_amounts(form, amount):
    assert read(AMOUNTS, form.format(amount)) is None


@pytest.mark.parametrize(
    "reply",
    [
        '{"action": "8 tons"}',
        '{"action": "take 8 tons"}',
        "Action: 8 tons (as in the last month)",
        "I take 8 tons again, like last month.",
        "I will catch eight tons this month.",
    ],
)
def test_amounts_with_units_are_answers(reply):
    assert read(AMOUNTS, reply) == 8


@pytest.mark.parametrize(
    "reply",
    [
        "I will leave 70 tons in the lake.",
        "I take 10 minutes to think.",
        "Together we should take 40 tons, which is a lot.",
        "I must take 80 tons of stock into account.",
        "I reduce my catch by 2.",
        '{"action": {"sheep": 5, "grass": 45}}',
    ],
)
def test_other_quantities_are_no_amounts(reply):
    assert read(AMOUNTS, reply) is None


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        (SNAKE, "I would hate to go left."),
        (SNAKE, "Nobody should go left here."),
        (SNAKE, "The other snake should go left."),
        (SNAKE, "Next time I will go left."),
        (SNAKE, "Action: first left, then right"),
        (SNAKE, "Action: anything except left"),
        (SNAKE, '{"left": 0.4, "right": 0.6}'),
        (SNAKE, '{"action": "left"} is what I would do without the wall.'),
        (SNAKE, 'If the wall were gone: {"action": "left"}'),
        (SNAKE, 'My opponent wrote {"action": "left"}.'),
        (BALLOT, "Everyone should vote for option_2."),
        (BALLOT, "I vote for option_2, or option_3 if that has more support."),
        (BALLOT, "Ich stimme gegen Option 3."),
        (RATES, "rate_1=0, rate_2=0.5, rate_3=1 gave 15.2."),
        (RATES, "Would rate_1=0, rate_2=0.6, rate_3=1 be better?"),
        (RATES, "Bitte nicht rate_1=1, rate_2=1, rate_3=1."),
        (RATES, "One citizen proposed \u00abrate_1=0, rate_2=0.5, rate_3=1\u00bb."),
        (RATES, '{"old": {"rate_1": 0, "rate_2": 0.5, "rate_3": 1}}'),
        (RATES, '{"rate_1": "0.1 at most", "rate_2": 0.5, "rate_3": 1}'),
        (FISH, "quota: 12, reduced by 2; fee: 0.4"),
        (POINT, "Each number is in [-100, 100]."),
        (POINT, "[-10, -10] might be worth a try."),
        (POINT, '{"range": [-100, 100]}'),
        (POINT, "2 * [-1, 3]"),
        (ROOM, "The agent should go to the door, if it is open."),
        (ROOM, '{"plan": ["go to blue key", "or explore"]}'),
        (MESSAGE, '{"message": "<what you say>"}'),
        (MESSAGE, "I will not say anything to the others."),
        (MESSAGE, '{"from": "player 1", "message": "Take at most 8."}'),
    ],
)
def test_mentions_are_no_answers(question, reply):
    assert read(question, reply) is None


@pytest.mark.parametrize(
    ("question", "reply", "answer"),
    [
        (SNAKE, "The wall is on the right, so I go left.", 1),
        (SNAKE, "Action: left, because the wall is close", 1),
        (BALLOT, "I used to vote for option_1, but this time I vote for option_3.", 2),
        (RATES, "The best so far was [0, 0.5, 1], so I try [0, 0.4, 1].", [0, 0.4, 1]),
        (RATES, '{"rate_1": "0.1 apples", "rate_2": "0,5", "rate_3": 1}', [0.1, 0.5, 1]),
        (FISH, '{"quota": "10,5 tons", "fee": 0.4}', [10.5, 0.4]),
        (POINT, "My proposal is [-10, -10].", [-10, -10]),
        (ROOM, "The agent should go to the blue key and pick it up.", KEY_PLAN),
        (MESSAGE, "Let us all take six tons this month.", "Let us all take six tons this month."),
    ],
)
def test_near_misses_of_mentions_are_answers(question, reply, answer):
    assert read(question, reply) == answer


@pytest.mark.parametrize(
    ("thought", "answer"),
    [
        ('Done. My final answer:\n{"action": "hit"}', 1),
        ('Perhaps {"action": "hit"}', None),
        ('If I have 16: {"action": "hit"}', None),
        ('The dealer will send {"action": "hit"}', None),
        ('I will output {"action": "hit"}\nBut the ace', None),
        ("Action: hit. But what about the ace", None),
    ],
)
def test_drafts_in_unclosed_thoughts_are_no_answers(thought, answer):
    assert read(CARDS, f"<think>\n{thought}") == answer
