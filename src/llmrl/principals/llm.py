"""A language model as the principal."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, create_model

from llmrl.core.errors import ConfigError
from llmrl.core.limits import NonNegativeInt, PositiveInt
from llmrl.core.protocols import ChatModel
from llmrl.core.records import CallEstimate, Outcome, State
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.llms.asking import Asker
from llmrl.llms.prompts import Prompt, Prompts
from llmrl.llms.provider import estimate_tokens
from llmrl.llms.structured import InvalidReply, json_schema, parse_dollar, parse_json
from llmrl.principals.history import History, Policy

logger = logging.getLogger(__name__)

FAMILY = "principal"
FOLDER = Path(__file__).with_name("prompts")

REPLY_TOKENS = 150
"""Tokens of a typical reply, three sentences and a few numbers, that estimates of cost count with."""
PAYOFF_SHOWN = 123.456
"""What estimates put where a history will hold a number that is not known yet."""


class LLMPrincipal:
    """Asks a chat model for the next vector: the game, the numbers, the payoff and what was tried so far, in words.

    After the LLM principal of "Large Legislative Models" (arXiv 2410.08345), whose prompts were not released: these
    are our own.

    Each generation is one conversation. A reply must hold the numbers as JSON or, failing that, between dollar signs.
    An invalid or out-of-bounds reply is shown back with what is wrong, up to `repair_turns` times; then the best vector
    of this context so far is proposed again (the middle of the bounds if there is none), and counted.

    If the whole history does not fit into the model's context window, the question holds the records that
    `History.trim` keeps, and says so.

    Args:
        spec: the environment.
        llm: the chat model.
        prompt_folder: a user's own prompts; None: there are none.
        prompt: name of the prompt, one of `prompts/`; None takes the environment's own, or `generic`.
        history: which proposals are shown: `all`, or the `last` or `best` ones of each context.
        window: how many, for `last` and `best`.
        observations: show what happened in the game beside each payoff.
        repair_turns: chances to correct an invalid reply.

    Raises:
        ConfigError: no chat model, no mechanism, or no such prompt.
        LLMError: (from `ask`) the model could not be reached.
    """

    parallel = True

    def __init__(
        self,
        spec: EnvSpec,
        llm: ChatModel | None,
        prompt_folder: Path | None = None,
        prompt: str | None = None,
        history: Policy = "all",
        window: PositiveInt = 50,
        observations: bool = True,
        repair_turns: NonNegativeInt = 1,
    ) -> None:
        self.mechanism = spec.proposals
        if llm is None:
            raise ConfigError(
                "principal=llm needs a chat model, and llm=none is none: choose llm=gpt4o, gpt4o_mini, claude, gemini "
                "(each with a key in the environment), ollama, openai_compatible, or scripted (offline, fixed rules)."
            )
        self.spec, self.llm = spec, llm
        self.prompts = Prompts(FAMILY, FOLDER, prompt_folder)
        self.prompt = self._prompt_name(prompt)
        self.policy, self.window = history, window
        self.observations, self.repair_turns = observations, repair_turns
        self.history = History(spec)
        self.reply_model = _reply_model(self.mechanism)
        schema = json_schema(self.reply_model)
        self.asker = Asker(llm, FAMILY, self.parse, self._repair, schema, repair_turns)

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row = self.mechanism.row(context)
        name = self.spec.contexts[row] if self.spec.contexts else None
        return np.stack([self._valid(vector, name) for vector in self.asker.ask([self.question(name)] * n)])

    def _valid(self, vector: np.ndarray | None, context: str | None) -> np.ndarray:
        """`vector`, or what is proposed where no reply was valid."""
        if vector is not None:
            return vector
        best = self.history.best(context)
        vector = (self.mechanism.low + self.mechanism.high) / 2 if best is None else best
        logger.warning("no valid reply in generation %d; proposing %s", len(self.history.records) + 1, vector.tolist())
        return vector

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Metrics: those of `Asker`, counted since the start of the run."""
        for outcome in outcomes:
            self.history.add(outcome)
        return self.asker.metrics()

    def estimate(self, steps: int) -> CallEstimate:
        """What `steps` proposals may take, from the prompts they would be asked with."""
        future = LLMPrincipal(
            self.spec, self.llm, None, None, self.policy, self.window, self.observations, self.repair_turns
        )
        future.prompts, future.prompt = self.prompts, self.prompt
        # The prompt grows about evenly between these moments.
        moments = sorted({0, 1, *(steps * i // 8 for i in range(9))} & set(range(steps)))
        tokens = []
        for moment in moments:
            while len(future.history.records) < moment:
                future.history.add(self._typical_outcome(len(future.history.records)))
            row = 0 if self.spec.contexts else None
            tokens.append(estimate_tokens(future.question(None if row is None else self.spec.contexts[row]).text))
        prompt_tokens = int(np.interp(np.arange(steps), moments, tokens).sum())
        return CallEstimate(steps, steps * (1 + self.repair_turns), prompt_tokens, steps * REPLY_TOKENS)

    def state_dict(self) -> State:
        return {"history": self.history.state_dict(), "asker": self.asker.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.history.load_state_dict(state["history"])
        self.asker.load_state_dict(state["asker"])

    def question(self, context: str | None) -> Prompt:
        """The question for the next generation."""
        selected = self.history.select(self.policy, self.window)
        return self.asker.fit(lambda n: self._render(context, selected, n), len(selected))

    def _render(self, context: str | None, selected: list[dict[str, Any]], n: int) -> Prompt:
        """With `n` of the `selected` records."""
        records = self.history.records
        selection = None
        if n < len(selected):
            which = {"all": "the best and the newest", "best": "the best", "last": "the newest"}[self.policy]
            selection = f"There is room for {n} of the {len(records)} proposals: {which} of them are shown."
        elif n < len(records):
            which = "newest" if self.policy == "last" else "best"
            selection = (
                f"Shown are the {self.window} {which} proposals{' of each context' if self.spec.contexts else ''}."
            )
        return self.prompts.render(
            self.prompt,
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
            history=[self._line(record) for record in self.history.trim(selected, self.policy, n)],
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

    def _repair(self, fault: str) -> Prompt:
        return self.prompts.render("_repair", fault=fault, parameters=self.mechanism.parameters)

    def _line(self, record: dict[str, Any]) -> dict[str, Any]:
        """A record as the history template takes it."""
        line = {
            **record,
            "values": list(zip(self.mechanism.names, record["vector"], strict=True)),
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

    def _typical_outcome(self, generation: int) -> Outcome:
        """An outcome with as many numbers as a real one, for estimates."""
        steps = np.full(self.spec.horizon or 1000, PAYOFF_SHOWN)
        return Outcome(
            vector=self.mechanism.low + (self.mechanism.high - self.mechanism.low) * 0.12345,
            value=PAYOFF_SHOWN,
            values=np.full(2, PAYOFF_SHOWN),
            standard_error=PAYOFF_SHOWN,
            context=generation % len(self.spec.contexts) if self.spec.contexts else None,
            returns=np.full(self.spec.n_agents, PAYOFF_SHOWN),
            trajectories=dict.fromkeys(self.spec.metrics, steps),
            summaries=dict.fromkeys(self.spec.metrics, PAYOFF_SHOWN),
        )


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
