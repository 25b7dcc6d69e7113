"""Settings of an evaluation, for the command line and for Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

from llmrl.core.errors import ConfigError

Mode = Literal["stochastic", "deterministic", "both"]


class Reporter(Protocol):
    """A function that shows messages of a running evaluation."""

    def __call__(self, text: str, rows: Sequence[tuple[str, str]] = ()) -> None:
        """Show the line `text`; with `rows`, pairs (label, text), show a table with the title `text`."""
        ...


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of an evaluation.

    Args:
        episodes: number of episodes, >= 1, rounded up to a multiple of the games; None: 100, or 10 on the Melting Pot
            engine. It is exact if a player uses a language model; None is then `play.episodes` of the run.
        policies: players, several with commas: `student` (the run's agents), `teacher` (the run's), `oracle` (a
            scripted planner, where the environment has one), `bot` (the environment's own expert, where it has one),
            `random`; in a suite `student`, `bot` and `random`.
        mode: `stochastic` samples actions from the policy, `deterministic` takes the most probable; `both`: one after
            the other.
        seed: seed of the episodes.
        mechanisms: mechanism to set: `last` (the proposal that the saved agents adapted to, the best one of the last
            step), `best` (the recommendation of the run), `none` (all numbers 0, or nearest to it), or the numbers of a
            vector (`0,2,0`). Several mechanisms are compared: names with commas (`none,best`), or several entries.
        adapt: whether a society first adapts to each mechanism, as in a principal step; None: if several are compared.
        context: index of the context; None: the context of the proposal, or the first one.
        env: option of the environment that differs from that of the run, such as `engine=meltingpot`; several entries
            are possible.
        trajectories: store every step as arrays, `trajectories/<k>.npz`.
        video: record a video of one episode: the world and the view of each agent, MP4 and GIF.
        video_steps: maximum number of steps of the video, >= 1; None: the full episode.
        fps: frames per second of the video, >= 1.
        calls: maximum number of paid replies of a language model in all evaluations of this run together, >= 0; None:
            `llm.budget` of the run.
        trusted: packages outside llmrl from which the config of the run may import code.
        out: folder for results; None: `evaluation` in the run folder, or `evaluation_<changes>` with other options of
            the environment or several mechanisms.

    Raises:
        ConfigError: a number is out of range, or the mode is unknown.
    """

    episodes: int | None = None
    policies: Sequence[str] = ("student",)
    mode: Mode = "stochastic"
    seed: int = 1000
    mechanisms: Sequence[str] = ("last",)
    adapt: bool | None = None
    context: int | None = None
    env: Sequence[str] = ()
    trajectories: bool = False
    video: bool = False
    video_steps: int | None = None
    fps: int = 20
    calls: int | None = None
    trusted: Sequence[str] = ()
    out: Path | None = None

    def __post_init__(self) -> None:
        for name, minimum in (("episodes", 1), ("video_steps", 1), ("fps", 1), ("calls", 0)):
            number = getattr(self, name)
            if number is not None and number < minimum:
                raise ConfigError(f"{name}={number} is too small; use {minimum} or more")
        if self.mode not in get_args(Mode):
            raise ConfigError(f"mode={self.mode} is unknown; use {', '.join(get_args(Mode))}")

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes in which each player plays."""
        return ("stochastic", "deterministic") if self.mode == "both" else (self.mode,)
