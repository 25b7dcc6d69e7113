"""General forms in which models answer with numbers, and near misses that hold no answer.

Written and labeled, by the rules in `corpus/README.md`, by who mends the reader; the corpora have other authors.
"""

import numpy as np
import pytest

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.number_parser import parse_number_words
from llmrl.llms.reading.vector_parser import VectorParser, VectorQuestion

PAY = VectorParser(["eat", "clean", "other"], bounds=[(0, 3)] * 3, question=VectorQuestion(turn=4))
TAX = VectorParser(["rate_1", "rate_2", "rate_3"], bounds=[(0, 1)] * 3, question=VectorQuestion(turn=7))
MARKET = VectorParser(
    ["price", "bonus", "share", "fine"], bounds=[(0, 100), (-5, 5), (0, 1), (0, 50)], question=VectorQuestion(turn=3)
)
KNOBS = VectorParser(["x0", "x1"], bounds=[(-1, 3)] * 2, question=VectorQuestion(turn=2))
ROOM = VectorParser(
    ["lever_0", "lever_1", "lever_2", "door", "start"], bounds=[(0, 5)] * 5, question=VectorQuestion(turn=9)
)
FISH = VectorParser(["quota", "fee"], bounds=[(0, 30), (0, 2)], question=VectorQuestion(turn=4))
FEE = VectorParser(["fee"], bounds=[(0, 2)], question=VectorQuestion(turn=4))
DRONE = VectorParser(["throttle", "turn"], bounds=[(0, 1), (-45, 45)], answer_name="action")
LINE = VectorParser(
    [f"params[{i}]" for i in range(3)], bounds=[(-6, 6)] * 3, question=VectorQuestion(turn=4, history=[[1, 2, 3]])
)
SECOND = VectorParser(
    [f"params[{i}]" for i in range(3)], bounds=[(-6, 6)] * 3, question=VectorQuestion(turn=4, proposal=2)
)
MAZE = VectorParser([f"params[{i}]" for i in range(9)], bounds=[(0, 3)] * 9, words=["north", "south", "east", "west"])


