"""What holds of one environment as it was made, and of no other of its kind: its limit of steps, what counts as a
success, and arguments that nothing else is said of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from llmrl.envs.gym.gymnasium_games import limit_of
from llmrl.envs.gym.success import SuccessCriterion
from llmrl.envs.texts.env_arguments import EnvKwargs, shown

if TYPE_CHECKING:
    import gymnasium


def limit(env: gymnasium.Env[Any, Any]) -> str:
    """A sentence about the steps an episode may take; empty where they are not limited, or nobody knows."""
    steps = limit_of(env)
    return "" if steps is None else f"An episode ends after {steps} step{'s' * (steps != 1)} at the latest."


def changed(arguments: EnvKwargs, told: Collection[str] = ()) -> str:
    """A sentence about arguments that are not the usual ones, but for those that are `told` otherwise; empty where
    there are none."""
    settings = [f"{name} = {shown(x)}" for name, x in arguments.changed().items() if name not in told]
    return f"Changed settings of the game: {', '.join(settings)}." if settings else ""


def success(criterion: SuccessCriterion | None, named: Mapping[str, str] | None = None) -> str:
    """A sentence about what makes an episode a success; empty where nothing does.

    Args:
        criterion: what does.
        named: what criteria mean in this game, as the end of a sentence, by what `str` makes of them.
    """
    if criterion is None:
        return ""
    means = (named or {}).get(str(criterion))
    if means is None and criterion.at is None:
        means = "the game ends by itself, not because the steps have run out"
    elif means is None:
        what = "the sum of its rewards" if criterion.kind == "return" else "the reward of one of its steps"
        means = f"{what} is {criterion.at:g} or more"
    return f"An episode is a success if {means}."


def join_paragraphs(*sentences: str) -> str:
    """Paragraphs, but for those that are empty."""
    return "\n".join(sentence for sentence in sentences if sentence)
