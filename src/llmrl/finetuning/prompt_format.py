"""Prompts and replies of the proposer for histories of any origin, so that training and use have the same format."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.errors import ConfigError
from llmrl.core.records import Outcome
from llmrl.core.spaces import ParameterSpace
from llmrl.finetuning.proposal_examples import ProposalExample
from llmrl.finetuning.trials import ParameterTrial
from llmrl.llms.prompts import Prompt
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.structured import InvalidReply
from llmrl.llms.structured_query import StructuredQuery
from llmrl.principals.history import History
from llmrl.principals.llm_principal import LLMPrincipal
from llmrl.principals.llm_search import LLMSearch, shown_number
from llmrl.principals.reply_formats import ParsedReply


@dataclass(frozen=True, eq=False)
class ProposalPrompt:
    """Prompt of the proposer.

    Attributes:
        example: example that the prompt was made from.
        messages: messages to a chat model.
        shown: trials in the prompt, possibly fewer than in the example; trials of equal parameters are one if the
            prompt pools them.
        left_out: number of trials of the example that are not in the prompt.
        name, hash: name and hash of the prompt's file, for call logs.
    """

    example: ProposalExample
    messages: tuple[dict[str, str], ...]
    shown: tuple[ParameterTrial, ...]
    left_out: int
    name: str
    hash: str

    @property
    def text(self) -> str:
        """Text of the last message."""
        return self.messages[-1]["content"]


class PromptFormat:
    """Format of the proposer's prompts and replies: writes prompts and target replies, and parses replies.

    Args:
        proposer: `principal=llm` as `llmrl-train` builds it, with the chat model that will be asked.

    Raises:
        ConfigError: the proposer does not propose parameters of a policy, one vector per reply and single question; it
            shows more than returns; or a written reply is not read back unchanged.
    """

    def __init__(self, proposer: LLMPrincipal) -> None:
        if not isinstance(proposer, LLMSearch):
            raise ConfigError("fine-tuning is for proposers of policy parameters (agent=linear, tabular, ...)")
        if proposer.one_prompt_per_batch:
            raise ConfigError(
                "principal.one_prompt_per_batch=true asks for several vectors in a reply; fine-tuning is of one a reply"
            )
        if proposer.form.turns > 1:
            raise ConfigError(
                f"principal.turns={proposer.form.turns} asks in conversations, and fine-tuning is of questions that "
                "are each by itself: leave it null"
            )
        if proposer.form.episode_steps:
            raise ConfigError(
                f"principal.episode_steps={proposer.form.episode_steps} shows episodes, and none are kept here: leave "
                "it null"
            )
        if proposer.settings.observations:
            raise ConfigError(
                "principal.observations=true shows more of each trial than its return, and that is all that is "
                "kept of trials here; leave it null"
            )
        self.proposer = proposer
        self.space: ParameterSpace = proposer.space
        self._check_format()

    def ask(self, example: ProposalExample) -> ProposalPrompt:
        """Return the prompt that follows on the trials of an example, each of which counts as one iteration.

        If the prompt and the longest reply exceed the context window, whole trials are left out, as the proposer
        chooses (`History.trim`).

        Raises:
            LLMError: not even the prompt without any trial fits.
            ConfigError: only the prompt without any trial fits.
        """
        proposer = copy.copy(self.proposer)
        proposer.history = History(proposer.spec, proposer.history.pooled)
        for trial in example.history:
            proposer.history.add([_outcome(trial)])
        proposer.iteration = len(example.history)
        fitted = _Fitted(self.proposer.asker)
        proposer.asker = fitted  # type: ignore[assignment]  # fits prompts, and records how many trials remain
        prompt = proposer.question(None)
        assert isinstance(prompt, Prompt)  # not a conversation
        selected = proposer.select(None)
        records = proposer.history.trim(selected, proposer.settings.history, fitted.records)
        shown = tuple(_trial([example.history[int(i)] for i in record["measured"]]) for record in records)
        if not shown:
            raise ConfigError(
                f"the prompt {prompt.name} fits into the window of {proposer.llm.label} only without any history; "
                "choose a model with a longer one, principal.rows=compact, or a smaller llm.max_tokens"
            )
        left_out = len(example.history) - sum(len(record["measured"]) for record in records)
        messages = ({"role": "user", "content": prompt.text},)
        return ProposalPrompt(example, messages, shown, left_out, prompt.name, prompt.hash)

    def reply(self, question: ProposalPrompt) -> str | None:
        """Return the reply that proposes the target of the question's example; None if it has no target."""
        target = question.example.target
        if target is None:
            return None
        best = max(trial.value for trial in question.shown)
        return self.write(target.vector, f"The best so far gave {best:.2f}; this is another place to look.")

    def write(self, vector: np.ndarray, reasoning: str) -> str:
        """Return a reply with `vector` [d] and `reasoning` in the form that the prompt requests."""
        numbers = [_shortest(value) for value in vector.tolist()]
        if self.proposer.form.reply == "lines":
            return "; ".join(f"params[{i}]: {x}" for i, x in enumerate(numbers)) + f"\n{reasoning}"
        return f'{{"reasoning": {json.dumps(reasoning)}, "params": [{", ".join(numbers)}]}}'

    def read(self, text: str, cut: bool = False) -> np.ndarray:
        """Return the numbers [d] in a reply, even if out of bounds; `cut` says that the reply was cut off.

        Raises:
            InvalidReply: the reply holds no such numbers.
        """
        vector: np.ndarray = parse_answer(text, self.proposer.asked(1), cut).answer[0]
        return vector

    def usable(self, vector: np.ndarray) -> np.ndarray | None:
        """Return the vector as the search would try it; None if it would ask again (`principal.out_of_range`)."""
        if self.proposer.refuses(vector):
            return None
        return self.space.rounded(vector, clip=self.proposer.settings.out_of_range != "accept")

    def proposable(self, vector: np.ndarray) -> bool:
        """Return whether the search would try a proposed vector unchanged."""
        tried = self.usable(vector)
        return tried is not None and np.array_equal(tried, vector)

    def inside(self, vector: np.ndarray) -> bool:
        """Return whether all numbers are within their bounds."""
        return bool(np.all((vector >= self.space.low) & (vector <= self.space.high)))

    def _check_format(self) -> None:
        middle = self.space.rounded((self.space.low + self.space.high) / 2)
        text = self.write(middle, "A check of the format.")
        try:
            same = np.allclose(self.read(text), middle)
        except InvalidReply as fault:
            raise ConfigError(
                f"replies in the form principal.reply={self.proposer.form.reply} cannot be read: {fault}"
            ) from fault
        if not same:
            raise ConfigError(
                f"replies in the form principal.reply={self.proposer.form.reply} are read as other numbers: {text}"
            )


class _Fitted:
    """Wrapper of `asker` that also records the number of history records in the last fitted prompt."""

    def __init__(self, asker: StructuredQuery[ParsedReply]) -> None:
        self._asker = asker
        self.records = 0

    def fit(self, render: Callable[[int], Prompt], n: int) -> Prompt:
        rendered: list[tuple[int, Prompt]] = []

        def kept(k: int) -> Prompt:
            rendered.append((k, render(k)))
            return rendered[-1][1]

        prompt = self._asker.fit(kept, n)
        self.records = next(k for k, other in rendered if other is prompt)
        return prompt


def _trial(measured: Sequence[ParameterTrial]) -> ParameterTrial:
    """Merge the trials of one vector."""
    if len(measured) == 1:
        return measured[0]
    return ParameterTrial(measured[0].vector, np.concatenate([trial.returns for trial in measured]))


def _outcome(trial: ParameterTrial) -> Outcome:
    return Outcome(trial.vector, trial.value, trial.returns, standard_error_of_mean(trial.returns))


def _shortest(value: float) -> str:
    """Format a number as in the prompt's rows, or exactly if that would round it."""
    shown = shown_number(value)
    return shown if float(shown) == value else repr(value)
