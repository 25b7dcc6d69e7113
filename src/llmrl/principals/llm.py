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
from llmrl.principals.history import Contexts, History, Policy, Record

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

    Several proposals of a generation are asked for in as many questions at once, each of which says which of them it is
    for; with one proposal the question says nothing of that.

    If the whole history does not fit into the model's context window, the question holds the records that
    `History.trim` keeps, and says so.

    Args:
        spec: the environment.
        llm: the chat model.
        prompt_folder: a user's own prompts; None: there are none.
        prompt: name of the prompt, one of `prompts/`; None takes the environment's own, or `generic`.
        history: which proposals are shown of each context: `all`, the `last` or `best` ones, or the `chain` of the best
            so far (see `History.select`).
        window: how many, for `last` and `best`.
        contexts: show the proposals of `all` contexts, or only those of the present one (`own`).
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
        contexts: Contexts = "all",
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
        self.policy, self.window, self.contexts = history, window, contexts
        self.observations, self.repair_turns = observations, repair_turns
        self.history = History(spec)
        self.reply_model = _reply_model(self.mechanism)
        schema = json_schema(self.reply_model)
        self.asker = Asker(llm, FAMILY, self.parse, self._repair, schema, repair_turns)

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row = self.mechanism.row(context)
        name = self.spec.contexts[row] if self.spec.contexts else None
        replies = self.asker.ask([self.question(name, k, n) for k in range(1, n + 1)])
        return np.stack([self._valid(vector, name, k) for k, vector in enumerate(replies, 1)])

    def _valid(self, vector: np.ndarray | None, context: str | None, proposal: int) -> np.ndarray:
        """`vector`, or what is proposed where no reply was valid."""
        if vector is not None:
            return vector
        best = self.history.best(context)
        vector = (self.mechanism.low + self.mechanism.high) / 2 if best is None else best
        place = (self.history.generations + 1, proposal)
        logger.warning("no valid reply for generation %d, proposal %d; proposing %s", *place, vector.tolist())
        return vector

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Metrics: those of `Asker`, counted since the start of the run."""
        self.history.add(outcomes)
        return self.asker.metrics()

    def estimate(self, steps: int, n: int) -> CallEstimate:
        """What `steps` generations of `n` proposals may take, from the prompts they would be asked with."""
        future = LLMPrincipal(
            self.spec,
            self.llm,
            None,
            None,
            self.policy,
            self.window,
            self.contexts,
            self.observations,
            self.repair_turns,
        )
        future.prompts, future.prompt = self.prompts, self.prompt
        # The prompt grows about evenly between these moments.
        moments = sorted({0, 1, *(steps * i // 8 for i in range(9))} & set(range(steps)))
        context = self.spec.contexts[0] if self.spec.contexts else None
        tokens = []
        for moment in moments:
            while future.history.generations < moment:
                future.history.add([self._typical_outcome(future.history.generations)] * n)
            tokens.append(estimate_tokens(future.question(context, n, n).text))
        calls = steps * n
        prompt_tokens = n * int(np.interp(np.arange(steps), moments, tokens).sum())
        return CallEstimate(calls, calls * (1 + self.repair_turns), prompt_tokens, calls * REPLY_TOKENS)

    def state_dict(self) -> State:
        return {"history": self.history.state_dict(), "asker": self.asker.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.history.load_state_dict(state["history"])
        self.asker.load_state_dict(state["asker"])

    def question(self, context: str | None, proposal: int = 1, proposals: int = 1) -> Prompt:
        """The question for one of the next generation's proposals, number `proposal` from 1."""
        selected = self.history.select(self.policy, self.window, self.contexts, context)
        return self.asker.fit(lambda n: self._render(context, selected, n, proposal, proposals), len(selected))

    def _selection(self, context: str | None, selected: list[Record], n: int) -> str | None:
        """What is left out of the history that shows `n` of the `selected` records, in words; None: nothing is."""
        own = self.contexts == "own" and bool(self.spec.contexts)
        made = len(self.history.records)
        available = len(self.history.in_context(context)) if own else made
        here = " of this context" if own else ""
        if n < len(selected):
            which = {"best": "the best", "last": "the newest"}.get(self.policy, "the best and the newest")
            return f"There is room for {n} of the {available} proposals{here}: {which} of them are shown."
        if n < available:
            each = here or (" of each context" if self.spec.contexts else "")
            if self.policy == "chain":
                return f"Shown are the proposals{each} that were better than all before them, and the newest."
            return f"Shown are the {self.window} {'newest' if self.policy == 'last' else 'best'} proposals{each}."
        if not available and made:
            return "None of them was made in this context, so none is shown."
        return f"Shown are the proposals{here}." if available < made else None

    def _render(
        self, context: str | None, selected: list[Record], n: int, proposal: int = 1, proposals: int = 1
    ) -> Prompt:
        """With `n` of the `selected` records."""
        return self.prompts.render(
            self.prompt,
            name=self.spec.name,
            n_agents=self.spec.n_agents,
            horizon=self.spec.horizon,
            actions=self.spec.action_names,
            objective=self.spec.objective,
            spending_cost=self.spec.spending_cost,
            mechanism=self.mechanism.name,
            parameters=self.mechanism.parameters,
            contexts=self.spec.contexts,
            context=context,
            numbers_seen="mechanism" in self.spec.observation,
            generation=self.history.generations + 1,
            proposal=proposal,
            proposals=proposals,
            made=len(self.history.records),
            made_here=len(self.history.in_context(context)),
            history=[self._line(record) for record in self.history.trim(selected, self.policy, n)],
            measures=self.history.measures() if self.observations else [],
            selection=self._selection(context, selected, n),
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

    def _line(self, record: Record) -> Record:
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
        """An outcome with as many numbers as a real one, for estimates; a new best of its context now and then."""
        steps = np.full(self.spec.horizon or 1000, PAYOFF_SHOWN)
        contexts = max(len(self.spec.contexts), 1)
        # Of t random payoffs about log t are the highest so far.
        payoff = PAYOFF_SHOWN + (generation // contexts + 1).bit_length()
        return Outcome(
            vector=self.mechanism.low + (self.mechanism.high - self.mechanism.low) * 0.12345,
            value=payoff,
            values=np.full(2, payoff),
            standard_error=PAYOFF_SHOWN,
            context=generation % contexts if self.spec.contexts else None,
            returns=np.full(self.spec.n_agents, PAYOFF_SHOWN),
            trajectories=dict.fromkeys(self.spec.metrics, steps),
            summaries=dict.fromkeys(self.spec.metrics, PAYOFF_SHOWN),
            welfare=dict.fromkeys(self.history.welfare, PAYOFF_SHOWN),
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
