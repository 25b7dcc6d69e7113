"""A language model as the principal."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, create_model

from llmrl.core.errors import ConfigError
from llmrl.core.limits import NonNegativeInt, PositiveInt
from llmrl.core.protocols import ChatModel
from llmrl.core.records import ChatRequest, Outcome, State
from llmrl.core.spaces import EnvSpec, MechanismSpec
from llmrl.llms import prompts
from llmrl.llms.structured import InvalidReply, json_schema, parse_dollar, parse_json
from llmrl.principals.governed import mechanism_of, row_of
from llmrl.principals.history import History, Policy

logger = logging.getLogger(__name__)

FAMILY = "principal"
QUOTED_REPLY = 4000
"""Characters of an invalid reply that are shown back to the model."""


class LLMPrincipal:
    """Asks a chat model for the next vector: the game, the numbers, the payoff and what was tried so far, in words.

    After the LLM principal of "Large Legislative Models" (arXiv 2410.08345), whose prompts were not released: these
    are our own.

    Each generation is one conversation. A reply must hold the numbers as JSON or, failing that, between dollar signs.
    An invalid or out-of-bounds reply is shown back with what is wrong, up to `repair_turns` times; then the best vector
    of this context so far is proposed again (the middle of the bounds if there is none), and counted.

    Args:
        spec: the environment.
        llm: the chat model.
        prompt: name of the prompt, one of `prompts/principal/`; None takes the environment's own, or `generic`.
        history: which proposals are shown: `all`, or the `last` or `best` ones of each context.
        window: how many, for `last` and `best`.
        observations: show what happened in the game beside each payoff.
        repair_turns: chances to correct an invalid reply.

    Raises:
        ConfigError: no chat model, no mechanism, or no such prompt.
        LLMError: (from `ask`) the model could not be reached.
    """

    def __init__(
        self,
        spec: EnvSpec,
        llm: ChatModel | None,
        prompt: str | None = None,
        history: Policy = "all",
        window: PositiveInt = 50,
        observations: bool = True,
        repair_turns: NonNegativeInt = 1,
    ) -> None:
        self.mechanism = mechanism_of(spec, "llm")
        if llm is None:
            raise ConfigError(
                "principal=llm needs a chat model, and llm=none is none: choose llm=gpt4o, gpt4o_mini, claude, gemini "
                "(each with a key in the environment), ollama, openai_compatible, or scripted (offline, fixed rules)."
            )
        self.spec, self.llm = spec, llm
        self.prompt = _prompt_name(spec, prompt)
        self.policy, self.window = history, window
        self.observations, self.repair_turns = observations, repair_turns
        self.history = History(spec)
        self.reply_model = _reply_model(self.mechanism)
        self.schema = json_schema(self.reply_model)
        self.counters = {"invalid_replies": 0, "repairs": 0, "fallbacks": 0}

    def ask(self, context: int | None = None) -> np.ndarray:
        row = row_of(self.spec, context)
        name = self.spec.contexts[row] if self.spec.contexts else None
        messages = [{"role": "user", "content": self.render(name)}]
        for turn in range(self.repair_turns + 1):
            request = ChatRequest(tuple(messages), schema=self.schema, purpose=FAMILY)
            [reply] = self.llm.chat([request])
            try:
                vector = self.parse(reply.text)
            except InvalidReply as fault:
                logger.warning("invalid reply of %s: %s", self.llm.label, fault)
                self.counters["invalid_replies"] += 1
                messages += self._repair(reply.text, str(fault))
            else:
                self.counters["repairs"] += turn > 0
                return vector
        self.counters["fallbacks"] += 1
        best = self.history.best(name)
        vector = (self.mechanism.low + self.mechanism.high) / 2 if best is None else best
        logger.warning("no valid reply in generation %d; proposing %s", len(self.history.records) + 1, vector.tolist())
        return vector

    def tell(self, outcome: Outcome) -> dict[str, float]:
        """Metrics, all counted since the start of the run: llm/invalid_replies, llm/repairs, llm/fallbacks."""
        self.history.add(outcome)
        return {f"llm/{name}": float(count) for name, count in self.counters.items()}

    def state_dict(self) -> State:
        return {"history": self.history.state_dict(), "counters": dict(self.counters)}

    def load_state_dict(self, state: State) -> None:
        self.history.load_state_dict(state["history"])
        self.counters = dict(state["counters"])

    def render(self, context: str | None) -> str:
        """The question for the next generation."""
        records = self.history.records
        shown = self.history.select(self.policy, self.window)
        selection = None
        if len(shown) < len(records):
            which = "newest" if self.policy == "last" else "best"
            selection = (
                f"Shown are the {self.window} {which} proposals{' of each context' if self.spec.contexts else ''}."
            )
        return prompts.render(
            f"{FAMILY}/{self.prompt}",
            name=self.spec.name,
            n_agents=self.spec.n_agents,
            horizon=self.spec.horizon,
            actions=self.spec.action_names,
            objective=self.spec.objective,
            mechanism=self.mechanism.name,
            parameters=self.mechanism.parameters,
            contexts=self.spec.contexts,
            context=context,
            generation=len(records) + 1,
            made=len(records),
            made_here=len(self.history.in_context(context)),
            history=[self._line(record) for record in shown],
            measures=self.history.measures() if self.observations else [],
            selection=selection,
        )

    def parse(self, text: str) -> np.ndarray:
        """The vector in a reply, [d], inside the bounds.

        Raises:
            InvalidReply: there is none, or a number is out of bounds.
        """
        try:
            reply = parse_json(text, self.reply_model)
        except InvalidReply as fault:
            if "{" in text and "$" not in text:
                raise
            try:
                values = parse_dollar(text, self.mechanism.dim)
            except InvalidReply as other:
                raise InvalidReply(f"{fault}; {other}") from None
        else:
            values = np.array([getattr(reply, _field(i)) for i in range(self.mechanism.dim)])
        try:
            return self.mechanism.check(values)
        except ConfigError as error:
            raise InvalidReply(str(error)) from None

    def _repair(self, text: str, fault: str) -> list[dict[str, str]]:
        # Some providers refuse an empty turn.
        quoted = text[:QUOTED_REPLY].strip() or "(empty reply)"
        question = prompts.render(f"{FAMILY}/_repair", fault=fault, parameters=self.mechanism.parameters)
        return [{"role": "assistant", "content": quoted}, {"role": "user", "content": question}]

    def _line(self, record: dict[str, Any]) -> dict[str, Any]:
        """A record as the history template takes it."""
        line = {
            **record,
            "values": list(zip(self.mechanism.names, record["vector"], strict=True)),
            "curves": list(record["curves"].items()),
            "summaries": list(record["summaries"].items()),
        }
        return line if self.observations else {**line, "curves": [], "summaries": [], "returns": []}


def _prompt_name(spec: EnvSpec, prompt: str | None) -> str:
    known = prompts.names(FAMILY)
    if prompt is None:
        return spec.name if spec.name in known else "generic"
    if prompt not in known:
        raise ConfigError(
            f"principal.prompt={prompt} does not exist; there are {', '.join(known)}, or null for env's own"
        )
    return prompt


def _field(i: int) -> str:
    """Attribute of the i-th number: its name may be no Python identifier, so that is an alias."""
    return f"number_{i}"


def _reply_model(mechanism: MechanismSpec) -> type[BaseModel]:
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
