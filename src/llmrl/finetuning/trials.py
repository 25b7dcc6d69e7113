"""Trials of a task before training: parameters and the returns of their episodes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.core.unit_cube import from_unit
from llmrl.rollout.batched_evaluator import episode_seeds
from llmrl.run.artifacts import read_config
from llmrl.run.files import write_atomic
from llmrl.run.folder import unwritable
from llmrl.run.proposals import FILE_NAME, read_proposals

log = logging.getLogger(__name__)

CHUNK = 64
"""Number of random trials that are played and written together; a kill loses at most so many."""
_FORMAT = 1
_IRRELEVANT_FIELDS = ("n_envs", "name", "render", "engine", "text", "success", "success_threshold")
"""Fields of environments that do not affect returns."""

Bounds = tuple[float | None, float | None]
"""Lower and upper bound of every parameter; None: the bounds of the space."""

Play = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Function from parameters [n, d] and seeds of episodes [k] to returns [n, k], of every vector under every seed."""


@dataclass(frozen=True, eq=False)
class ParameterTrial:
    """Parameters [d] and the returns [k] of the episodes played with them."""

    vector: np.ndarray
    returns: np.ndarray

    @property
    def value(self) -> float:
        """Mean return."""
        return float(self.returns.mean())


@dataclass(frozen=True)
class Series:
    """Trials that belong together.

    Attributes:
        trials: trials of a search run in the order of its proposals, or random trials.
        ordered: whether the trials are those of a search run.
        episodes: episodes of each proposal, as in the search's config; trials before its first question may differ.
    """

    trials: tuple[ParameterTrial, ...]
    ordered: bool
    episodes: int | None = None


def random_vectors(
    space: ParameterSpace, seeds: Seeds, indices: Sequence[int], bounds: Bounds = (None, None)
) -> np.ndarray:
    """Draw uniform parameters, [len(indices), d]; vector i is a function of (seeds, i).

    For parameters with limited decimals, all representable numbers are equally likely, both bounds included.

    Args:
        space: parameter space of the policy.
        seeds: node of the seed tree.
        indices: numbers i of the vectors.
        bounds: bounds of every parameter.
    """
    low, high = bounds
    parameters = tuple(
        replace(p, low=p.low if low is None else low, high=p.high if high is None else high) for p in space.parameters
    )
    unit = np.stack([seeds.numpy(i).random(space.dim) for i in indices])
    return from_unit(replace(space, parameters=parameters), unit)


