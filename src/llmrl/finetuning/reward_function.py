"""Evaluation of replies: they are parsed, checked against the bounds, and their parameters are played."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from llmrl.core.records import ChatReply
from llmrl.core.seeding import Seeds
from llmrl.finetuning.prompt_format import PromptFormat, ProposalPrompt
from llmrl.finetuning.rewards import Attempt
from llmrl.finetuning.trials import Play
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.structured import read
from llmrl.rollout.batched_evaluator import episode_seeds


class RewardFunction:
    """Function from replies to attempts: their parameters and returns.

    Replies that are judged together are played under the same seeds (common random numbers). Equal parameters are
    played once.

    Args:
        questions: format that parses replies.
        play: function that plays parameters.
        rollouts: episodes per vector of parameters.
        seeds: node of the seed tree.
    """

    def __init__(self, questions: PromptFormat, play: Play, rollouts: int, seeds: Seeds) -> None:
        self.questions, self.play, self.rollouts, self.seeds = questions, play, rollouts, seeds
        self._last: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], list[Attempt]] | None = None

    def __call__(self, questions: Sequence[ProposalPrompt], replies: Sequence[str], when: str) -> list[Attempt]:
        """Return the attempt of each reply to its question; `when` names the stream of the episodes' seeds.

        A repetition of the last call returns its result without playing.
        """
        key = (when, tuple(replies), tuple(id(question) for question in questions))
        if self._last is None or self._last[0] != key:
            parsed_replies = [self._read(reply) for reply in replies]
            self._last = (key, self._attempts(questions, parsed_replies, when))
        return self._last[1]

    def of_vectors(self, questions: Sequence[ProposalPrompt], vectors: np.ndarray, when: str) -> list[Attempt]:
        """Return attempts for proposals `vectors` [n, d] instead of replies."""
        return self._attempts(questions, [(vector, "") for vector in vectors], when)

    def metrics(self) -> dict[str, float]:
        """Return metrics of the last replies.

        These are train/valid_rate, train/in_bounds_rate, train/repeat_rate, train/skipped_groups (number of prompts
        without a valid reply) and train/return (mean over the replies played).
        """
        attempts = [] if self._last is None else self._last[1]
        if self._last is None or not attempts:
            return {}
        groups = defaultdict[int, list[bool]](list)
        for prompt, attempt in zip(self._last[0][2], attempts, strict=True):
            groups[prompt].append(attempt.vector is not None)
        returns = [attempt.value for attempt in attempts if attempt.value is not None]
        rates = {
            "train/valid_rate": float(np.mean([attempt.vector is not None for attempt in attempts])),
            "train/in_bounds_rate": float(np.mean([attempt.in_bounds for attempt in attempts])),
            "train/repeat_rate": float(np.mean([attempt.repeats for attempt in attempts])),
            "train/skipped_groups": float(sum(not any(valid) for valid in groups.values())),
        }
        return rates | ({"train/return": float(np.mean(returns))} if returns else {})

    def _read(self, reply: str) -> tuple[np.ndarray | None, str]:
        """Return the numbers in a reply and ""; or None and what is wrong with the reply."""
        try:
            return read(ChatReply(reply), lambda chat_reply: self.questions.read(chat_reply.text)), ""
        except InvalidReply as error:
            return None, str(error)

    def _attempts(
        self, questions: Sequence[ProposalPrompt], parsed_replies: Sequence[tuple[np.ndarray | None, str]], purpose: str
    ) -> list[Attempt]:
        """Return the attempts of parsed replies; each distinct vector is played once."""
        usable_vectors = [None if vector is None else self.questions.usable(vector) for vector, _ in parsed_replies]
        vector_indices: dict[bytes, int] = {}
        for vector in usable_vectors:
            if vector is not None:
                vector_indices.setdefault(_key(vector), len(vector_indices))
        returns = np.zeros((0, self.rollouts))
        if vector_indices:
            vectors = np.stack([np.frombuffer(key, dtype=np.float64) for key in vector_indices])
            returns = self.play(vectors, episode_seeds(self.seeds.child(purpose), self.rollouts))
        attempts = []
        for question, (vector, error), parameters in zip(questions, parsed_replies, usable_vectors, strict=True):
            episode_returns = np.zeros(0) if parameters is None else returns[vector_indices[_key(parameters)]]
            attempts.append(
                Attempt(
                    vector,
                    in_bounds=vector is not None and self.questions.in_bounds(vector),
                    # Parameters so large that the environment returns NaN or infinity have no value.
                    returns=episode_returns if np.isfinite(episode_returns).all() else np.zeros(0),
                    history=np.array([trial.value for trial in question.shown]),
                    repeats=parameters is not None
                    and _key(parameters) in {_key(trial.vector) for trial in question.shown},
                    error=error,
                )
            )
        return attempts


def _key(vector: np.ndarray) -> bytes:
    return (np.asarray(vector, dtype=np.float64) + 0.0).tobytes()
