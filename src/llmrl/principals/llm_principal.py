"""Base class of principals that query a language model: prompts, repair turns, fallbacks, selection of history."""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.pooling import make_vector_key
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt
from llmrl.core.records import CallEstimate, ChatReply, Outcome, State
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.core.state_fields import StateFields
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.prompts import Prompt
from llmrl.llms.provider import estimate_tokens
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.vector_parser import VectorParser
from llmrl.llms.structured_query import StructuredQuery
from llmrl.principals.history import History, Record, SelectionPolicy
from llmrl.principals.proposal_learning import ProposalLearning

OutOfRange = Literal["reask", "clamp", "accept"]
Fallback = Literal["best", "last", "stop"]
RowFormat = Literal["compact", "named"]
ReplyFormat = Literal["json", "lines"]
FiniteFloat = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@dataclass(frozen=True)
class LLMSettings:
    """Options of `llm_principal`; meanings, units and ranges are in `conf/principal/llm.yaml`.

    Attributes:
        history: selection of the proposals that prompts show, see `History.select`.
        fallback: proposal if no reply is valid: the `best` vector of the context so far (`find_best_vector`), its
            `last` vector, or none (`stop`: an error). Without earlier vectors it is the center of the bounds.
        prompt_iterations: number of iterations stated in prompts; None: the number of the run.
    """

    prompt: str | None
    history: SelectionPolicy
    history_tokens: PositiveInt | None
    window: PositiveInt
    n_recent: NonNegativeInt
    measurements: Literal["pooled", "separate"]
    sliding_history: bool
    observations: bool | None
    repair_turns: NonNegativeInt
    fallback: Fallback
    out_of_range: OutOfRange
    duplicates: Literal["reask", "accept"]
    rows: RowFormat
    reply: ReplyFormat
    first_iteration: NonNegativeInt
    advice: bool
    prompt_iterations: PositiveInt | None
    step_size: NonNegativeFloat | None
    optimum: float | None


class Proposal(BaseModel):
    """Schema of a reply that contains a vector as a list of numbers without names."""

    reasoning: str = ""
    params: list[FiniteFloat]


@dataclass(frozen=True)
class ParsedReply:
    """Content of a reply.

    Attributes:
        vector: the proposal, rounded and clipped, [d].
        reasoning: the model's reasons; "" if it gave none.
        n_clipped: number of values that were clipped to their bounds.
    """

    vector: np.ndarray
    reasoning: str = ""
    n_clipped: int = 0


logger = logging.getLogger(__name__)

TYPICAL_REPLY_TOKENS = 150
"""Number of tokens of a typical reply, three sentences and up to ten numbers, in estimates of cost."""
TOKENS_PER_NUMBER = 4
"""Number of tokens of each number beyond ten in estimates of cost."""
FALLBACK_NOTE = "not a proposal of yours: no reply of yours could be read, and this was tried in its place"
CLIPPED_NOTE = "numbers of your reply were outside their ranges and were put at the nearest end"
N_SAMPLED_RECORDS = 16
"""Number of records, the oldest ones, from which the tokens per record of the history are estimated."""
MIN_PROMPT_RECORDS = 16
"""Minimum number of records that a prompt shows; `history_tokens` cannot reduce it."""
MAX_LISTED_REASONS = 8
"""Maximum number of invalid numbers that an error message lists."""


