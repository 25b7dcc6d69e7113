"""Replies of the scripted rules in the styles of different language models.

    styled = StyledModel(seed=0)
    with FakeOpenAIServer(styled, usage=styled.usage) as server: ...

The content of a reply is that of the rule and its style is random. The style is a function of the messages and the
seed, so repeated runs get the same replies.
"""

import hashlib
import importlib
import json
import random
import re
from collections import Counter

from llmrl.llms.provider import estimate_tokens
from llmrl.llms.scripted import REFUSAL, RULE_MODULES, UnreadPromptError

DRAFT = '{"action": "go away", "params": [9, 9], "plan": [{"skill": "explore", "object": ""}], "lever_0": 9}'
PREFACES = (
    "Looking at the history, the last change helped, so I will go on in that direction.",
    "Let me think about this carefully. The rewards are noisy, so I prefer a moderate change.",
    "Based on the information above, here is my decision.",
)


def _format_fence(text, language="json"):
    return f"```{language}\n{text}\n```"


def _format_indented(text):
    return json.dumps(json.loads(text), indent=2)


def _format_arguments(text):
    return json.dumps({"name": "submit_answer", "arguments": json.loads(text)})


def _build_tool_call(text):
    call = {"id": "call_1", "type": "function", "function": {"name": "submit_answer", "arguments": text}}
    return {"content": None, "tool_calls": [call], "finish_reason": "tool_calls"}


STYLES = {
    "plain": lambda text, rng: text,
    "gpt, fenced": lambda text, rng: _format_fence(_format_indented(text)),
    "gpt, tool call": lambda text, rng: _build_tool_call(text),
    "claude": lambda text, rng: (
        f"{rng.choice(PREFACES)}\n\n{_format_fence(_format_indented(text))}\n\nI kept the other numbers as they were."
    ),
    "claude, tags": lambda text, rng: f"<thinking>{DRAFT} would be too much.</thinking>\n<answer>\n{text}\n</answer>",
    "gemini": lambda text, rng: f"**Reasoning:** {rng.choice(PREFACES)}\n\n**Answer:**\n\n{_format_fence(text)}\n",
    "llama": lambda text, rng: f"Here is my answer:\n\n{json.loads(text)!r}",
    "qwen": lambda text, rng: f"<think>\nOkay, perhaps {DRAFT}? No.\n</think>\n\n{text}",
    "qwen, tool call": lambda text, rng: f"<tool_call>\n{_format_arguments(text)}\n</tool_call>",
    "mistral": lambda text, rng: text[:-1] + ",\n" + text[-1],
    "mistral, tool call": lambda text, rng: f"[TOOL_CALLS] [{_format_arguments(text)}]",
    "deepseek": lambda text, rng: {
        "content": _format_fence(_format_indented(text)),
        "reasoning_content": f"Maybe {DRAFT}. Hmm.",
    },
    "vicuna": lambda text, rng: f"Sure! {text}\n\nUSER: And the next one?\nASSISTANT: {DRAFT}",
}
"""Functions from a reply in JSON to a text or to fields of the assistant's message, by name of the style."""

INVALID_STYLES = {
    "empty": lambda text, rng: "",
    "refusal": lambda text, rng: REFUSAL,
    "cut in a thought": lambda text, rng: {"content": f"<think>\nLet me see. {text} may be", "finish_reason": "length"},
    "cut": lambda text, rng: {"content": text[: len(text) // 2], "finish_reason": "length"},
    "question": lambda text, rng: "Could you tell me more about the goal before I answer?",
}
"""Functions that return invalid replies, by name."""


class StyledModel:
    """Function `reply` for `FakeOpenAIServer`.

    Args:
        bad: share of invalid replies.
        styles: names in `STYLES`; None for all.
        seed: random seed of the choice of styles.

    Attributes:
        given: number of replies by style.
    """

    def __init__(self, invalid_share=0.03, styles=None, seed=0):
        self.invalid_share, self.styles, self.seed = invalid_share, styles or list(STYLES), seed
        self.style_counts, self.questions = Counter(), []

    def __call__(self, messages):
        text = compute_answer(messages)
        digest = hashlib.sha256(json.dumps([self.seed, *messages]).encode()).digest()
        rng = random.Random(digest)
        manner = rng.choice(list(INVALID_STYLES)) if rng.random() < self.invalid_share else rng.choice(self.styles)
        self.style_counts[manner] += 1
        return {**STYLES, **INVALID_STYLES}[manner](text, rng)

    def usage(self, messages, reply_object):
        """Return estimated usage; prefixes shared with earlier questions are cached from 1,024 tokens on."""
        text = "\0".join(message["content"] for message in messages)
        shared = max((_count_shared_prefix(text, earlier) for earlier in self.questions), default=0)
        self.questions = [*self.questions[-50:], text]
        prompt, reply = estimate_tokens(text), estimate_tokens(json.dumps(reply_object))
        cached = estimate_tokens(text[:shared]) // 128 * 128
        details = {"cached_tokens": cached if cached >= 1024 else 0}
        return {"prompt_tokens": prompt, "completion_tokens": reply, "prompt_tokens_details": details}


def _count_shared_prefix(first, second):
    """Return the length of the common prefix."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def compute_answer(messages):
    """Return the reply of the first rule that understands the messages."""
    for purpose in ("control", "check", "principal", "search", "teacher", "lesson", "player"):
        try:
            rule_reply = importlib.import_module(RULE_MODULES[purpose]).reply(messages, 0, lambda note: None)
        except (UnreadPromptError, LookupError, ValueError):
            continue
        return re.sub(r"\s*\n\s*", " ", rule_reply)
    raise AssertionError(f"no rule answers {messages[-1]['content'][:300]}")
