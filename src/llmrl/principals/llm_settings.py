"""Settings of `principal=llm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt
from llmrl.principals.history import Contexts, Policy

OutOfRange = Literal["reask", "clamp", "accept"]
Fallback = Literal["best", "last", "stop"]
Rows = Literal["compact", "named"]
Reply = Literal["json", "lines"]


@dataclass(frozen=True)
class LLMSettings:
    """Options of `llm_principal`; meanings, units and ranges are in `conf/principal/llm.yaml`.

    Attributes:
        history: selection of the proposals shown, see `History.select`.
        fallback: reaction if no reply is valid. `best` is the best vector of this context so far, of those judged by as
            many episodes as any one proposal. Without earlier vectors the center of the bounds is proposed.
        joint_prompt, rows, reply, first_iteration, prompt_iterations, advice, turns, episode_steps: see
            `SearchFormat`, whose defaults apply if None.
    """

    prompt: str | None
    history: Policy
    history_tokens: PositiveInt | None
    window: PositiveInt
    n_recent: NonNegativeInt
    contexts: Contexts
    measurements: Literal["pooled", "separate"]
    sliding_history: bool
    observations: bool | None
    repair_turns: NonNegativeInt
    fallback: Fallback
    out_of_range: OutOfRange
    duplicates: Literal["reask", "accept"]
    joint_prompt: bool
    rows: Rows | None
    reply: Reply | None
    first_iteration: NonNegativeInt | None
    advice: bool | None
    turns: PositiveInt | None
    episode_steps: NonNegativeInt | None
    prompt_iterations: PositiveInt | None
    step_size: NonNegativeFloat | None
    optimum: float | None


@dataclass(frozen=True)
class SearchFormat:
    """Format of the questions and replies of a policy search, see `conf/principal/llm.yaml`.

    Attributes:
        prompt_iterations: number of iterations stated in prompts; None: the number that the loop states.
    """

    joint_prompt: bool = False
    rows: Rows = "compact"
    reply: Reply = "json"
    first_iteration: int = 1
    prompt_iterations: int | None = None
    advice: bool = True
    turns: int = 1
    episode_steps: int = 0
