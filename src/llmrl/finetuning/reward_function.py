"""Evaluation of replies: parsed, checked against the bounds, and played."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from llmrl.core.records import ChatReply
from llmrl.core.seeding import Seeds
from llmrl.finetuning.prompt_format import PromptFormat, ProposalPrompt
from llmrl.finetuning.rewards import Attempt
from llmrl.finetuning.trials import Play
from llmrl.llms.structured import InvalidReply, read
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
            reads = [self._read(reply) for reply in replies]
            self._last = (key, self._attempts(questions, reads, when))
        return self._last[1]

    def of_vectors(self, questions: Sequence[ProposalPrompt], vectors: np.ndarray, when: str) -> list[Attempt]:
        """Return attempts for proposals `vectors` [n, d] instead of replies."""
        return self._attempts(questions, [(vector, "") for vector in vectors], when)

    def metrics(self) -> dict[str, float]:
        """Return metrics of the last replies: train/valid_rate, train/inside_rate, train/repeat_rate,
        train/unread_groups (prompts without a valid reply) and train/return (mean over the replies played)."""
        attempts = [] if self._last is None else self._last[1]
        if self._last is None or not attempts:
            return {}
        groups = defaultdict[int, list[bool]](list)
        for prompt, attempt in zip(self._last[0][2], attempts, strict=True):
            groups[prompt].append(attempt.vector is not None)
        played = [attempt.value for attempt in attempts if attempt.value is not None]
        rates = {
            "train/valid_rate": float(np.mean([attempt.vector is not None for attempt in attempts])),
            "train/inside_rate": float(np.mean([attempt.inside for attempt in attempts])),
            "train/repeat_rate": float(np.mean([attempt.repeats for attempt in attempts])),
            "train/unread_groups": float(sum(not any(valid) for valid in groups.values())),
        }
        return rates | ({"train/return": float(np.mean(played))} if played else {})

    def _read(self, reply: str) -> tuple[np.ndarray | None, str]:
        """Return the numbers in a reply and ""; or None and what is wrong with the reply."""
        try:
            return read(ChatReply(reply), lambda said: self.questions.read(said.text)), ""
        except InvalidReply as fault:
            return None, str(fault)

    def _attempts(
        self, questions: Sequence[ProposalPrompt], reads: Sequence[tuple[np.ndarray | None, str]], when: str
    ) -> list[Attempt]:
        tried = [None if vector is None else self.questions.usable(vector) for vector, _ in reads]
        rows: dict[bytes, int] = {}
        for vector in tried:
            if vector is not None:
                rows.setdefault(_key(vector), len(rows))
        returns = np.zeros((0, self.rollouts))
        if rows:
            vectors = np.stack([np.frombuffer(key, dtype=np.float64) for key in rows])
            returns = self.play(vectors, episode_seeds(self.seeds.child(when), self.rollouts))
        attempts = []
        for question, (vector, fault), played in zip(questions, reads, tried, strict=True):
            row = np.zeros(0) if played is None else returns[rows[_key(played)]]
            attempts.append(
                Attempt(
                    vector,
                    inside=vector is not None and self.questions.inside(vector),
                    # Parameters so large that the environment returns NaN or infinity have no value.
                    returns=row if np.isfinite(row).all() else np.zeros(0),
                    history=np.array([trial.value for trial in question.shown]),
                    repeats=played is not None and _key(played) in {_key(trial.vector) for trial in question.shown},
                    fault=fault,
                )
            )
        return attempts


def _key(vector: np.ndarray) -> bytes:
    return (np.asarray(vector, dtype=np.float64) + 0.0).tobytes()
