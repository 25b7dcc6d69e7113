"""What an evaluation writes: results, a row for each episode, and TensorBoard's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.analysis.comparison import differences, labels, sentences
from llmrl.evaluation.measuring import objective_column, plain, scalars, table, write_episodes
from llmrl.evaluation.mechanisms import Imposed
from llmrl.evaluation.stage import Films, Found, Stage
from llmrl.run.evaluation import write_evaluation
from llmrl.run.files import write_json


def write_results(
    stage: Stage, about: Mapping[str, Any], found: Sequence[Found], films: Films, place: int
) -> dict[str, Any]:
    """Write `results.json`, `episodes.csv` and the events of an evaluation, and return the results.

    Args:
        stage: what was played.
        about: what is said of the whole of it.
        found: under each of its mechanisms.
        films: that were made.
        place: where the run was (`metrics.place_of`).
    """
    entries = [_entry(stage, mechanism, each, films) for mechanism, each in zip(stage.mechanisms, found, strict=True)]
    episodes = len(next(iter(found[0].played.values())))
    own = {"mechanisms": entries, **_compared(stage, entries, films)} if stage.several else entries[0]
    results = {**about, "episodes": episodes, **own}
    write_json(stage.out / "results.json", results)
    rows = {
        (*([mechanism.name] * stage.several), *who): measured
        for mechanism, each in zip(stage.mechanisms, found, strict=True)
        for who, measured in each.measured.items()
    }
    write_episodes(stage.out / "episodes.csv", [*["mechanism"] * stage.several, "policy", "mode"], rows)
    for mechanism, each in zip(stage.mechanisms, found, strict=True):
        who, played = next(iter(each.played.items()))
        folder, gif = stage.folder(mechanism), _gif(films.own.get(mechanism.name, ()), "world")
        folder.mkdir(exist_ok=True)
        write_evaluation(folder, place, scalars(played, each.measured[who], stage.objective), gif)
    if stage.several:
        column = objective_column(stage.objective)
        above = {
            f"above/{each['reference']}/{each['name']}": each["table"][column]["mean"] for each in own["differences"]
        }
        write_evaluation(stage.out, place, above, _gif(films.beside))
    return results


def _entry(stage: Stage, mechanism: Imposed, found: Found, films: Films) -> dict[str, Any]:
    """What is said of one mechanism; the table of the first player is that of the mechanism."""
    vector, space = mechanism.vector, stage.parts.env.spec.mechanism
    players = [
        {
            "policy": name,
            "mode": mode,
            "table": table(measured, stage.settings.seed, not (name == "student" and stage.carried)),
            "per_episode": plain(measured),
        }
        for (name, mode), measured in found.measured.items()
    ]
    return {
        "name": mechanism.name,
        "words": mechanism.words,
        "mechanism": None if vector is None or space is None else dict(zip(space.names, vector.tolist(), strict=True)),
        "players": players,
        "table": players[0]["table"],
        "per_episode": players[0]["per_episode"],
        "videos": [str(file) for file in films.own.get(mechanism.name, ())],
    }


def _compared(stage: Stage, entries: Sequence[Mapping[str, Any]], films: Films) -> dict[str, Any]:
    """What is only said of several mechanisms."""
    spec, column = stage.parts.env.spec, objective_column(stage.objective)
    found = differences(entries, spec.deterministic, stage.settings.seed, not stage.carried)
    return {
        "paired": spec.deterministic,
        "objective": {"column": column, "formula": stage.objective.formula, "spending_cost": stage.spending_cost},
        "labels": labels(entries, spec),
        "differences": found,
        "sentences": sentences(entries, found, column),
        "videos": [str(file) for file in films.beside],
    }


def _gif(files: Sequence[Path], stem: str | None = None) -> Path | None:
    return next((file for file in files if file.suffix == ".gif" and stem in (None, file.stem)), None)
