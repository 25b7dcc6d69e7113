"""Rewards of replies: episodes with the parameters in a reply, named rewards, and their weighted sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.pooling import VectorKey, make_vector_key
from llmrl.core.ranges import NonNegativeFloat, PositiveInt
from llmrl.core.records import ChatReply
from llmrl.core.seeding import Seeds
from llmrl.finetuning.prompt_format import PromptFormat, ProposalPrompt
from llmrl.finetuning.trials import PlayFn
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.structured import apply_parser
from llmrl.rollout.batched_evaluator import draw_episode_seeds


@dataclass(frozen=True)
class EvaluatedReply:
    """Reply with its parameters and the returns of episodes with them.

    Attributes:
        vector: parameters in the reply, [d]; None if it could not be parsed.
        is_in_bounds: whether all parameters are within their bounds.
        returns: returns of the episodes played with them, [m]; empty if nothing was played or a return is not finite.
        history_values: mean returns of the trials shown in the prompt, [k], k >= 1.
        is_repeated: whether the vector is one of the trials shown in the prompt.
        error: reason why the reply is invalid; "" if it is valid.
    """

    vector: np.ndarray | None
    is_in_bounds: bool
    returns: np.ndarray
    history_values: np.ndarray
    is_repeated: bool = False
    error: str = ""

    @property
    def value(self) -> float | None:
        """Mean return; None if there are no returns."""
        return float(self.returns.mean()) if len(self.returns) else None


@dataclass(frozen=True)
class ReturnScale:
    """Linear scale of returns, from `low` (0) to `high` (1), and whether `improvement` uses the published formula.

    Raises:
        ConfigError: `low` is not below `high`.
    """

    low: float
    high: float
    uses_published_formula: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(
                f"low must be below high, got low={self.low:g} and high={self.high:g}; set low and high (of rewards, "
                "or of transfer.<task>) to a bad and to a good return of this task"
            )

    def __call__(self, value: float) -> float:
        """Return clip((value - low) / (high - low), 0, 1)."""
        return float(np.clip((value - self.low) / (self.high - self.low), 0.0, 1.0))


def valid(reply: EvaluatedReply, scale: ReturnScale) -> float:
    """Return 1 if the reply could be parsed, else 0."""
    return float(reply.vector is not None)


def in_bounds(reply: EvaluatedReply, scale: ReturnScale) -> float:
    """Return 1 if the reply could be parsed and its parameters are within their bounds, else 0."""
    return float(reply.vector is not None and reply.is_in_bounds)


def scaled_return(reply: EvaluatedReply, scale: ReturnScale) -> float:
    """Return the mean return, scaled to [0, 1]; 0 if there is none."""
    return 0.0 if reply.value is None else scale(reply.value)


def improvement(reply: EvaluatedReply, scale: ReturnScale) -> float:
    """Return the improvement over the history's best value as a share of the largest possible one, in [0, 1].

    With scaled returns g(new) and g(best) it is clip((g(new) - g(best)) / (1 - g(best)), 0, 1). For g(best) = 1 it is 1
    if g(new) = 1, else 0. It is 0 if there is no return.

    The published formula is clip((g(new) - g(best)) g(new) / g(best), 0, 1), or g(new) for g(best) = 0. This is small
    if the history is good: for g(best) = 0.98 and g(new) = 0.99 it is 0.01.
    """
    if reply.value is None:
        return 0.0
    new, best = scale(reply.value), scale(float(reply.history_values.max()))
    if scale.uses_published_formula:
        return new if best == 0.0 else float(np.clip((new - best) * new / best, 0.0, 1.0))
    return float(new == 1.0) if best == 1.0 else float(np.clip((new - best) / (1.0 - best), 0.0, 1.0))


def rank(reply: EvaluatedReply, scale: ReturnScale) -> float:
    """Return the share of the history's values below the mean return, ties counting half; 0 if there is no return."""
    if reply.value is None:
        return 0.0
    return float(np.mean((reply.value > reply.history_values) + 0.5 * (reply.value == reply.history_values)))


def repeat(reply: EvaluatedReply, scale: ReturnScale) -> float:
    """Return -1 for a proposal that the history already contains, else 0."""
    return -float(reply.is_repeated)


RewardFunction = Callable[[EvaluatedReply, ReturnScale], float]

REWARDS: Mapping[str, RewardFunction] = {
    reward.__name__: reward for reward in (valid, in_bounds, scaled_return, improvement, rank, repeat)
}
"""Rewards by name; the names are options of `rewards`."""


@dataclass(frozen=True)
class Rewards:
    """Reward of a reply: the weighted sum of the named rewards.

    Attributes:
        valid, in_bounds, scaled_return, improvement, rank, repeat: weights of the rewards of the same names; 0: the
            reward is not computed.
        low, high: returns that are scaled to 0 and to 1; None: the lowest and the highest mean return of a training
            trial.
        rollouts: episodes per proposal.
        parity: whether `improvement` uses the published formula.

    Raises:
        ConfigError: all weights are 0, or `low` is not below `high`.
    """

    valid: NonNegativeFloat
    in_bounds: NonNegativeFloat
    scaled_return: NonNegativeFloat
    improvement: NonNegativeFloat
    rank: NonNegativeFloat
    repeat: NonNegativeFloat
    low: float | None
    high: float | None
    rollouts: PositiveInt
    parity: bool

    def __post_init__(self) -> None:
        if not self.weights:
            raise ConfigError(
                f"all rewards have the weight 0; set one of rewards.{', '.join(REWARDS)} to a number above 0"
            )
        if self.low is not None and self.high is not None:
            ReturnScale(self.low, self.high)

    @property
    def weights(self) -> dict[str, float]:
        """Weights above 0 by the name of the reward."""
        return {name: weight for name in REWARDS if (weight := getattr(self, name)) > 0}

    def scale(self, values: np.ndarray) -> ReturnScale:
        """Return the scale of returns; `values` [n] are the mean returns of the training trials.

        Raises:
            ConfigError: the lower limit is not below the upper one, e.g. because all values are equal.
        """
        low = float(values.min()) if self.low is None else self.low
        high = float(values.max()) if self.high is None else self.high
        return ReturnScale(low, high, self.parity)

    def __call__(self, reply: EvaluatedReply, scale: ReturnScale) -> float:
        """Return the reward of a reply."""
        return sum(weight * REWARDS[name](reply, scale) for name, weight in self.weights.items())


