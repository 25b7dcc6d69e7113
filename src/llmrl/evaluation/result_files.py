"""Files of an evaluation: results, a row for each episode, and TensorBoard events."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.rollouts import Episode
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective
from llmrl.evaluation.evaluated_mechanisms import EvaluatedMechanism
from llmrl.evaluation.planned_evaluation import PlannedEvaluation, Player, Videos
from llmrl.results.mechanism_comparison import differences, labels, sentences
from llmrl.rollout.episode_summaries import episode_welfare, estimates, measures, summarize_evaluation
from llmrl.run.files import write_json
from llmrl.run.tensorboard_evaluations import write_evaluation

Columns = Mapping[str, np.ndarray]
"""Name of a metric -> its value in each episode, [n_episodes]; NaN in episodes without a value."""


def objective_column(objective: Objective) -> str:
    """Return the name of the column of the objective."""
    return f"objective ({objective.name})"


def columns(episodes: Sequence[Episode], spec: EnvSpec, objective: Objective, spending_cost: float) -> Columns:
    """Return the columns of some episodes: objective, returns, length, welfare, metrics of the environment."""
    base = np.array([episode.base_returns for episode in episodes])
    return {
        objective_column(objective): episode_welfare(episodes, objective, spending_cost),
        "return per agent": np.array([e.returns.mean() for e in episodes]),
        "base return per agent": base.mean(1),
        "length": np.array([float(e.length) for e in episodes]),
        # The welfare of a single agent is its return.
        **({f"welfare/{name}": x for name, x in measures(episodes, objective).items()} if spec.n_agents > 1 else {}),
        **{name: np.array([e.summaries[name] for e in episodes]) for name in spec.metrics},
    }


def write_episodes(file: Path, heads: Sequence[str], columns_by_player: Mapping[tuple[str, ...], Columns]) -> None:
    """Write a CSV file with a row for each episode.

    Args:
        file: file to write.
        heads: names of the columns that identify a player.
        columns_by_player: columns of the episodes of each player, by its values under `heads`.
    """
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer: Any = csv.writer(stream, lineterminator="\n")
        writer.writerow([*heads, "episode", *next(iter(columns_by_player.values()))])
        for player, player_columns in columns_by_player.items():
            for k, values in enumerate(zip(*player_columns.values(), strict=True)):
                writer.writerow([*player, k, *(f"{value:.6g}" for value in values)])


def write_results(
    evaluation: PlannedEvaluation,
    description: Mapping[str, Any],
    mechanism_episodes: Sequence[Mapping[Player, Sequence[Episode]]],
    videos: Videos,
    place: int,
) -> dict[str, Any]:
    """Write `results.json`, `episodes.csv` and the events of an evaluation; return the results.

    Args:
        evaluation: evaluation that was played.
        description: description of the evaluation.
        mechanism_episodes: episodes of each player under each mechanism.
        videos: files of videos.
        place: counter of the run at its checkpoint (`metrics.place_of`).
    """
    is_comparison, out, objective = evaluation.is_comparison, evaluation.out, evaluation.parts.objective
    spec, spending_cost = evaluation.parts.env.spec, evaluation.parts.spending_cost
    mechanism_columns = [
        {player: columns(episodes, spec, objective, spending_cost) for player, episodes in player_episodes.items()}
        for player_episodes in mechanism_episodes
    ]
    entries = [
        _entry(evaluation, mechanism, player_columns, videos)
        for mechanism, player_columns in zip(evaluation.mechanisms, mechanism_columns, strict=True)
    ]
    episodes = len(next(iter(mechanism_episodes[0].values())))
    mechanism_results = (
        {"mechanisms": entries, **_summarize_comparison(evaluation, entries, videos)} if is_comparison else entries[0]
    )
    results = {**description, "episodes": episodes, **mechanism_results}
    write_json(out / "results.json", results)
    rows = {
        (*([mechanism.name] * is_comparison), *player): values
        for mechanism, player_columns in zip(evaluation.mechanisms, mechanism_columns, strict=True)
        for player, values in player_columns.items()
    }
    write_episodes(out / "episodes.csv", [*["mechanism"] * is_comparison, "policy", "mode"], rows)
    for mechanism, player_episodes in zip(evaluation.mechanisms, mechanism_episodes, strict=True):
        first = next(iter(player_episodes.values()))
        folder, gif = evaluation.folder(mechanism), _gif(videos.by_mechanism.get(mechanism.name, ()), "world")
        folder.mkdir(exist_ok=True)
        # With the tags of evaluations during training, at their next point.
        write_evaluation(folder, place, summarize_evaluation(first, objective, spending_cost), gif)
    if is_comparison:
        column = objective_column(objective)
        mean_differences = {
            f"gain/{difference['reference']}/{difference['name']}": difference["table"][column]["mean"]
            for difference in mechanism_results["differences"]
        }
        write_evaluation(out, place, mean_differences, _gif(videos.side_by_side))
    return results


def _entry(
    evaluation: PlannedEvaluation,
    mechanism: EvaluatedMechanism,
    player_columns: Mapping[Player, Columns],
    videos: Videos,
) -> dict[str, Any]:
    """Return the results under one mechanism; their `table` is that of the first player."""
    vector, space = mechanism.vector, evaluation.parts.env.spec.mechanism
    players = [
        {
            "policy": name,
            "mode": mode,
            "table": estimates(values, not (name == "student" and evaluation.carried)),
            "per_episode": {column: numbers.tolist() for column, numbers in values.items()},
        }
        for (name, mode), values in player_columns.items()
    ]
    return {
        "name": mechanism.name,
        "words": mechanism.words,
        "mechanism": None if vector is None or space is None else dict(zip(space.names, vector.tolist(), strict=True)),
        "players": players,
        "table": players[0]["table"],
        "per_episode": players[0]["per_episode"],
        "videos": [str(file) for file in videos.by_mechanism.get(mechanism.name, ())],
    }


def _summarize_comparison(
    evaluation: PlannedEvaluation, entries: Sequence[Mapping[str, Any]], videos: Videos
) -> dict[str, Any]:
    """Return the results that only a comparison of several mechanisms has."""
    spec, objective = evaluation.parts.env.spec, evaluation.parts.objective
    column, cost = objective_column(objective), evaluation.parts.spending_cost
    mean_differences = differences(entries, spec.deterministic, not evaluation.carried)
    return {
        "paired": spec.deterministic,
        "objective": {"column": column, "formula": objective.formula, "spending_cost": cost},
        "labels": labels(entries, spec),
        "differences": mean_differences,
        "sentences": sentences(entries, mean_differences, column),
        "videos": [str(file) for file in videos.side_by_side],
    }


def _gif(files: Sequence[Path], stem: str | None = None) -> Path | None:
    return next((file for file in files if file.suffix == ".gif" and stem in (None, file.stem)), None)