FORMS = {
    "units": [
        (DRONE, '{"action": {"throttle": "60%", "turn": "-15\u00b0"}}', [0.6, -15]),
        (DRONE, "throttle: 60 %\nturn: -15 degrees", [0.6, -15]),
        (DRONE, "Action: throttle = 60 percent, turn = 15 deg", [0.6, 15]),
        (MARKET, "- price: 42 credits\n- bonus: \u22121.5 credits\n- share: 35\u202f%\n- fine: 12.50 credits",
         [42, -1.5, 0.35, 12.5]),
        (MARKET, '{"price": "$42", "bonus": "-1.5 credits", "share": "35%", "fine": "\u20ac12.50"}',
         [42, -1.5, 0.35, 12.5]),
        (FISH, "Quota: 11 fish per day; fee: 0.4 credits per fish.", [11, 0.4]),
        (TAX, "Tax the lowest bracket at 5 %, the middle one at 35 % and the highest at 80 %.", [0.05, 0.35, 0.8]),
        (DRONE, '{"action": {"throttle": "0.6", "turn": "-15%"}}', None),
        (MARKET, '{"price": "42%", "bonus": 1, "share": 0.3, "fine": 5}', None),
        (MARKET, "price: 42 %; bonus: 1; share: 0.3; fine: 5", None),
        (DRONE, '{"throttle_torque": 0.6, "Turn torque": -15}', [0.6, -15]),
        (DRONE, '{"params[0]": 0.6, "params[1]": -15}', None),
        (DRONE, "throttle: 50-60 %, turn: 10\u00b0", None),
    ],
    "glosses": [
        (PAY, "- eat\uff08\u5403\u82f9\u679c\uff09\uff1a0\n- clean\uff08\u6e05\u6d01\uff09\uff1a2.3\n- "
              "other\uff08\u5176\u4ed6\uff09\uff1a0.1", [0, 2.3, 0.1]),
        (PAY, "- **eat** (an apple): 0\n- **clean** (a dirty cell): 2.3\n- **other** (anything else): 0.1",
         [0, 2.3, 0.1]),
        (TAX, "* rate_1 (0 to 3 apples): 0.1\n* rate_2 (3 to 5 apples): 0.4\n* rate_3 (5 or more): 0.7",
         [0.1, 0.4, 0.7]),
        (LINE, "- params[0] (position): -1.5\n- params[1] (speed): 5.5\n- params[2] (constant): -0.5",
         [-1.5, 5.5, -0.5]),
        (PAY, "eat \u2014 nobody needs to be paid for it: 0\nclean \u2014 the public good: 2.3\nother \u2014 "
              "no: 0.1", [0, 2.3, 0.1]),
        (PAY, "Eat payment: 0.5\nClean payment: 2.3\nOther payment: 0", [0.5, 2.3, 0]),
        (PAY, "1. `eat`: **0**\n2. `clean`: **2.3**\n3. `other`: **0.1**", [0, 2.3, 0.1]),
        (PAY, "eat (Essen): 0,5\nclean (Putzen): 2,3\nother (Sonstiges): 0", [0.5, 2.3, 0]),
        (FISH, "\u914d\u989d quota\uff1a11\n\u8d39\u7528 fee\uff1a0.4", [11, 0.4]),
        (PAY, "- eat (low): 0 to 1\n- clean (high): 2 to 3\n- other: 0", None),
        (PAY, "- eat (was 0.5): keep\n- clean (was 2): raise\n- other (was 0): keep", None),
        (PAY, "- eat (0 to 3): <number>\n- clean (0 to 3): <number>\n- other (0 to 3): <number>", None),
    ],
    "enumerations": [
        (TAX, "I'd go with 0.05 / 0.35 / 0.8 for the three brackets, from the lowest to the highest.",
         [0.05, 0.35, 0.8]),
        (TAX, "My proposal is 0.05, 0.35 and 0.8.", [0.05, 0.35, 0.8]),
        (TAX, "Let's try 5%, 35% and 80% for generation 7.", [0.05, 0.35, 0.8]),
        (TAX, "I suggest rates of 0.05, 0.35, and 0.8 respectively.", [0.05, 0.35, 0.8]),
        (TAX, "Use (0.05, 0.35, 0.8) this time.", [0.05, 0.35, 0.8]),
        (PAY, "I propose eat, clean and other at 0.5, 2 and 0, respectively.", [0.5, 2, 0]),
        (PAY, "I set eat/clean/other to 0.5/2/0.", [0.5, 2, 0]),
        (PAY, "I choose 0.5, 2 and 0 for eat, clean and other.", [0.5, 2, 0]),
        (PAY, "I choose 2, 0.5 and 0 for clean, eat and other.", [0.5, 2, 0]),
        (LINE, "I would try the point (-1.5, 5.5, -0.5).", [-1.5, 5.5, -0.5]),
        (TAX, "I'd go with 0.05 / 0.35 for the brackets.", None),
        (TAX, "Perhaps 0.05 / 0.35 / 0.8, or 0.1 / 0.4 / 0.9.", None),
        (TAX, "The payoffs so far were 0.05, 0.35 and 0.8.", None),
        (TAX, "The values 0.05, 0.35 and 0.8 were tried before. I suggest going a bit higher.", None),
        (TAX, "One could go with 0.05 / 0.35 / 0.8.", None),
        (TAX, "I suggest values like 0.1, 0.2, 0.3 and so on.", None),
    ],
    "changes": [
        (KNOBS, "Relative to the best point:\n* increase x0 by 0.2 \u2192 -0.3\n* decrease x1 by 0.1 \u2192 "
                "1.4", [-0.3, 1.4]),
        (KNOBS, "I move x0 from -0.5 to -0.3 and x1 from 1.5 to 1.4.", [-0.3, 1.4]),
        (KNOBS, "Raise x0 from 1 to 1.5. Lower x1 from 1 to 0.5.", [1.5, 0.5]),
        (KNOBS, "- x0: 1 -> 1.5\n- x1: 1 -> 0.5", [1.5, 0.5]),
        (KNOBS, "x0 goes up by 0.5 to 1.5; x1 goes down by 0.5 to 0.5.", [1.5, 0.5]),
        (KNOBS, "x0: 1.5 (was 1)\nx1: 0.5 (previously 1)", [1.5, 0.5]),
        (KNOBS, "x0: 1.5 (+0.5)\nx1: 0.5 (-0.5)", [1.5, 0.5]),
        (KNOBS, "I keep x0 at 1.5 and reduce x1 to 0.5.", [1.5, 0.5]),
        (PAY, "Cleaning should be paid between 1.2 and 1.4, say 1.3. For the spending, eat: 0 and other: 0.",
         [0, 1.3, 0]),
        (KNOBS, "Increase x0 by 0.2 and decrease x1 by 0.1.", None),
        (KNOBS, "x0 should go from 1 upwards, x1 from 1 downwards.", None),
        (KNOBS, "Choose x0 between 1 and 1.5 and x1 between 0 and 0.5.", None),
        (KNOBS, "x0 should be at least 1.5 and x1 at most 0.5.", None),
        (KNOBS, "x0 was 1.5 and x1 was 0.5.", None),
        (KNOBS, "The best point had x0 at 1.5 and x1 at 0.5. Go on from there.", None),
        (KNOBS, "x0 should be above 1.5, x1 below 0.5.", None),
    ],
    "sentences": [
        (PAY, "I would pay $1.50 for cleaning, $0 for eating and $0 for anything else.", [0, 1.5, 0]),
        (PAY, "Pay 2 for cleaning, nothing for eating, and nothing for everything else.", [0, 2, 0]),
        (PAY, "Agents get 0.5 for eating, 2 for cleaning and 0 for other actions.", [0.5, 2, 0]),
        (PAY, "Cleaning gets 2, eating gets 0.5, and everything else gets 0.", [0.5, 2, 0]),
        (PAY, "Set the payment for cleaning to 2, for eating to 0.5 and for other to 0.", [0.5, 2, 0]),
        (KNOBS, "The first knob should be set to 1.5 and the second one to 0.5.", [1.5, 0.5]),
        (KNOBS, "The second knob should be 0.5, the first 1.5.", [1.5, 0.5]),
        (TAX, "Bracket 1: 0.1, bracket 2: 0.4, bracket 3: 0.7", [0.1, 0.4, 0.7]),
        (TAX, "The first bracket pays 0.1, the second 0.4, the third 0.7.", [0.1, 0.4, 0.7]),
        (TAX, "The bottom bracket should pay 10%, the middle bracket 40% and the top bracket 70%.", [0.1, 0.4, 0.7]),
        (ROOM, "* Lever 1 is the lever that works, so it should get 4.5.\n* Lever 0 and lever 2 do not work, so "
               "they should "
               "get 0.\n* The door should get 1 and the start should get 0.", [0, 4.5, 0, 1, 0]),
        (ROOM, "I pay 4.5 at lever 1, 1 at the door and 0 at lever 0, lever 2 and start.", [0, 4.5, 0, 1, 0]),
        (ROOM, "Lever 1 should get 4.5, the door 1, and all others 0.", [0, 4.5, 0, 1, 0]),
        (ROOM, "lever_0, lever_2 and start: 0; lever_1: 4.5; door: 1", [0, 4.5, 0, 1, 0]),
        (ROOM, "Both lever 0 and lever 2 get nothing, lever 1 gets 4.5, the door gets 1, the start gets nothing.",
         [0, 4.5, 0, 1, 0]),
        (FISH, "I suggest a quota of 11 fish with a fee of 0.4 per fish.", [11, 0.4]),
        (FISH, "In generation 2 the quota was 12. I lower the quota to 11 and keep the fee at 0.4.", [11, 0.4]),
        (FISH, "The quota should be eleven and the fee four tenths or so.", None),
        (FISH, "A quota of 11 was too low and a fee of 0.4 too high.", None),
        (FISH, "With a quota of 12 and a fee of 0.4 generation 2 had a payoff of 31. I would try a lower quota.", None),
        (FISH, "If the fee is 0.4, the quota should be 11; if not, the quota should be 12.", None),
        (FISH, "The quota should be 11 or 12 and the fee 0.4.", None),
        (FISH, "Do not set the quota to 11 and the fee to 0.4.", None),
        (FISH, "Would a quota of 11 and a fee of 0.4 be fine?", None),
        (PAY, "Cleaning is worth 2 to everybody, eating 1.", None),
        (ROOM, "Lever 0 and lever 2 should get 0, lever 1 should get 4.5, the door 1.", None),
        (ROOM, "Lever 1 should get 4.5, the door 1, and the others less.", None),
    ],
    "tables": [
        (LINE, "| Parameter | Meaning | Value |\n| :--- | :--- | ---: |\n| `params[0]` | position | **0.7** "
               "|\n| `params[1]` |"
               " speed | **4.9** |\n| `params[2]` | offset | **-0.2** |\n\n*More feedback.*", [0.7, 4.9, -0.2]),
        (LINE, "| Index | Value |\n|---|---|\n| 0 | 0.7 |\n| 1 | 4.9 |\n| 2 | -0.2 |", [0.7, 4.9, -0.2]),
        (PAY, "| Parameter | Old | New |\n|---|---|---|\n| eat | 1 | 0.5 |\n| clean | 2 | 2.6 |\n| other | 0 | "
              "0 |", [0.5, 2.6, 0]),
        (PAY, "| Parameter | Value | Reason |\n|---|---|---|\n| eat | 0.5 | 1 is too much |\n| clean | 2.6 | dirt |\n"
              "| other | 0 | idle |", [0.5, 2.6, 0]),
        (PAY, "| | eat | clean | other |\n|---|---|---|---|\n| Generation 3 | 1 | 2 | 0 |\n| **Proposal** | 0.5 "
              "| 2.6 | 0 |",
         [0.5, 2.6, 0]),
        (PAY, "| eat | clean | other |\n|---|---|---|\n| 0.5 | 2.6 | 0 |", [0.5, 2.6, 0]),
        (PAY, "| Activity | Range | Incentive |\n|---|---|---|\n| Eat | 0-3 | 0.5 |\n| Clean | 0-3 | 2.6 |\n| "
              "Other | 0-3 | 0 |",
         [0.5, 2.6, 0]),
        (PAY, "| Candidate | eat | clean | other | Expected |\n|---|---|---|---|---|\n| A | 1 | 2.5 | 0 | good "
              "|\n| B | 0.5 | 2.6"
              " | 0 | same |\n| C | 0 | 3 | 0 | - |\n\nI'm submitting **candidate B**.", None),
        (PAY, "| Candidate | eat | clean | other |\n|---|---|---|---|\n| A | 1 | 2.5 | 0 |\n| B | 0.5 | 2.6 | 0 |\n\n"
              "Final choice: A", None),
        (PAY, "| Candidate | eat | clean | other |\n|---|---|---|---|\n| A | 1 | 2.5 | 0 |\n| B | 0.5 | 2.6 | 0 "
              "|", None),
        (PAY, "| Generation | eat | clean | other |\n|---|---|---|---|\n| 2 | 1 | 2.5 | 0 |\n| 3 | 0.5 | 2.6 | "
              "0 |", None),
        (PAY, "| Parameter | Min | Max |\n|---|---|---|\n| eat | 0 | 3 |\n| clean | 0 | 3 |\n| other | 0 | 3 |", None),
        (PAY, "| Parameter | Generation 2 | Generation 3 |\n|---|---|---|\n| eat | 1 | 0.5 |\n| clean | 2 | 2.6 "
              "|\n| other | 0 | 0 |",
         None),
        (MAZE, "The table of actions is:\n\n1 2 1\n1 1 3\n2 2 0\n\nEach row is one of the maze.",
         [1, 2, 1, 1, 1, 3, 2, 2, 0]),
        (MAZE, "Row 0: 1 2 1\nRow 1: 1 1 3\nRow 2: 2 2 0", [1, 2, 1, 1, 1, 3, 2, 2, 0]),
        (MAZE, "3\n1 2 1\n1 1 3\n2 2 0", [1, 2, 1, 1, 1, 3, 2, 2, 0]),
        (MAZE, "1 2 1\n1 1 3", None),
    ],
    "typeset": [
        (LINE, r"$$\mathbf{p} = \begin{pmatrix} -2.35 & 5.95 & -0.62 \end{pmatrix}$$", [-2.35, 5.95, -0.62]),
        (LINE, r"\[ \theta = \begin{bmatrix} -2.35 \\ 5.95 \\ -0.62 \end{bmatrix} \]", [-2.35, 5.95, -0.62]),
        (LINE, r"\boxed{\left(-2.35,\; 5.95,\; -0.62\right)}", [-2.35, 5.95, -0.62]),
        (LINE, r"\boxed{\text{params} = [-2.35, 5.95, -0.62]}", [-2.35, 5.95, -0.62]),
        (PAY, "Generation 2 with eat=0, clean=2.5, other=0 was best.\n\nThe final answer is: $\\boxed{0, 2.2, "
              "0}$", [0, 2.2, 0]),
        (PAY, r"\boxed{\text{eat} = 0,\ \text{clean} = 2.2,\ \text{other} = 0}", [0, 2.2, 0]),
        (TAX, r"$r_1 = \frac{1}{8}$: no. \boxed{\tfrac{1}{4}, \tfrac{1}{2}, \frac{3}{4}}", [0.25, 0.5, 0.75]),
        (TAX, r"\boxed{10\%, 40\%, 70\%}", [0.1, 0.4, 0.7]),
        (PAY, r'\boxed{\{"eat": 0, "clean": 2.2, "other": 0\}}', [0, 2.2, 0]),
        (PAY, r"\begin{aligned} \text{eat} &= 0 \\ \text{clean} &= 2.2 \\ \text{other} &= 0 \end{aligned}",
         [0, 2.2, 0]),
        (TAX, r"\boxed{\tfrac{1}{4}, \mathbf{\mathrm{0.5}}, 0.75}", [0.25, 0.5, 0.75]),
        (KNOBS, "The best point was $(1, 2)$. x0 = 1.5, x1 = 0.5", [1.5, 0.5]),
        (LINE, r"\boxed{x, y, z}", None),
        (LINE, r"\begin{pmatrix} a & b & c \end{pmatrix}", None),
        (LINE, r"\boxed{-2.35, 5.95}", None),
    ],
    "suppositions": [
        (PAY, "In generation 3 eat was 1, clean 1.5 and other 0, with payoff 10. Raise clean.", None),
        (PAY, "eat: 0.5?\nclean: 2?\nother: 0?", None),
        (PAY, "Suppose eat is 0.5, clean is 2 and other is 0. What would happen?", None),
        (KNOBS, "If x0=1.5 and x1=0.5, the payoff may rise.", None),
        (TAX, "rate_1 = rate_2 = 0.1, rate_3 = 0.7", [0.1, 0.1, 0.7]),
        (PAY, "Generation 3 (eat 1, clean 1.5, other 0) was the best. I would keep these values.", None),
    ],
    "markup": [
        (KNOBS, '<proposal x0="1.5" x1="0.5"/>', [1.5, 0.5]),
        (KNOBS, '<x0 value="1.5"/><x1 value="0.5"/>', [1.5, 0.5]),
        (KNOBS, '<parameter name="x0">1.5</parameter>\n<parameter name="x1">0.5</parameter>', [1.5, 0.5]),
        (KNOBS, '<param name="x0" value="1.5"/>\n<param name="x1" value="0.5"/>', [1.5, 0.5]),
        (KNOBS, '<param name="x0" low="-1" high="3"/>\n<param name="x1" low="-1" high="3"/>', None),
    ],
    "options": [
        (LINE, "Option 1: [1.0, 4.0, 0.0], exploration.\nOption 2: [-2.1, 6.0, -0.9], exploitation.\n\nI go "
               "with option 2.",
         [-2.1, 6, -0.9]),
        (KNOBS, "A. the centre: x0 = 1, x1 = 1\nB. a corner: x0 = 3, x1 = -1\n\nI choose B.", None),
        (KNOBS, "**Candidate 1:** x0 = 1, x1 = 1\n**Candidate 2:** x0 = 3, x1 = -1\n\n**Selected: Candidate "
                "1**", [1, 1]),
        (KNOBS, "1. x0 = 1, x1 = 1 (centre)\n2. x0 = 3, x1 = -1 (corner)\n\nI submit the first one.", None),
        (KNOBS, "A. the centre: x0 = 1, x1 = 1\nB. a corner: x0 = 3, x1 = -1\n\nI choose B.\n\n"
                '{"x0": 3, "x1": -1}\n\n{"x0": 3, "x1": -1}', [3, -1]),
        (KNOBS, "A. the centre: x0 = 1, x1 = 1\nB. a corner: x0 = 3, x1 = -1\n\nTell me which one you'd like.", None),
        (KNOBS, "A. the centre: x0 = 1, x1 = 1\nB. a corner: x0 = 3, x1 = -1\n\nReply with A or B.", None),
        (KNOBS, "A. the centre: x0 = 1, x1 = 1\nB. a corner: x0 = 3, x1 = -1\n\nB is riskier than A.", None),
    ],
    "quotations": [
        (KNOBS, 'I "do" this: {"x0": 1, "x1": 2} "really"', [1, 2]),
        (KNOBS, 'The prompt says "answer {"x0": 1, "x1": 2}".', None),
        (KNOBS, '{"x0": 1, "x1": 2}\n\nMy answer: {"x0": 2, "x1": 2}', [2, 2]),
        (KNOBS, '{"x0": 1, "x1": 2}\n\nMy answer: {"x0": 2, "x1": 2}, as shown in the JSON above.', None),
    ],
    "alone": [
        (FEE, "0.4", [0.4]),
        (FEE, "Intro\nSome words.\nfee: 0.4\n\nIn a list, [0.5].", [0.4]),
        (FEE, "Some words of a fee: 0.4 of them.\n\nIn a list, [0.5].", None),
    ],
    "others": [
        (SECOND, "The first of the three proposals refines the best row (something like 0.9, 4.2, 0.6). As the "
                 "second, I take:"
                 "\n\nparams[0]: 0.6; params[1]: 4.8; params[2]: 0.3", [0.6, 4.8, 0.3]),
        (SECOND, "Proposal 1 might be params[0]: 1; params[1]: 2; params[2]: 3. Mine:\n\nparams[0]: 0.6; "
                 "params[1]: 4.8; "
                 "params[2]: 0.3", [0.6, 4.8, 0.3]),
        (PAY, "An example would be eat 1, clean 2, other 0. My proposal: eat 0.5, clean 2.5, other 0.", [0.5, 2.5, 0]),
        (PAY, 'The example in the prompt shows {"eat": 1, "clean": 2, "other": 0}.', None),
        (SECOND, "The first proposal is probably [1, 4, 0.5], so something like that is not needed.", None),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("question", "reply", "numbers"),
    [pytest.param(*case, id=f"{form}: {case[1][:40]!r}") for form, cases in FORMS.items() for case in cases],
)
def test_numbers(question, reply, numbers):
    try:
        answer = parse_answer(reply, question).answer
    except InvalidReply:
        answer = None
    if isinstance(answer, np.ndarray):
        answer = pytest.approx(answer.tolist())
    assert numbers == answer


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("twenty-five", 25),
        ("minus two", -2),
        ("negative one half", -0.5),
        ("a half", 0.5),
        ("three quarters", 0.75),
        ("two thirds", 2 / 3),
        ("two and a quarter", 2.25),
        ("two and one half", 2.5),
        ("twenty one and a half", 21.5),
        ("minus twenty-one and one quarter", -21.25),
        ("zero point two five", 0.25),
        ("point five", 0.5),
        ("nothing", 0),
        ("two three half", None),
        ("twenty one half", None),
        ("minus minus two and a half", None),
        ("half two", None),
        ("five twenty", None),
        ("ten point ten", None),
        ("two point", None),
        ("some", None),
        ("", None),
    ],
)
def test_numbers_in_words(words, number):
    assert parse_number_words(words) == number


