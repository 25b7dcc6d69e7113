"""What is asked of an evaluation, whoever asks: the command line or Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

from llmrl.core.errors import ConfigError

Mode = Literal["stochastic", "deterministic", "both"]


class Teller(Protocol):
    """Passes on what an evaluation says while it goes on."""

    def __call__(self, text: str, rows: Sequence[tuple[str, str]] = ()) -> None:
        """One line of news; with rows (what, value), the title of a table."""
        ...


@dataclass(frozen=True)
class EvaluationSettings:
    """What is asked of an evaluation.

    Args:
        episodes: rounded up to a multiple of the games, >= 1; None: 100, on the Melting Pot engine 10. Exactly so many
            where a player asks a language model; None: `play.episodes` of the run.
        policies: who plays, some of `players.PLAYERS`; in a suite of `evaluate_suite.PLAYERS`.
        mode: actions are drawn from the policy, or the likeliest is taken, or one after the other.
        seed: of the episodes.
        mechanisms: what is imposed, some of `mechanisms.WORDS` or numbers such as `0,2,0`; several are compared.
        adapt: let a society adapt to each mechanism first, as in a principal's step; None: where several are compared.
        context: index of the context; None: the proposal's own.
        env: options of the environment that are to be others than in the run, such as `engine=meltingpot`.
        trajectories: keep every step as arrays, `trajectories/<k>.npz`.
        video: record one episode, at most `video_steps` steps of it, with `fps` frames a second.
        video_steps, fps: see there.
        calls: replies of a language model that evaluations of this run may pay for, all together, >= 0; None:
            `llm.budget` of the run.
        trusted: packages that the run's config may name although they are no part of llmrl.
        out: where results go; None: a folder inside the run's, which the settings give its name.

    Raises:
        ConfigError: a number is out of range, or a mode unknown.
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
        for name, least in (("episodes", 1), ("video_steps", 1), ("fps", 1), ("calls", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name}={value}: at least {least} is needed")
        if self.mode not in get_args(Mode):
            raise ConfigError(f"mode={self.mode}: there is {', '.join(get_args(Mode))}")

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that each policy plays in."""
        return ("stochastic", "deterministic") if self.mode == "both" else (self.mode,)
