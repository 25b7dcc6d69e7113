"""Evaluation of runs from Python, like the command `llmrl-evaluate`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.evaluation.settings import Mode

log = logging.getLogger(__name__)

StrPath = str | os.PathLike[str]
Mechanism = str | Sequence[float]
"""`none`, `last` or `best`, or a mechanism vector, [d]."""


def evaluate(
    run: StrPath,
    episodes: int | None = None,
    policy: str | Sequence[str] = "student",
    mode: Mode = "stochastic",
    seed: int = 1000,
    *,
    mechanism: Mechanism | Sequence[Mechanism] = "last",
    adapt: bool | None = None,
    context: int | None = None,
    env: Mapping[str, Any] | None = None,
    suite: str | None = None,
    suite_options: Mapping[str, Any] | None = None,
    trajectories: bool = False,
    video: bool = False,
    video_steps: int | None = None,
    fps: int = 20,
    calls: int | None = None,
    trusted: Sequence[str] = (),
    out: StrPath | None = None,
) -> dict[str, Any]:
    """Evaluate the newest checkpoint of a run in seeded episodes, and write the measurements.

    Args:
        run: run folder or `RunResult`.
        episodes: number of episodes, rounded up to a multiple of the games; None: 100, or 10 on the Melting Pot engine.
            If a language model plays, it is not rounded up, and None is `play.episodes` of the run.
        policy: one or several players: `student` (the run's agents), `teacher` (the run's), `oracle`, `bot`, `random`.
        mode: `stochastic`: actions are sampled; `deterministic`: the most probable action; `both`: both in turn.
        seed: seed of the episodes.
        mechanism: mechanism of the games: `last` (the one in the checkpoint), `best` (the current recommendation),
            `none`, or a vector; a list of several mechanisms is compared.
        adapt: whether a society first adapts to each mechanism, like in a principal step; None: True if several
            mechanisms are compared.
        context: index of the context; None: the context of the proposal.
        env: fields of the environment option that differ from the run, such as `{"engine": "meltingpot"}`.
        suite: name or `.yaml` file of tests of generalization (docs/generalization.md); None: no suite.
        suite_options: keys of the suite with changed values.
        trajectories: whether to store every step as arrays, `trajectories/<k>.npz`.
        video: whether to record a video of one episode.
        video_steps: maximum number of steps of the video; None: the full episode.
        fps: frames per second of the video.
        calls: maximum number of paid replies of a language model in all evaluations of this run together; None:
            `llm.budget` of the run.
        trusted: packages outside llmrl whose code the run's config may use.
        out: folder of the results; None: `evaluation` in the run folder, or `evaluation_<changes>` with `env` or
            several mechanisms.

    Returns:
        The content of `results.json`, with its folder as `out`. `table` has mean, standard error and 95% interval of
        every measurement, `per_episode` its value in each episode. `llmrl.load(run).episodes` is a table of the
        episodes. With a suite, `tests` has the results of each test.

    Raises:
        CheckpointError: the folder is not a run folder, or has no intact checkpoint.
        ConfigError: an argument is invalid, or the run's config uses code that is not trusted.
        LLMError: a language-model player does not reply, or its budget is used up.
    """
    from llmrl.core.errors import ConfigError
    from llmrl.evaluation.settings import EvaluationSettings

    folder = Path(run).expanduser()
    settings = EvaluationSettings(
        episodes=episodes,
        policies=policy.split(",") if isinstance(policy, str) else list(policy),
        mode=mode,
        seed=seed,
        mechanisms=_format_mechanisms(mechanism),
        adapt=adapt,
        context=context,
        env=_format_options(env or {}),
        trajectories=trajectories,
        video=video,
        video_steps=video_steps,
        fps=fps,
        calls=calls,
        trusted=list(trusted),
        out=None if out is None else Path(out).expanduser(),
    )
    if suite is not None:
        from llmrl.evaluation.evaluate_suite import evaluate_suite

        return evaluate_suite(folder, suite, settings, _log_message, _format_options(suite_options or {}))
    if suite_options:
        raise ConfigError("suite_options needs a suite, such as suite='babyai_text'")
    from llmrl.evaluation.evaluate_run import evaluate_run

    return evaluate_run(folder, settings, _log_message)


def _log_message(text: str, rows: Sequence[tuple[str, str]] = ()) -> None:
    log.info("%s", "; ".join([text, *(f"{name}: {value}" for name, value in rows)]))


def _format_mechanisms(mechanisms: Mechanism | Sequence[Mechanism]) -> list[str]:
    """Return mechanisms in the syntax of `llmrl-evaluate`: words unchanged, vectors as comma-separated numbers."""
    if isinstance(mechanisms, str):
        return [mechanisms]
    elements = list(mechanisms)
    if all(isinstance(mechanism, int | float) for mechanism in elements):
        return [_format_vector(elements)]
    return [mechanism if isinstance(mechanism, str) else _format_vector(mechanism) for mechanism in elements]  # type: ignore[arg-type]


def _format_vector(numbers: Sequence[Any]) -> str:
    return ",".join(repr(float(x)) for x in numbers)


def _format_options(options: Mapping[str, Any]) -> list[str]:
    """Return options as `key=value`, with values in JSON; texts that YAML reads as the same text are unquoted."""
    import yaml

    def format_value(value: Any) -> str:
        return value if isinstance(value, str) and yaml.safe_load(value) == value else json.dumps(value)

    return [f"{key}={format_value(value)}" for key, value in options.items()]
