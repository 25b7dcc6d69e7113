"""Format of the prompts and replies of a proposer, an LLM that proposes policy parameters (`LLMSearch`)."""

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
    """Prompt of a proposer.

    Attributes:
        example: example that the prompt was made from.
        messages: messages to a chat model.
        shown_trials: trials shown in the prompt, from the example's trials; if the prompt pools repeated parameters,
            their trials are merged into one.
        n_omitted: number of trials of the example that are not in the prompt.
        template_name, template_hash: name and hash of the prompt file, for call logs.
    """

    example: ProposalExample
    messages: tuple[dict[str, str], ...]
    shown_trials: tuple[ParameterTrial, ...]
    n_omitted: int
    template_name: str
    template_hash: str

    @property
    def text(self) -> str:
        """Text of the last message."""
        return self.messages[-1]["content"]


class PromptFormat:
    """Format of a proposer's prompts and replies.

    Args:
        proposer: proposer with the chat model that will receive the prompts (`principal=llm`).

    Raises:
        ConfigError: `proposer` does not propose policy parameters, or its prompts show metrics besides returns.
    """

    def __init__(self, proposer: LLMPrincipal) -> None:
        if not isinstance(proposer, LLMSearch):
            raise ConfigError("fine-tuning needs a proposer of policy parameters; use agent=linear, tabular, ...")
        if proposer.settings.observations:
            raise ConfigError(
                "principal.observations=true adds episode metrics to each return in the prompt, but trials for "
                "fine-tuning contain only returns; set it to null"
            )
        self.proposer = proposer
        self.space: ParameterSpace = proposer.space

    def make_prompt(self, example: ProposalExample) -> ProposalPrompt:
        """Return the prompt that the proposer would send after the trials of the example.

        Each trial becomes an iteration of the search; `principal.history` determines which of them the prompt shows.
        If the prompt and a reply of `llm.max_tokens` exceed the context window, trials are omitted (`History.trim`).

        Raises:
            LLMError: the prompt exceeds the context window even without any trial.
            ConfigError: the prompt fits only without any trial.
        """
        proposer = copy.copy(self.proposer)
        proposer.history = History(proposer.spec, proposer.history.pooled, proposer.history.sliding)
        for trial in example.trials:
            standard_error = standard_error_of_mean(trial.returns)
            proposer.history.add([Outcome(trial.vector, trial.value, trial.returns, standard_error)])
        proposer.iteration = len(example.trials)
        prompt = proposer.build_prompt(None)
        records = proposer.history.trim(proposer.select_records(), proposer.settings.history, proposer.n_shown_records)
        shown_trials = tuple(_merge_trials([example.trials[int(i)] for i in record["measured"]]) for record in records)
        if not shown_trials:
            raise ConfigError(
                f"the prompt {prompt.name} fits into the context window of {proposer.llm.label} only without any "
                "history; choose a model with a larger one, principal.rows=compact, or a smaller llm.max_tokens"
            )
        n_omitted = len(example.trials) - sum(len(record["measured"]) for record in records)
        messages = ({"role": "user", "content": prompt.text},)
        return ProposalPrompt(example, messages, shown_trials, n_omitted, prompt.name, prompt.hash)

    def make_target_reply(self, prompt: ProposalPrompt) -> str | None:
        """Return the reply that proposes the target of the prompt's example; None if there is no target."""
        target = prompt.example.target
        if target is None:
            return None
        best = max(trial.value for trial in prompt.shown_trials)
        return self.format_reply(target.vector, f"The best so far gave {best:.2f}; this is another place to look.")

    def format_reply(self, vector: np.ndarray, reasoning: str) -> str:
        """Return a reply with `vector` [d] and `reasoning` in the form that the prompt requests."""
        # Numbers have the format of the prompt's trials, or all digits if that format would change the number.
        text_number_pairs = [(format_number(value), value) for value in vector.tolist()]
        number_texts = [text if float(text) == value else repr(value) for text, value in text_number_pairs]
        if self.proposer.settings.reply == "lines":
            return "; ".join(f"params[{i}]: {x}" for i, x in enumerate(number_texts)) + f"\n{reasoning}"
        return f'{{"reasoning": {json.dumps(reasoning)}, "params": [{", ".join(number_texts)}]}}'

    def parse_reply(self, text: str, is_truncated: bool = False) -> np.ndarray:
        """Return the parameters [d] in a reply, even if they are out of bounds.

        `is_truncated` states whether the reply ended at the limit of tokens.

        Raises:
            InvalidReply: the reply does not contain d numbers.
        """
        return parse_answer(text, self.proposer.make_parser(), is_truncated).answer

    def to_evaluated_vector(self, vector: np.ndarray) -> np.ndarray | None:
        """Return the rounded and clipped vector that the search evaluates; None if `out_of_range` rejects `vector`."""
        if self.proposer.has_invalid_numbers(vector):
            return None
        return self.space.round_values(vector, clip=self.proposer.settings.out_of_range != "accept")

    def is_evaluated_unchanged(self, vector: np.ndarray) -> bool:
        """Return whether the search evaluates a proposed vector unchanged."""
        evaluated_vector = self.to_evaluated_vector(vector)
        return evaluated_vector is not None and np.array_equal(evaluated_vector, vector)

    def is_in_bounds(self, vector: np.ndarray) -> bool:
        """Return whether all parameters in `vector` are within their bounds."""
        return bool(np.all((vector >= self.space.low) & (vector <= self.space.high)))


def _merge_trials(repeats: Sequence[ParameterTrial]) -> ParameterTrial:
    """Return one trial with the returns of all `repeats`, which have equal parameters."""
    if len(repeats) == 1:
        return repeats[0]
    return ParameterTrial(repeats[0].vector, np.concatenate([trial.returns for trial in repeats]))
