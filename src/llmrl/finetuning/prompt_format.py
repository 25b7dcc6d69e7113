"""Conversion of trials to prompts and of vectors to replies, in the same format for training and use."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.records import Outcome
from llmrl.core.spaces import ParameterSpace
from llmrl.finetuning.trials import ParameterTrial, ProposalExample
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.principals.history import History
from llmrl.principals.llm_principal import LLMPrincipal
from llmrl.principals.llm_search import LLMSearch, format_number
from llmrl.statistics.estimators import standard_error_of_mean


@dataclass(frozen=True, eq=False)
class ProposalPrompt:
    """Prompt of the proposer.

    Attributes:
        example: example that the prompt was made from.
        messages: messages to a chat model.
        shown_trials: trials in the prompt, possibly fewer than in the example; trials of equal parameters are one trial
            if the prompt pools them.
        n_omitted: number of trials of the example that are not in the prompt.
        name, hash: name and hash of the prompt's file, for call logs.
    """

    example: ProposalExample
    messages: tuple[dict[str, str], ...]
    shown_trials: tuple[ParameterTrial, ...]
    n_omitted: int
    name: str
    hash: str

    @property
    def text(self) -> str:
        """Text of the last message."""
        return self.messages[-1]["content"]


class PromptFormat:
    """Format of the proposer's prompts and replies: makes prompts and target replies, and parses replies.

    Args:
        proposer: `principal=llm` as `llmrl-train` builds it, with the chat model that will be asked.

    Raises:
        ConfigError: the proposer does not propose parameters of a policy, or its prompts contain more than returns.
    """

    def __init__(self, proposer: LLMPrincipal) -> None:
        if not isinstance(proposer, LLMSearch):
            raise ConfigError("fine-tuning needs a proposer of policy parameters; use agent=linear, tabular, ...")
        if proposer.settings.observations:
            raise ConfigError(
                "principal.observations=true shows observations, which trials for fine-tuning do not contain; set it "
                "to null"
            )
        self.proposer = proposer
        self.space: ParameterSpace = proposer.space

    def make_prompt(self, example: ProposalExample) -> ProposalPrompt:
        """Return the prompt that follows on the trials of an example, each of which counts as one iteration.

        If the prompt and the longest reply exceed the context window, whole trials are left out, as the proposer
        chooses (`History.trim`).

        Raises:
            LLMError: not even the prompt without any trial fits.
            ConfigError: only the prompt without any trial fits.
        """
        proposer = copy.copy(self.proposer)
        proposer.history = History(proposer.spec, proposer.history.pooled, proposer.history.sliding)
        for trial in example.history:
            error = standard_error_of_mean(trial.returns)
            proposer.history.add([Outcome(trial.vector, trial.value, trial.returns, error)])
        proposer.iteration = len(example.history)
        prompt = proposer.build_question(None)
        records = proposer.history.trim(proposer.select_records(), proposer.settings.history, proposer.n_records)
        shown_trials = tuple(_merge_trials([example.history[int(i)] for i in record["measured"]]) for record in records)
        if not shown_trials:
            raise ConfigError(
                f"the prompt {prompt.name} fits into the context window of {proposer.llm.label} only without any "
                "history; choose a model with a larger one, principal.rows=compact, or a smaller llm.max_tokens"
            )
        n_omitted = len(example.history) - sum(len(record["measured"]) for record in records)
        messages = ({"role": "user", "content": prompt.text},)
        return ProposalPrompt(example, messages, shown_trials, n_omitted, prompt.name, prompt.hash)

    def target_reply(self, prompt: ProposalPrompt) -> str | None:
        """Return the reply that proposes the target of the prompt's example; None if it has no target."""
        target = prompt.example.target
        if target is None:
            return None
        best = max(trial.value for trial in prompt.shown_trials)
        return self.format_reply(target.vector, f"The best so far gave {best:.2f}; this is another place to look.")

    def format_reply(self, vector: np.ndarray, reasoning: str) -> str:
        """Return a reply with `vector` [d] and `reasoning` in the form that the prompt requests."""
        # As in the prompt's rows, or exactly if that would round a number.
        texts = [(format_number(value), value) for value in vector.tolist()]
        numbers = [text if float(text) == value else repr(value) for text, value in texts]
        if self.proposer.settings.reply == "lines":
            return "; ".join(f"params[{i}]: {x}" for i, x in enumerate(numbers)) + f"\n{reasoning}"
        return f'{{"reasoning": {json.dumps(reasoning)}, "params": [{", ".join(numbers)}]}}'

    def parse_reply(self, text: str, is_truncated: bool = False) -> np.ndarray:
        """Return the numbers [d] in a reply, even if out of bounds; `is_truncated`: the reply was cut off.

        Raises:
            InvalidReply: the reply holds no such numbers.
        """
        vector: np.ndarray = parse_answer(text, self.proposer.parser(), is_truncated).answer
        return vector

    def to_played_vector(self, vector: np.ndarray) -> np.ndarray | None:
        """Return the vector that the search would play; None if it would ask again (`principal.out_of_range`)."""
        if self.proposer.has_refused_numbers(vector):
            return None
        return self.space.round_values(vector, clip=self.proposer.settings.out_of_range != "accept")

    def is_proposable(self, vector: np.ndarray) -> bool:
        """Return whether the search would play a proposed vector unchanged."""
        rounded = self.to_played_vector(vector)
        return rounded is not None and np.array_equal(rounded, vector)

    def is_in_bounds(self, vector: np.ndarray) -> bool:
        """Return whether all numbers are within their bounds."""
        return bool(np.all((vector >= self.space.low) & (vector <= self.space.high)))


def _merge_trials(repeats: Sequence[ParameterTrial]) -> ParameterTrial:
    """Merge the trials of one vector."""
    if len(repeats) == 1:
        return repeats[0]
    return ParameterTrial(repeats[0].vector, np.concatenate([trial.returns for trial in repeats]))