def random_trials(
    play: Play,
    space: ParameterSpace,
    seeds: Seeds,
    n: int,
    episodes: int,
    folder: Path,
    bounds: Bounds = (None, None),
    before_chunk: Callable[[int], None] = lambda done: None,
) -> Series:
    """Return random parameters with their returns; trials already in `folder` are not played again.

    Each trial is a function of the seeds and its number, so a larger number extends a smaller one. The trials of a
    chunk are played under the same seeds. Chunks are written atomically: processes may share the folder, and a killed
    process leaves complete chunks.

    Args:
        play: function that plays the episodes of a chunk.
        space: parameter space of the policy.
        seeds: seed tree of parameters and episodes.
        n: number of trials.
        episodes: episodes of each trial.
        folder: content-addressed folder, see `trials_folder`; created if missing.
        bounds: bounds of the parameters.
        before_chunk: function called with the number of finished trials before more are played and at the end; it may
            raise to stop.

    Raises:
        RunFolderError: `folder` cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    trials: list[ParameterTrial] = []
    for start in range(0, n, CHUNK):
        path = folder / f"trials_{start:06d}.json"
        chunk = _read_chunk(path, space.dim, episodes)
        if chunk is None:
            before_chunk(start)
            # Chunks are always complete, so that the files do not depend on the first requested n.
            indices = range(start, start + CHUNK)
            vectors = random_vectors(space, seeds.child("vectors"), indices, bounds)
            returns = play(vectors, episode_seeds(seeds.child("episodes").child(start), episodes))
            chunk = [ParameterTrial(vector, row) for vector, row in zip(vectors, returns, strict=True)]
            lines = [{"vector": t.vector.tolist(), "returns": t.returns.tolist()} for t in chunk]
            write_atomic(path, json.dumps(lines))
        trials += chunk
    before_chunk(n)
    return Series(tuple(trials[:n]), False, episodes)


def trials_folder(root: Path, identity: Mapping[str, Any]) -> Path:
    """Return the folder of trials, named by a hash of `identity`: plain data of everything that determines them."""
    text = json.dumps({"format": _FORMAT, **identity}, sort_keys=True, separators=(",", ":"))
    return root / hashlib.sha256(text.encode()).hexdigest()[:16]


def read_search_run(folder: Path, space: ParameterSpace, task: Mapping[str, Any]) -> Series:
    """Return the trials of a search run in order, without a last line that is still being written.

    Args:
        folder: the run folder.
        space: parameter space of the policy.
        task: required description of the task, see `task_of`.

    Raises:
        ConfigError: the folder is not a search run, has no or invalid proposals, or belongs to another task.
    """
    path = folder / FILE_NAME
    if not path.is_file() or not (folder / "config.yaml").is_file():
        raise ConfigError(
            f"dataset.runs: {folder} is not the folder of a search run (it has no {FILE_NAME}); use e.g. "
            "outputs/cartpole/<run>/s0, or a folder that contains such folders"
        )
    config = read_config(folder, ())
    run_task = task_of(config, seeded="seed" in task)
    differing_keys = sorted(key for key in {*task, *run_task} if task.get(key) != run_task.get(key))
    if differing_keys:
        summary = "; ".join(f"{key}={run_task.get(key)} instead of {task.get(key)}" for key in differing_keys)
        raise ConfigError(f"dataset.runs: {folder} belongs to another task ({summary}); use runs of this env and agent")
    trials: list[ParameterTrial] = []
    try:
        for line in read_proposals(folder):
            trial = ParameterTrial(np.array(line["vector"], np.float64), np.array(line["returns"], np.float64))
            if trial.vector.shape != (space.dim,) or not len(trial.returns):
                raise ValueError(f"{space.name} needs {space.dim} numbers and at least one return")
            trials.append(trial)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}, line {len(trials) + 1} is not a valid proposal ({error!r}); remove this run from dataset.runs"
        ) from error
    episodes = config.get("search", {}).get("episodes")
    if not isinstance(episodes, int):
        raise ConfigError(f"dataset.runs: {folder / 'config.yaml'} has no search.episodes; use a search run")
    if not trials:
        raise ConfigError(f"dataset.runs: {folder} has no proposals yet; wait for them, or remove the run")
    return Series(tuple(trials), True, episodes)


def find_search_runs(paths: Sequence[str]) -> list[Path]:
    """Return the distinct run folders with proposals in or under `paths`, sorted.

    Raises:
        ConfigError: one of `paths` holds no proposals.
    """
    run_folders: set[Path] = set()
    for path in paths:
        root = Path(path).expanduser()
        folders = {path.parent for path in root.rglob(FILE_NAME) if "backup_" not in str(path.relative_to(root))}
        if not folders:
            raise ConfigError(
                f"dataset.runs: there is no {FILE_NAME} in or under {root}; run a search first: "
                "llmrl-train env=... agent=... principal=cmaes"
            )
        run_folders |= folders
    return sorted(run_folders)


def task_of(config: Mapping[str, Any], seeded: bool) -> dict[str, Any]:
    """Return the entries of a resolved config that define the task.

    These are environment and agent, without fields that do not affect returns. `seeded` adds the seed, because
    parameters along random directions have another meaning under every seed.
    """
    env = {key: value for key, value in config["env"].items() if key not in _IRRELEVANT_FIELDS}
    nodes = {"env": env, "agent": dict(config["agent"])}
    task = {f"{group}.{key}": value for group, node in nodes.items() for key, value in node.items()}
    return task | ({"seed": config["seed"]} if seeded else {})


def _read_chunk(path: Path, dim: int, episodes: int) -> list[ParameterTrial] | None:
    """Return the trials of a chunk on disk; None if the file is missing, unreadable or incomplete."""
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))
        trials = [ParameterTrial(np.array(x["vector"], np.float64), np.array(x["returns"], np.float64)) for x in lines]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read (%r); its trials are played again", path, error)
        return None
    is_complete = len(trials) == CHUNK and all(
        t.vector.shape == (dim,) and t.returns.shape == (episodes,) for t in trials
    )
    return trials if is_complete else None
