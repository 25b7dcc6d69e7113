"""Example questions of each family of experiments with the schemas of their replies, and an example frame."""

import numpy as np

TEXT = {"type": "string"}


def schema(**fields):
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


STEP = schema(skill={"type": "string", "enum": ["go to", "open"]}, object={"type": "string", "enum": ["", "door"]})
TURNS = [("system", "rules"), ("user", "left?"), ("assistant", '{"action": "left"}'), ("user", "And now?")]
QUESTIONS = {
    "player": (TURNS, schema(reflection=TEXT, action={"type": "string", "enum": ["left", "right"]})),
    "planner": (
        [("user", "Plan.")],
        schema(reasoning=TEXT, plan={"type": "array", "items": {"$ref": "#/$defs/Step"}}) | {"$defs": {"Step": STEP}},
    ),
    "principal": (
        [("user", "generation 1: payoff 2\n" * 300 + "What now?"), ("assistant", "{"), ("user", "No JSON. Again.")],
        schema(reasoning=TEXT, tax={"type": "number", "title": "Tax", "description": "a rate"}),
    ),
    "seeing player": (
        [("user", "now\n" * 600)],
        schema(action={"type": "string", "enum": ["left", "right"]}),
    ),
    "search": (
        [("user", "[1, 2] -> 3\n" * 600)],
        schema(reasoning=TEXT, params={"type": "array", "items": {"type": "number"}}),
    ),
}
"""Messages of a question and schema of its reply, by family."""
FRAME = np.random.default_rng(0).integers(0, 256, (96, 64, 3), dtype=np.uint8)
