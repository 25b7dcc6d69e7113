"""Rules that derive payments from parts of the escape room's prompt, as upper bounds for language models.

They are not language models. Comparing them shows which parts of the prompt are sufficient for good proposals.
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
"""Positions of proposals 1, 2, ... of a step between the lowest and the highest sensible payment, on a log scale."""
EVENLY = (5 / 8, 3 / 8, 7 / 8, 1 / 8)
"""Positions of proposals 1, 2, ... of a step in the range of the payment, if the rewards are not used."""


def read_context_and_rewards(prompt: str) -> dict[str, float]:
    """Pay the lever that the context names, more than the cost of a step there and less than the gain of the door."""
    return {_find_working_lever(prompt): _compute_payment(prompt, SHARES[(_find_proposal_number(prompt) - 1) % 4])}


def read_context(prompt: str) -> dict[str, float]:
    """Pay the lever that the context names, with payments spread evenly over the range."""
    place = _find_working_lever(prompt)
    low, high = next((float(low), float(high)) for name, low, high in _PARAMETER.findall(prompt) if name == place)
    return {place: low + (high - low) * EVENLY[(_find_proposal_number(prompt) - 1) % 4]}


def read_rewards(prompt: str) -> dict[str, float]:
    """Pay one lever after another; after a positive payoff in this context, repeat the best proposal."""
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
    """Provider that answers with one of `RULES`; prompts and the parsing of replies are those of language models.

    Args:
        uses: parts of the prompt that the rule uses.
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
        """Return the reply to a prompt of the escape room's principal.

        Raises:
            LLMError: the request has another prompt.
        """
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
    """Return a payment between the cost of a step at the lever and the gain of the door, at `share` on a log scale.

    With a payment of at least the door's reward plus that cost, agents would never leave the lever for the door.
    """
    door, cost = (float(number) for number in _REWARDS.findall(prompt)[0])
    return round(cost * ((door + cost) / cost) ** share, 2)


def _find_proposal_number(prompt: str) -> int:
    """Return the number of the proposal within its step, from 1."""
    match = _NUMBER.search(prompt)
    return int(match.group(1)) if match else 1