class ReplyEvaluator:
    """Evaluator of replies, which plays episodes with their parameters.

    The replies of one call are played with the same episode seeds (common random numbers), equal parameters once.

    Args:
        prompt_format: format that parses replies.
        play: function that plays parameters.
        n_episodes: number of episodes with each vector of parameters.
        seeds: node of the seed tree.
    """

    def __init__(self, prompt_format: PromptFormat, play: PlayFn, n_episodes: int, seeds: Seeds) -> None:
        self.prompt_format, self.play, self.n_episodes, self.seeds = prompt_format, play, n_episodes, seeds
        self._last_evaluation: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], list[EvaluatedReply]] | None = None

    def __call__(self, prompts: Sequence[ProposalPrompt], replies: Sequence[str], stream: str) -> list[EvaluatedReply]:
        """Evaluate the reply to each prompt; `stream` names the random stream of the episode seeds.

        A call with the same arguments as the previous one returns the stored evaluations.
        """
        key = (stream, tuple(replies), tuple(id(prompt) for prompt in prompts))
        if self._last_evaluation is None or self._last_evaluation[0] != key:
            self._last_evaluation = (
                key,
                self._evaluate(prompts, [self._parse_reply(reply) for reply in replies], stream),
            )
        return self._last_evaluation[1]

    def evaluate_vectors(
        self, prompts: Sequence[ProposalPrompt], vectors: np.ndarray, stream: str
    ) -> list[EvaluatedReply]:
        """Evaluate the proposal `vectors[i]` for prompt i; `vectors` is [n_prompts, d]."""
        return self._evaluate(prompts, [(vector, "") for vector in vectors], stream)

    def metrics(self) -> dict[str, float]:
        """Return metrics of the replies of the last call.

        These are train/valid_rate, train/in_bounds_rate, train/repeat_rate, train/skipped_groups (number of prompts
        without a valid reply) and train/return (mean over the replies that were played).
        """
        evaluated_replies = [] if self._last_evaluation is None else self._last_evaluation[1]
        if self._last_evaluation is None or not evaluated_replies:
            return {}
        validity_by_prompt = defaultdict[int, list[bool]](list)
        for prompt_id, reply in zip(self._last_evaluation[0][2], evaluated_replies, strict=True):
            validity_by_prompt[prompt_id].append(reply.vector is not None)
        mean_returns = [reply.value for reply in evaluated_replies if reply.value is not None]
        rates = {
            "train/valid_rate": float(np.mean([reply.vector is not None for reply in evaluated_replies])),
            "train/in_bounds_rate": float(np.mean([reply.is_in_bounds for reply in evaluated_replies])),
            "train/repeat_rate": float(np.mean([reply.is_repeated for reply in evaluated_replies])),
            "train/skipped_groups": float(sum(not any(validities) for validities in validity_by_prompt.values())),
        }
        return rates | ({"train/return": float(np.mean(mean_returns))} if mean_returns else {})

    def _parse_reply(self, reply: str) -> tuple[np.ndarray | None, str]:
        """Return the parameters in a reply and ""; or None and the reason why the reply is invalid."""
        try:
            return apply_parser(
                ChatReply(reply), lambda chat_reply: self.prompt_format.parse_reply(chat_reply.text)
            ), ""
        except InvalidReply as error:
            return None, str(error)

    def _evaluate(
        self, prompts: Sequence[ProposalPrompt], parsed_replies: Sequence[tuple[np.ndarray | None, str]], stream: str
    ) -> list[EvaluatedReply]:
        """Evaluate parsed replies; each distinct vector is played once."""
        evaluated_vectors = [
            None if vector is None else self.prompt_format.to_evaluated_vector(vector) for vector, _ in parsed_replies
        ]
        keys = [None if vector is None else make_vector_key(vector) for vector in evaluated_vectors]
        distinct_keys = [key for key in dict.fromkeys(keys) if key is not None]
        returns: dict[VectorKey, np.ndarray] = {}
        if distinct_keys:
            seeds = draw_episode_seeds(self.seeds.child(stream), self.n_episodes)
            returns = dict(zip(distinct_keys, self.play(np.array(distinct_keys), seeds), strict=True))
        evaluated_replies = []
        for prompt, (vector, error), key in zip(prompts, parsed_replies, keys, strict=True):
            episode_returns = np.zeros(0) if key is None else returns[key]
            evaluated_replies.append(
                EvaluatedReply(
                    vector,
                    is_in_bounds=vector is not None and self.prompt_format.is_in_bounds(vector),
                    # Parameters so large that the environment returns NaN or infinity have no value.
                    returns=episode_returns if np.isfinite(episode_returns).all() else np.zeros(0),
                    history_values=np.array([trial.value for trial in prompt.shown_trials]),
                    is_repeated=key is not None
                    and key in {make_vector_key(trial.vector) for trial in prompt.shown_trials},
                    error=error,
                )
            )
        return evaluated_replies
