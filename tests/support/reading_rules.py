"""Rules that answer the escape room's prompt from what it says: how far reading it carries, and which part of it.

They are not language models and learn nothing but what they say they do; they bound what a reader could do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from llmrl.core.errors import LLMError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.provider import Provider, estimate_tokens

_PARAMETER = re.compile(r"^- (\S+): from (\S+) to (\S+) \(", re.MULTILINE)
_CONTEXT = re.compile(r"^Context of this generation: (.+)$", re.MULTILINE)
_WORKS = re.compile(r"^Context of this generation: (\S+)_works$", re.MULTILINE)
_REWARDS = re.compile(r"every agent at the door is rewarded with (\d+), .+? every other agent loses (\d+)")
_CONTEXT_PROPOSALS = re.compile(r"^Proposals made so far in this context: (\d+)$", re.MULTILINE)
_NUMBER = re.compile(r"this is number (\d+) of \d+")
_PAST_PROPOSAL = re.compile(r"^Generation .+? \[context: (.+?)\]: (.+?) -> payoff ([^\s;]+)", re.MULTILINE)

SHARES = (1 / 2, 2 / 5, 3 / 5, 1 / 3)
"""Where between the lowest and the highest sensible pay, by factors, proposals number 1, 2, ... of a step pay."""
EVENLY = (5 / 8, 3 / 8, 7 / 8, 1 / 8)
"""The same where nothing is known of it but the range."""


def read_context_and_rewards(prompt: str) -> dict[str, float]:
    """Pay the lever that the context names: more than a step there costs, less than what the door brings beyond it."""
    return {_find_working_lever(prompt): _compute_payment(prompt, SHARES[(_find_proposal_number(prompt) - 1) % 4])}


def read_context(prompt: str) -> dict[str, float]:
    """Pay the lever that the context names: numbers spread evenly over the range, whatever the rewards are."""
    place = _find_working_lever(prompt)
    low, high = next((float(low), float(high)) for name, low, high in _PARAMETER.findall(prompt) if name == place)
    return {place: low + (high - low) * EVENLY[(_find_proposal_number(prompt) - 1) % 4]}


def read_rewards(prompt: str) -> dict[str, float]:
    """Sensible pay at one place after the other; once a payoff of this context is positive, the best is repeated."""
    [context] = _CONTEXT.findall(prompt)
    proposals = [
        (float(payoff), values)
        for proposal_context, values, payoff in _PAST_PROPOSAL.findall(prompt)
        if proposal_context == context
    ]
    best, values = max(proposals, default=(0.0, ""))
    if best > 0:
        return {name: float(value) for name, value in (pair.split("=") for pair in values.split(", "))}
    names = [name for name, _, _ in _PARAMETER.findall(prompt)]
    match = _CONTEXT_PROPOSALS.search(prompt)
    turn = (int(match.group(1)) if match else 0) + _find_proposal_number(prompt) - 1
    return {names[turn % len(names)]: _compute_payment(prompt, SHARES[0])}


RULES: dict[str, Callable[[str], dict[str, float]]] = {
    "context_and_rewards": read_context_and_rewards,
    "context": read_context,
    "rewards": read_rewards,
}


class ReadingRule(Provider):
    """One of `RULES` in the place of a language model: the same prompts, the same reading of replies.

    Args:
        uses: what it takes out of the prompt.
    """

    remote = False

    def __init__(self, uses: Literal["context_and_rewards", "context", "rewards"]) -> None:
        super().__init__(input_price=0.0, output_price=0.0)
        self.uses = uses
        self.label = f"a rule that reads {uses.replace('_', ' ')} (not a language model)"

    @property
    def identity(self) -> dict[str, Any]:
        return {"model": f"reading rule: {self.uses}"}

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        return [self._reply(request) for request in requests]

    def _reply(self, request: ChatRequest) -> ChatReply:
        """Return the reply to a question of the escape room's principal. Raises LLMError for any other question."""
        prompt = request.messages[-1]["content"]
        if not _REWARDS.search(prompt) or not _CONTEXT.search(prompt):
            raise LLMError("this rule reads the prompt of a principal in the escape room, and no other")
        payments = RULES[self.uses](prompt)
        numbers = {name: payments.get(name, 0.0) for name, _, _ in _PARAMETER.findall(prompt)}
        text = json.dumps({"reasoning": "By rule.", **numbers})
        return ChatReply(text, self.count_tokens(request.messages), estimate_tokens(text))


def _find_working_lever(prompt: str) -> str:
    return _WORKS.findall(prompt)[0]


def _compute_payment(prompt: str, share: float) -> float:
    """Pay between what a step at the lever costs and what the door brings beyond it, at `share` of the way, by factors.

    From the door's reward plus that cost on, nobody would leave the lever for the door.
    """
    door, cost = (float(number) for number in _REWARDS.findall(prompt)[0])
    return round(cost * ((door + cost) / cost) ** share, 2)


def _find_proposal_number(prompt: str) -> int:
    """Return the number of the proposal that a step asks for, from 1."""
    match = _NUMBER.search(prompt)
    return int(match.group(1)) if match else 1
