"""What an evaluation measures in the episodes that were played, and what it writes: results, a row for each episode,
and TensorBoard's events."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.analysis.intervals import describe
from llmrl.analysis.mechanism_comparison import differences, labels, sentences
from llmrl.core.rollouts import Episode
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective
from llmrl.evaluation.evaluate_environment import PlannedEvaluation, Player, Videos
from llmrl.evaluation.evaluated_mechanisms import EvaluatedMechanism
from llmrl.rollout.episode_results import SUCCESS
from llmrl.rollout.episode_summaries import episode_welfare, measures, summarize_evaluation
from llmrl.run.files import write_json
from llmrl.run.tensorboard_evaluations import write_evaluation

Columns = Mapping[str, np.ndarray]
"""Name -> its value in each episode, [n_episodes]; NaN in those of which a metric says nothing."""


def objective_column(objective: Objective) -> str:
    """What the column of the objective is called."""
    return f"objective ({objective.name})"


def columns(episodes: Sequence[Episode], spec: EnvSpec, objective: Objective, spending_cost: float) -> Columns:
    """All that is told of some episodes: objective, returns, length, welfare, the metrics of the environment."""
    base = np.array([episode.base_returns for episode in episodes])
    return {
        objective_column(objective): episode_welfare(episodes, objective, spending_cost),
        "return per agent": np.array([e.returns.mean() for e in episodes]),
        "base return per agent": base.mean(1),
        "length": np.array([float(e.length) for e in episodes]),
        # What one agent earns is all that there is to say of its welfare.
        **({f"welfare/{name}": x for name, x in measures(episodes, objective).items()} if spec.n_agents > 1 else {}),
        **{name: np.array([e.summaries[name] for e in episodes]) for name in spec.metrics},
    }


def table(measured: Columns, independent: bool) -> dict[str, dict[str, float | None]]:
    """A row (`describe`) for each column that says anything of any episode."""
    known = {name: x[~np.isnan(x)] for name, x in measured.items()}
    return {name: describe(x, independent, is_share=name == SUCCESS) for name, x in known.items() if len(x)}


def plain(measured: Columns) -> dict[str, list[float]]:
    """As lists, for a file."""
    return {name: values.tolist() for name, values in measured.items()}


def write_episodes(file: Path, heads: Sequence[str], played: Mapping[tuple[str, ...], Columns]) -> None:
    """Write a row for each episode: who played it, by the entries of a key under `heads`, its number, its columns."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer: Any = csv.writer(stream, lineterminator="\n")
        writer.writerow([*heads, "episode", *next(iter(played.values()))])
        for who, measured in played.items():
            for k, values in enumerate(zip(*measured.values(), strict=True)):
                writer.writerow([*who, k, *(f"{value:.6g}" for value in values)])


def write_results(
    evaluation: PlannedEvaluation,
    about: Mapping[str, Any],
    found: Sequence[Mapping[Player, Sequence[Episode]]],
    videos: Videos,
    place: int,
) -> dict[str, Any]:
    """Write `results.json`, `episodes.csv` and the events of an evaluation, and return the results.

    Args:
        evaluation: what was played.
        about: what is said of the whole of it.
        found: under each of its mechanisms, who played which episodes.
        videos: that were made.
        place: where the run was (`metrics.place_of`).
    """
    several, out, objective = evaluation.several, evaluation.out, evaluation.parts.objective
    spec, spending_cost = evaluation.parts.env.spec, evaluation.parts.spending_cost
    measured = [
        {who: columns(episodes, spec, objective, spending_cost) for who, episodes in played.items()} for played in found
    ]
    entries = [
        _entry(evaluation, mechanism, each, videos)
        for mechanism, each in zip(evaluation.mechanisms, measured, strict=True)
    ]
    episodes = len(next(iter(found[0].values())))
    own = {"mechanisms": entries, **_compared(evaluation, entries, videos)} if several else entries[0]
    results = {**about, "episodes": episodes, **own}
    write_json(out / "results.json", results)
    rows = {
        (*([mechanism.name] * several), *who): values
        for mechanism, each in zip(evaluation.mechanisms, measured, strict=True)
        for who, values in each.items()
    }
    write_episodes(out / "episodes.csv", [*["mechanism"] * several, "policy", "mode"], rows)
    for mechanism, played in zip(evaluation.mechanisms, found, strict=True):
        first = next(iter(played.values()))
        folder, gif = evaluation.folder(mechanism), _gif(videos.own.get(mechanism.name, ()), "world")
        folder.mkdir(exist_ok=True)
        # Under the tags of the evaluations during training, where these would have their next point.
        write_evaluation(folder, place, summarize_evaluation(first, objective, spending_cost), gif)
    if several:
        column = objective_column(objective)
        above = {
            f"above/{each['reference']}/{each['name']}": each["table"][column]["mean"] for each in own["differences"]
        }
        write_evaluation(out, place, above, _gif(videos.side_by_side))
    return results


def _entry(
    evaluation: PlannedEvaluation, mechanism: EvaluatedMechanism, measured: Mapping[Player, Columns], videos: Videos
) -> dict[str, Any]:
    """What is said of one mechanism; the table of the first player is that of the mechanism."""
    vector, space = mechanism.vector, evaluation.parts.env.spec.mechanism
    players = [
        {
            "policy": name,
            "mode": mode,
            "table": table(values, not (name == "student" and evaluation.carried)),
            "per_episode": plain(values),
        }
        for (name, mode), values in measured.items()
    ]
    return {
        "name": mechanism.name,
        "words": mechanism.words,
        "mechanism": None if vector is None or space is None else dict(zip(space.names, vector.tolist(), strict=True)),
        "players": players,
        "table": players[0]["table"],
        "per_episode": players[0]["per_episode"],
        "videos": [str(file) for file in videos.own.get(mechanism.name, ())],
    }


def _compared(evaluation: PlannedEvaluation, entries: Sequence[Mapping[str, Any]], videos: Videos) -> dict[str, Any]:
    """What is only said of several mechanisms."""
    spec, objective = evaluation.parts.env.spec, evaluation.parts.objective
    column, cost = objective_column(objective), evaluation.parts.spending_cost
    found = differences(entries, spec.deterministic, not evaluation.carried)
    return {
        "paired": spec.deterministic,
        "objective": {"column": column, "formula": objective.formula, "spending_cost": cost},
        "labels": labels(entries, spec),
        "differences": found,
        "sentences": sentences(entries, found, column),
        "videos": [str(file) for file in videos.side_by_side],
    }


def _gif(files: Sequence[Path], stem: str | None = None) -> Path | None:
    return next((file for file in files if file.suffix == ".gif" and stem in (None, file.stem)), None)