LONG_VECTOR = VectorParser([f"p{i}" for i in range(12)])
MESSAGES = [
    (KNOBS, "", "the reply is empty: there is no list of 2 numbers in it"),
    (DRONE, "Nothing.", "there is no action in the reply, and no JSON object"),
    (KNOBS, "<think>x0 is", "the reply ends inside a thought: there is no list of 2 numbers after it"),
    (KNOBS, "{Nothing.", "there is no list of 2 numbers in the reply; its JSON breaks at line 1, column 2, near "
                         "'{Nothing.': Expecting property name enclosed in double quotes"),
    (KNOBS, 'Text {\n  "x0": 1,\n  "x1": 0.5.5\n}',
     "x1 must be a number, got '0.5.5'; its JSON breaks at line 3, column 12, near "
     "'{\\n  \"x0\": 1,\\n  \"x1\": 0.5.5\\n}': Expecting ',' delimiter"),
    (KNOBS, '{"x0": 1}', "there is no number for x1"),
    (KNOBS, "x0: 1", "there is no number for x1"),
    (LONG_VECTOR, '{"p11": 1}', "there is no number for p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, ..."),
    (LONG_VECTOR, '{"p11": 1, "p0": 2}', "there is no number for p1, p2, p3, p4, p5, p6, p7, p8, p9, p10"),
    (KNOBS, '{"x0": 1, "x1": "many"}', "x1 must be a number, got 'many'"),
    (KNOBS, f'{{"x0": "{80 * "m"}", "x1": 0}}', f"x0 must be a number, got '{59 * 'm'}"),
    (KNOBS, '{"x0": 1e999, "x1": 1}', "x0 must be a number, got inf"),
    (KNOBS, '{"x0": 1, "x0": 2, "x1": 1}', "x0 is given twice, with different values"),
    (KNOBS, '[{"x0": 1}, {"x0": 2, "x1": 1}]', "x0 is given twice, with different values"),
    (KNOBS, '{"a": [1, 2], "b": [2, 1]}', "there are several different lists of numbers in one object"),
    (KNOBS, '{"params": [1, 2, 3]}', "params holds 3 numbers, 2 are needed"),
    (KNOBS, '{"params": [1]}', "params holds 1 number, 2 are needed"),
    (KNOBS, '{"params": [1, "many"]}', "a list of numbers holds 'many'"),
    (KNOBS, '{"x0": 1, "x1": 2} {"x0": 2, "x1": 2}',
     "there are several different answers in the reply, and nothing says which counts; give one list of 2 numbers"),
    (KNOBS, "A. the centre: x0 = 1, x1 = 1\nB. stay\n\nI choose B.",
     "the reply lists options under labels of its own; give the list of 2 numbers itself"),
]  # fmt: skip


@pytest.mark.parametrize(("question", "reply", "message"), MESSAGES)
def test_missing_numbers_message(question, reply, message):
    with pytest.raises(InvalidReply) as invalid:
        parse_answer(reply, question)
    assert str(invalid.value) == message


@pytest.mark.parametrize(
    ("question", "reply", "message"),
    [
        (KNOBS, '<think>{"x0": 1, "x1": 2} or so',
         "inside a thought.* 2 numbers"),
        (KNOBS, '{"params": [1, ', r"cut off; .* line 1, column 16, .*'\{\"params\": \[1, '"),
        (KNOBS, "1.5, 0.5", " 2 numbers .*JSON"),
    ],
)  # fmt: skip
def test_truncation_message(question, reply, message):
    with pytest.raises(InvalidReply, match=message):
        parse_answer(reply, question, truncated=True)