class LLMPrincipal(StateFields, ABC):
    """Principal that prompts a chat model for the next vector, given the parameters, objective and earlier proposals.

    Each proposal of a step is requested in a separate conversation, whose prompt states the number of the proposal;
    the conversations run in parallel. A reply must contain all numbers. After an invalid reply, a repair prompt states
    its error, up to `repair_turns` times; then `fallback` determines the proposal.

    If the history does not fit into the model's context window, the prompt contains the records that `History.trim`
    selects, and a sentence about this selection.

    Args:
        spec: specification of the environment.
        space: parameter space of the proposals.
        llm: the chat model.
        settings: options of prompts and replies.

    Attributes:
        purpose: purpose of the requests in the call log.
        reasons: the model's reasons for each vector of the last `ask`; "" where it gave none.
        fallbacks: whether each vector of the last `ask` is a fallback (no valid reply, or no finite return).
        iteration: number of calls of `ask` so far.
        learning: training of the chat model on its proposals; None: it is not trained.
    """

    _state_fields: ClassVar[tuple[str, ...]] = (
        *("history", "structured_query", "iteration", "counters", "notes", "fallbacks", "learning"),
    )

    parallel = True
    learns_from_others = True
    purpose: str

    def __init__(self, spec: EnvSpec, space: ParameterSpace, llm: ChatModel, settings: LLMSettings) -> None:
        self.spec, self.space, self.llm, self.settings = spec, space, llm, settings
        self.history = History(spec, settings.measurements == "pooled", settings.sliding_history)
        self.proposed_vectors: set[tuple[float, ...]] = set()  # all measured vectors, in all contexts
        self.iteration = 0
        self.counters = {"moved_numbers": 0, "repeated_proposals": 0}
        self.reasons: list[str] = []
        self.fallbacks: list[bool] = []
        self.notes: list[str] = []  # remark in the history for each vector of the last `ask`
        self.learning: ProposalLearning | None = None
        self.structured_query = self._make_structured_query()
        self.history_settings = settings  # settings of the selection of records in the last prompt
        self.n_shown_records = 0  # number of records in the last prompt
        self._tokens_per_record: float | None = None

    @abstractmethod
    def render(
        self, context: str | None, proposal_number: int, n_proposals: int, records: list[Record], selection: str | None
    ) -> Prompt:
        """Return the prompt for one proposal of a step.

        Args:
            context: name of the context; None: the environment has no contexts.
            proposal_number: number of the proposal within the step, from 1 to `n_proposals`.
            n_proposals: number of proposals in the step.
            records: records of the history to show.
            selection: sentence that describes the selection of `records`; None: they are all records.
        """

    @abstractmethod
    def make_reply_schema(self) -> dict[str, Any] | None:
        """Return the JSON schema of a reply; None: free text."""

    @abstractmethod
    def make_parser(self, context: str | None = None, proposal_number: int | None = None) -> VectorParser:
        """Return the parser of replies to the prompt of a proposal.

        Args:
            context: name of the context; None: the environment has no contexts.
            proposal_number: number of the proposal within the step, from 1; None: the step has a single proposal.
        """

    @abstractmethod
    def render_repair_prompt(self, reason: str) -> Prompt:
        """Return the repair prompt after an invalid reply; `reason` is the error of the reply."""

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        self.space.find_context_row(context)
        context_name = self.spec.get_context_name(context)
        proposal_numbers = range(1, n + 1)
        if self.learning is not None:
            self.learning.check_group_size(n)
        parsers = [self.make_parser(context_name, k if n > 1 else None) for k in proposal_numbers]
        prompts = [self.build_prompt(context_name, k, n) for k in proposal_numbers]
        replies = self.structured_query.ask(prompts, [self._make_parse_function(parser) for parser in parsers])
        proposals = [self._apply_fallback(reply, context_name, k) for k, reply in enumerate(replies, 1)]
        vectors = np.array([proposal.vector for proposal in proposals])
        self.reasons = [proposal.reasoning for proposal in proposals]
        self.fallbacks = [reply is None for reply in replies]
        self.notes = [
            FALLBACK_NOTE if is_fallback else CLIPPED_NOTE if proposal.n_clipped > 0 else ""
            for is_fallback, proposal in zip(self.fallbacks, proposals, strict=True)
        ]
        self.counters["moved_numbers"] += sum(proposal.n_clipped for proposal in proposals)
        keys = set(self.proposed_vectors)
        for vector in vectors:
            self.counters["repeated_proposals"] += make_vector_key(vector) in keys
            keys.add(make_vector_key(vector))
        self.iteration += 1
        if self.learning is not None:
            self.learning.record_replies([stats.samples for stats in self.structured_query.query_stats])
        return vectors

    def _apply_fallback(
        self, parsed_reply: ParsedReply | None, context: str | None, proposal_number: int
    ) -> ParsedReply:
        """Return `parsed_reply`, or the fallback if it is None; raise LLMError with `fallback=stop`."""
        if parsed_reply is not None:
            return parsed_reply
        generation = self.history.n_generations + 1
        if self.settings.fallback == "stop":
            raise LLMError(
                f"no valid reply for generation {generation}, proposal {proposal_number}, in "
                f"{self.settings.repair_turns + 1} turns; set principal.fallback=best to continue the run instead"
            )
        vector = self.choose_fallback(context)
        logger.warning(
            "no valid reply for generation %d, proposal %d; proposing %s", generation, proposal_number, vector.tolist()
        )
        return ParsedReply(vector)

    def choose_fallback(self, context: str | None) -> np.ndarray:
        """Return the fallback vector [d]: the last or the best of the context, or the center of the bounds."""
        records = self.history.list_records_in_context(context)
        vector = (
            np.array(records[-1]["vector"])
            if self.settings.fallback == "last" and records
            else self.history.find_best_vector(context)
        )
        return self.space.round_values((self.space.low + self.space.high) / 2) if vector is None else vector

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Add outcomes to the history and return metrics. The vectors need not be proposals of this principal.

        The metrics are counts since the start of the run: those of `StructuredQuery`, llm/moved_numbers (numbers
        clipped to the bounds), and llm/repeated_proposals (equal to an earlier proposal, or to one of the same step).
        """
        notes, self.notes = self.notes, []
        matches_last_ask = bool(notes) and len(notes) == len(
            outcomes
        )  # whether the outcomes are those of the last `ask`
        self.history.add(outcomes, notes if matches_last_ask else [])
        self.proposed_vectors |= {make_vector_key(outcome.vector) for outcome in outcomes}
        metrics = self.structured_query.metrics() | {
            f"llm/{name}": float(count) for name, count in self.counters.items()
        }
        if self.learning is None or not matches_last_ask:
            return metrics
        outcomes_and_fallbacks = zip(outcomes, self.fallbacks, strict=True)
        values = [float("nan") if is_fallback else outcome.value for outcome, is_fallback in outcomes_and_fallbacks]
        return metrics | self.learning.update(values)

    def write_adapter(self, folder: Path) -> None:
        """Write the trained adapter into `folder` in the format of peft; do nothing if no adapter is trained."""
        if self.learning is not None:
            self.learning.write_adapter(folder)

    def estimate(self, steps: int, n: int, n_earlier_outcomes: int = 0) -> CallEstimate:
        """Estimate the calls of `steps` steps with `n` proposals each from rendered prompts.

        `n_earlier_outcomes` is the number of outcomes that the history contains before the first step.
        """
        simulated = copy.copy(self)
        # Without pooling, because the number of repeated proposals in the future is unknown.
        simulated.history, simulated.proposed_vectors, simulated.iteration = History(self.spec, pooled=False), set(), 0
        simulated.structured_query = self._make_structured_query()
        if n_earlier_outcomes:
            simulated.history.add([simulated.history.make_typical_outcome(self.space, 0)] * n_earlier_outcomes)
        # Prompts are rendered at up to 10 iterations; tokens are interpolated, as they grow almost linearly in between.
        iterations = sorted({0, 1, *(steps * i // 8 for i in range(9))} & set(range(steps)))
        context = self.spec.contexts[0] if self.spec.contexts else None
        prompt_sizes = []  # in tokens
        for iteration in iterations:
            while simulated.iteration < iteration:
                simulated.history.add([simulated.history.make_typical_outcome(self.space, simulated.iteration)] * n)
                simulated.iteration += 1
            prompt_sizes.append(estimate_tokens(simulated.build_prompt(context, n, n).text))
        n_calls = steps * n
        prompt_tokens = n * int(np.interp(np.arange(steps), iterations, prompt_sizes).sum())
        reply_tokens = TYPICAL_REPLY_TOKENS + TOKENS_PER_NUMBER * max(0, self.space.dim - 10)
        return CallEstimate(n_calls, n_calls * (1 + self.settings.repair_turns), prompt_tokens, n_calls * reply_tokens)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.proposed_vectors = {make_vector_key(record["vector"]) for record in self.history.records}

    def build_prompt(self, context: str | None, proposal_number: int = 1, n_proposals: int = 1) -> Prompt:
        """Return the prompt for proposal `proposal_number`, from 1, of the `n_proposals` proposals of the next step."""
        self.history_settings = self._select_history_settings(context)
        selected = self.select_records()
        prompt, self.n_shown_records = self.structured_query.fit_to_context(
            lambda n: self._render_with_records(context, selected, n, proposal_number, n_proposals), len(selected)
        )
        return prompt

    def select_records(self) -> list[Record]:
        """Return the records to show in a prompt, oldest first, before trimming to the context window."""
        return self.history.select(
            self.history_settings.history, self.history_settings.window, self.history_settings.n_recent
        )

    def _select_history_settings(self, context: str | None) -> LLMSettings:
        """Return the settings of the history in the next prompt.

        With `history=all`, if all records would take more than `history_tokens` tokens, `best_and_last` is used with as
        many records as the tokens allow. This number is estimated once, from the first records: a constant selection
        makes most prompts begin like the previous one, so that the provider's prompt cache applies.
        """
        settings, records = self.settings, self.history.records
        if settings.history != "all" or settings.history_tokens is None or len(records) < MIN_PROMPT_RECORDS:
            return settings
        if self._tokens_per_record is None or len(records) <= N_SAMPLED_RECORDS:
            sample = [record | {"measured": [record["index"]]} for record in records[:N_SAMPLED_RECORDS]]
            self.history_settings = settings
            sample_tokens, base_tokens = (
                estimate_tokens(self._render_with_records(context, sample, n).text) for n in (len(sample), 0)
            )
            self._tokens_per_record = max(1.0, (sample_tokens - base_tokens) / len(sample))
        n_contexts = max(1, len(self.history.context_names))
        max_records = max(MIN_PROMPT_RECORDS, int(settings.history_tokens / self._tokens_per_record) // n_contexts)
        if max(len(self.history.list_records_in_context(name)) for name in self.history.context_names) <= max_records:
            return settings
        # A quarter, because up to twice as many of the newest records are shown (`History._count_newest_records`).
        return replace(settings, history="best_and_last", window=max_records // 2, n_recent=max_records // 4)

    def _render_with_records(
        self, context: str | None, selected: list[Record], n: int, proposal_number: int = 1, n_proposals: int = 1
    ) -> Prompt:
        """Render the prompt with `n` of the `selected` records."""
        records = self.history.trim(selected, self.history_settings.history, n)
        return self.render(context, proposal_number, n_proposals, records, self._describe_selection(selected, n))

    def _describe_selection(self, selected: list[Record], n: int) -> str | None:
        """Return a sentence about the records omitted if `n` of `selected` are shown; None if all are shown."""
        settings = self.history_settings
        available = sum(
            len(self.history.list_selectable_records(name, settings.history)) for name in self.history.context_names
        )
        if n < len(selected):
            subset = {"best": "the best", "last": "the newest"}.get(settings.history, "the best and the newest")
            return f"There is room for {n} of the {available} proposals: {subset} of them are shown."
        if n < available:
            context_scope = " of each context" if self.spec.contexts else ""
            minimum = "" if settings.sliding_history else "at least "
            if settings.history == "best_and_last":
                best = f"{settings.window} best of the others"
                summary = "" if self.settings.history == "best_and_last" else self._describe_payoffs()
                recent = f"{settings.n_recent} newest proposals{context_scope}"
                return f"Shown are {minimum}the {recent} and the {best}.{summary}"
            if settings.history == "last":
                return f"Shown are {minimum}the {settings.window} newest proposals{context_scope}."
            return f"Shown are the {settings.window} best proposals{context_scope}."
        return None

    def _describe_payoffs(self) -> str:
        """Return a sentence with quantiles of the payoffs of all proposals, shown or not."""
        payoffs = np.array([record["payoff"] for record in self.history.records])
        low, middle, high = (f"{x:.4g}" for x in np.quantile(payoffs, (0.1, 0.5, 0.9)))
        return (
            f" Of the payoffs of all {len(payoffs)} proposals a tenth is below {low}, half is below {middle}, and a "
            f"tenth is above {high}."
        )

    def parse_reply(self, text: str, is_truncated: bool = False, parser: VectorParser | None = None) -> ParsedReply:
        """Return the vector of a reply, rounded and clipped as it will be measured.

        Args:
            text: the reply.
            is_truncated: whether the reply was truncated at the maximum number of tokens.
            parser: parser of the reply; None: the parser for a single proposal without context.

        Raises:
            InvalidReply: the reply contains no vector; or, depending on the settings, a number is out of bounds or the
                vector was measured before.
        """
        answer = parse_answer(text, parser or self.make_parser(), is_truncated)
        numbers = answer.answer
        if self.has_invalid_numbers(numbers):
            try:
                self.space.check(numbers)
            except ConfigError as error:
                raise InvalidReply(shorten_reasons(str(error))) from None
        vector = self.space.round_values(numbers, clip=self.settings.out_of_range != "accept")
        if self.settings.duplicates == "reask" and make_vector_key(vector) in self.proposed_vectors:
            raise InvalidReply("these numbers were proposed already: propose something that was not tried")
        n_clipped = self.space.is_out_of_bounds(numbers).sum() if self.settings.out_of_range == "clamp" else 0
        return ParsedReply(vector, answer.reasons, int(n_clipped))

    def has_invalid_numbers(self, vector: np.ndarray) -> bool:
        """Return whether a reply with these numbers, [d], is invalid because some are out of bounds."""
        invalid = self.space.is_out_of_bounds(vector) & (self.space.is_choice | (self.settings.out_of_range == "reask"))
        return self.settings.out_of_range != "clamp" and bool(invalid.any())

    def _make_structured_query(self) -> StructuredQuery[ParsedReply]:
        functions = self._make_parse_function(None), self.render_repair_prompt
        schema, repair_turns = self.make_reply_schema(), self.settings.repair_turns
        return StructuredQuery(self.llm, self.purpose, *functions, schema, repair_turns)

    def _make_parse_function(self, parser: VectorParser | None) -> Callable[[ChatReply], ParsedReply]:
        return lambda reply: self.parse_reply(reply.text, reply.is_truncated, parser)


def shorten_reasons(reasons: str) -> str:
    """Return the first `MAX_LISTED_REASONS` of reasons separated by semicolons, and the number of omitted ones."""
    reason_list = reasons.split("; ")
    n_omitted = len(reason_list) - MAX_LISTED_REASONS
    return "; ".join(reason_list[:MAX_LISTED_REASONS]) + (f"; and {n_omitted} more" if n_omitted > 0 else "")
