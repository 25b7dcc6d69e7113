"""The proposer's own prompts and replies, for histories of any origin: what is trained on is what will be asked."""

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
from llmrl.finetuning.examples import Example
from llmrl.finetuning.trials import Trial
from llmrl.llms.asking import Asker
from llmrl.llms.prompts import Prompt
from llmrl.llms.reading.deciding import understand
from llmrl.llms.structured import InvalidReply
from llmrl.principals.history import History
from llmrl.principals.llm_principal import LLMPrincipal
from llmrl.principals.llm_search import LLMSearch, shown_number
from llmrl.principals.reading import Reading


@dataclass(frozen=True, eq=False)
class Question:
    """A prompt of the proposer.

    Attributes:
        example: what it was made from.
        messages: as a chat model is asked.
        shown: the trials that stand in it, which may be fewer than the example has; those of one vector are one, where
            the prompt pools them.
        left_out: trials of the example that do not stand in it.
        name, hash: of the prompt's file, for call logs.
    """

    example: Example
    messages: tuple[dict[str, str], ...]
    shown: tuple[Trial, ...]
    left_out: int
    name: str
    hash: str

    @property
    def text(self) -> str:
        """What is asked."""
        return self.messages[-1]["content"]


class Questions:
    """Makes questions, writes the replies that would be right, and reads replies.

    Args:
        proposer: `principal=llm` as `llmrl-train` builds it, with the chat model that will be asked.

    Raises:
        ConfigError: it does not propose parameters of a policy, one vector a reply; or its format does not survive
            being written and read.
    """

    def __init__(self, proposer: LLMPrincipal) -> None:
        if not isinstance(proposer, LLMSearch):
            raise ConfigError("fine-tuning is for proposers of policy parameters (agent=linear, tabular, ...)")
        if proposer.together:
            raise ConfigError(
                "principal.together=true asks for several vectors in a reply; fine-tuning is of one a reply"
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

    def ask(self, example: Example) -> Question:
        """The question that would be asked after the trials of an example, each of which was one iteration.

        Where it is too long for the model's window and longest reply, trials are left out, never cut: which ones is the
        proposer's choice (`History.trim`).

        Raises:
            LLMError: not even the prompt without any trial fits.
        """
        proposer = copy.copy(self.proposer)
        proposer.history = History(proposer.spec, proposer.history.pooled)
        for trial in example.history:
            proposer.history.add([_outcome(trial)])
        proposer.iteration = len(example.history)
        fitted = _Fitted(self.proposer.asker)
        proposer.asker = fitted  # type: ignore[assignment]  # fits prompts, and tells how much of the history is left
        prompt = proposer.question(None)
        assert isinstance(prompt, Prompt)  # of no conversation
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
        return Question(example, messages, shown, left_out, prompt.name, prompt.hash)

    def reply(self, question: Question) -> str | None:
        """The reply that proposes the target of the question's example; None where there is none."""
        target = question.example.target
        if target is None:
            return None
        best = max(trial.value for trial in question.shown)
        return self.write(target.vector, f"The best so far gave {best:.2f}; this is another place to look.")

    def write(self, vector: np.ndarray, reasoning: str) -> str:
        """A reply in the form that the prompt asks for."""
        numbers = [_shortest(value) for value in vector.tolist()]
        if self.proposer.form.reply == "lines":
            return "; ".join(f"params[{i}]: {x}" for i, x in enumerate(numbers)) + f"\n{reasoning}"
        return f'{{"reasoning": {json.dumps(reasoning)}, "params": [{", ".join(numbers)}]}}'

    def read(self, text: str, cut: bool = False) -> np.ndarray:
        """The numbers in a reply as it gives them, [d], wherever they lie; `cut`: it ended because it grew too long.

        Raises:
            InvalidReply: there are none.
        """
        vector: np.ndarray = understand(text, self.proposer.asked(1), cut).answer[0]
        return vector

    def usable(self, vector: np.ndarray) -> np.ndarray | None:
        """The vector as the search would try it; None where it would ask again (`principal.out_of_range`)."""
        if self.proposer.refuses(vector):
            return None
        return self.space.rounded(vector, clip=self.proposer.settings.out_of_range != "accept")

    def proposable(self, vector: np.ndarray) -> bool:
        """Whether the search would try just these numbers, were they proposed."""
        tried = self.usable(vector)
        return tried is not None and np.array_equal(tried, vector)

    def inside(self, vector: np.ndarray) -> bool:
        """Whether all numbers are inside their bounds."""
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
    """Fits prompts as `asker` does, and remembers with how many records the last one fitted."""

    def __init__(self, asker: Asker[Reading]) -> None:
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


def _trial(measured: Sequence[Trial]) -> Trial:
    """The trials of one vector as one."""
    if len(measured) == 1:
        return measured[0]
    return Trial(measured[0].vector, np.concatenate([trial.returns for trial in measured]))


def _outcome(trial: Trial) -> Outcome:
    return Outcome(trial.vector, trial.value, trial.returns, standard_error_of_mean(trial.returns))


def _shortest(value: float) -> str:
    """As the rows of the prompt show a number, or exactly where that would round it."""
    shown = shown_number(value)
    return shown if float(shown) == value else repr(value)
