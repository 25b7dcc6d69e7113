"""Evaluate a run from Python: what `llmrl-evaluate` does."""

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

Place = str | os.PathLike[str]
Mechanism = str | Sequence[float]
"""`none`, `last` or `best`, or the numbers of a vector."""


def evaluate(
    run: Place | Sequence[Place],
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
    out: Place | None = None,
) -> dict[str, Any]:
    """Play a run's newest checkpoint for a number of seeded episodes, and write what was measured.

    Args:
        run: the run folder, or the result of a run; with a suite also several.
        episodes: rounded up to a multiple of the games; None: 100, on the Melting Pot engine 10. Where a player asks a
            language model exactly so many; None: `play.episodes` of the run.
        policy: who plays, one or several: `student` (the run's agents), `teacher` (the run's), `oracle`, `bot`,
            `random`.
        mode: actions are drawn from the policy, or the likeliest is taken; `both`: one after the other.
        seed: of the episodes.
        mechanism: what is imposed: `last` (what the saved agents adapted to), `best` (what the run names so far),
            `none`, or numbers; several are compared.
        adapt: let a society adapt to each mechanism first, as in a principal's step; None: where several are compared.
        context: index of the context; None: the proposal's own.
        env: options of the environment that are to be others than in the run: `{"engine": "meltingpot"}`.
        suite: tests of generalisation, a name or a `.yaml` file (docs/generalisation.md).
        suite_options: keys of the suite to change.
        trajectories: keep every step as arrays, `trajectories/<k>.npz`.
        video: record one episode.
        video_steps: steps of it at most; None: all.
        fps: its frames a second.
        calls: replies of a language model that evaluations of this run may pay for; None: `llm.budget` of the run.
        trusted: packages that the run's config may name although they are no part of llmrl.
        out: where results go; None: `evaluation` inside the run folder, `evaluation_<changes>` where `env` or several
            mechanisms are given.

    Returns:
        What was written to `results.json`, and `out`, its folder. `table` has mean, standard error and 95% interval of
        everything measured; `per_episode` the values; with a suite of several runs those of all together.
        `llmrl.load(run).episodes` has the episodes as a table.

    Raises:
        CheckpointError: the folder is no run, or has no whole checkpoint.
        ConfigError: something asked for cannot be, or the run's config names code that is not trusted.
        LLMError: a language model that plays does not answer, or its budget is used up.
    """
    from llmrl.core.errors import ConfigError
    from llmrl.evaluation.settings import EvaluationSettings

    runs = [Path(each).expanduser() for each in ([run] if isinstance(run, str | os.PathLike) else run)]
    settings = EvaluationSettings(
        episodes=episodes,
        policies=policy.split(",") if isinstance(policy, str) else list(policy),
        mode=mode,
        seed=seed,
        mechanisms=_mechanisms(mechanism),
        adapt=adapt,
        context=context,
        env=_changes(env or {}),
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

        return evaluate_suite(runs, suite, settings, _note, _changes(suite_options or {}))[-1]
    if len(runs) != 1 or suite_options:
        raise ConfigError("several runs, and options of a suite, need a suite: suite='babyai_text'")
    from llmrl.evaluation.evaluate_run import evaluate_run

    return evaluate_run(runs[0], settings, _note)


def _note(text: str, rows: Sequence[tuple[str, str]] = ()) -> None:
    log.info("%s", "; ".join([text, *(f"{what}: {value}" for what, value in rows)]))


def _mechanisms(given: Mechanism | Sequence[Mechanism]) -> list[str]:
    """As texts: words as they are, numbers with commas."""
    if isinstance(given, str):
        return [given]
    whole = list(given)
    if all(isinstance(each, int | float) for each in whole):
        return [_vector(whole)]
    return [each if isinstance(each, str) else _vector(each) for each in whole]  # type: ignore[arg-type]


def _vector(numbers: Sequence[Any]) -> str:
    return ",".join(repr(float(x)) for x in numbers)


def _changes(options: Mapping[str, Any]) -> list[str]:
    """As `key=value`, values as YAML; plain texts as they would be typed."""
    import yaml

    def written(value: Any) -> str:
        return value if isinstance(value, str) and yaml.safe_load(value) == value else json.dumps(value)

    return [f"{key}={written(value)}" for key, value in options.items()]
