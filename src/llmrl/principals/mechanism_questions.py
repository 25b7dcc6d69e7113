"""How a principal is asked for the numbers of a mechanism, and how its answer is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, create_model

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.llms.prompts import Prompt, Prompts
from llmrl.llms.structured import InvalidReply, json_schema, parse_dollar, parse_json
from llmrl.principals.history import History, Record
from llmrl.principals.questions import Asked, Hints
from llmrl.principals.reading import Reading

FAMILY = "principal"
FOLDER = Path(__file__).with_name("prompts")


class MechanismQuestions:
    """The game, the numbers, the payoff and what was tried so far, in words; a prompt of its own for each game.

    Args:
        spec: the environment.
        prompt: name of the prompt, one of `prompts/`; None takes the environment's own, or `generic`.
        prompt_folder: a user's own prompts; None: there are none.
        observations: show what happened in the game beside each payoff.
        hints: what is told about the search.

    Raises:
        ConfigError: no such prompt.
    """

    purpose = FAMILY

    def __init__(
        self, spec: EnvSpec, prompt: str | None, prompt_folder: Path | None, observations: bool, hints: Hints
    ) -> None:
        self.spec, self.space, self.hints = spec, spec.proposals, hints
        self.prompts = Prompts(FAMILY, FOLDER, prompt_folder)
        self.prompt = self._prompt_name(prompt)
        self.observations = observations
        self.reply_model = _reply_model(self.space)

    def schema(self, n: int) -> dict[str, Any] | None:
        """JSON schema of a reply."""
        return json_schema(self.reply_model)

    def render(self, asked: Asked, history: History, shown: Sequence[Record], selection: str | None) -> Prompt:
        """The question, with the records `shown`; `selection` says which these are."""
        return self.prompts.render(
            self.prompt,
            name=self.spec.name,
            n_agents=self.spec.n_agents,
            horizon=self.spec.horizon,
            actions=self.spec.action_names,
            objective=self.spec.objective.name,
            payoff=self.spec.objective.told(self.spec.n_agents),
            spending_cost=self.spec.spending_cost,
            facts=self.spec.facts,
            mechanism=self.space.name,
            parameters=self.space.parameters,
            contexts=self.spec.contexts,
            context=asked.context,
            numbers_seen="mechanism" in self.spec.observation,
            generation=history.generations + 1,
            proposal=asked.proposal,
            proposals=asked.proposals,
            made=len(history.records),
            made_here=len(history.in_context(asked.context)),
            history=[self._line(record) for record in shown],
            measures=history.measures() if self.observations else [],
            selection=selection,
            step_size=self.hints.step_size,
            optimum=self.hints.optimum,
        )

    def read(self, text: str, n: int = 1) -> Reading:
        """The vector in a reply, [1, d].

        Raises:
            InvalidReply: there is none.
        """
        try:
            reply = parse_json(text, self.reply_model)
        except InvalidReply as fault:
            if "{" in text and "$" not in text:
                raise
            try:
                return Reading(parse_dollar(text, self.space.dim)[None])
            except InvalidReply as other:
                raise InvalidReply(f"{fault}; {other}") from None
        numbers = np.array([[getattr(reply, _field(i)) for i in range(self.space.dim)]])
        return Reading(numbers, str(getattr(reply, "reasoning", "")))

    def repair(self, fault: str, n: int = 1) -> Prompt:
        """What follows on an invalid reply."""
        return self.prompts.render("_repair", fault=fault, parameters=self.space.parameters)

    def _line(self, record: Record) -> Record:
        """A record as the history template takes it."""
        line = {
            **record,
            "values": list(zip(self.space.names, record["vector"], strict=True)),
            "curves": list(record["curves"].items()),
            "summaries": list(record["summaries"].items()),
        }
        return line if self.observations else {**line, "curves": [], "summaries": [], "returns": []}

    def _prompt_name(self, prompt: str | None) -> str:
        known = self.prompts.names
        if prompt is None:
            return self.spec.name if self.spec.name in known else "generic"
        if prompt not in known:
            raise ConfigError(
                f"principal.prompt={prompt} does not exist; there are {', '.join(known)}, or null for env's own"
            )
        return prompt


def _field(i: int) -> str:
    """Attribute of the i-th number: its name may be no Python identifier, so that is an alias."""
    return f"number_{i}"


def _reply_model(mechanism: ParameterSpace) -> type[BaseModel]:
    """Reasoning first, so that a model thinks before it decides; then the numbers under their names.

    Bounds are not in the schema, as not every provider accepts them there; the mechanism checks them.
    """
    if "reasoning" in mechanism.names:
        raise ConfigError(
            f"{mechanism.name}: principal=llm keeps the name 'reasoning' for itself; rename that parameter"
        )
    numbers: dict[str, Any] = {
        _field(i): (float, Field(alias=p.name, strict=True, allow_inf_nan=False, description=p.description))
        for i, p in enumerate(mechanism.parameters)
    }
    model: type[BaseModel] = create_model(
        "Proposal", __config__=ConfigDict(extra="ignore"), reasoning=(str, ""), **numbers
    )
    return model
