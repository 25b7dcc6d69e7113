"""Trials (parameters of a policy, and the returns of episodes with them), and training examples made from trials.

An example consists of the trials that a prompt shows and a better trial as the target.
"""

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
from llmrl.core.pooling import PooledEstimates, make_vector_key
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.core.unit_cube import from_unit
from llmrl.rollout.batched_evaluator import draw_episode_seeds
from llmrl.run.artifacts import read_config
from llmrl.run.files import write_atomic
from llmrl.run.folder import make_write_error
from llmrl.run.proposals import FILE_NAME, read_proposal_lines
from llmrl.statistics.estimators import standard_error_of_mean

log = logging.getLogger(__name__)

CHUNK_SIZE = 64
"""Number of random trials that are played together and written to one file."""
_FORMAT_VERSION = 1
"""Version of the files of trials; another version uses other folders."""
_FIELDS_WITHOUT_EFFECT = ("n_envs", "name", "render", "engine", "text", "success", "success_threshold")
"""Fields of environments that do not affect returns."""

Bounds = tuple[float | None, float | None]
"""Lower and upper bound that apply to every parameter; None: each parameter's own bound in the space."""

PlayFn = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Function from parameters [n, d] and seeds of episodes [k] to returns [n, k]; it plays each vector with each seed."""


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
class TrialSeries:
    """Trials with a common source.

    Attributes:
        trials: proposals of one search run in their order, or random trials.
        is_search: whether the trials are proposals of a search run.
        episodes: `search.episodes` of the run (its warm-up trials may have another number); None: `Dataset.episodes`.
    """

    trials: tuple[ParameterTrial, ...]
    is_search: bool
    episodes: int | None = None


def draw_vectors(
    space: ParameterSpace, seeds: Seeds, indices: Sequence[int], bounds: Bounds = (None, None)
) -> np.ndarray:
    """Draw uniform parameters, [len(indices), d]; vector i is a function of `seeds` and i.

    For parameters with limited decimals, all representable numbers are equally likely, including both bounds.

    Args:
        space: parameter space of the policy.
        seeds: node of the seed tree.
        indices: indices i of the vectors.
        bounds: bounds of every parameter.
    """
    low, high = bounds
    parameters = tuple(
        replace(p, low=p.low if low is None else low, high=p.high if high is None else high) for p in space.parameters
    )
    unit_vectors = np.stack([seeds.numpy(i).random(space.dim) for i in indices])
    return from_unit(replace(space, parameters=parameters), unit_vectors)


def load_or_play_trials(
    play: PlayFn,
    space: ParameterSpace,
    seeds: Seeds,
    n: int,
    episodes: int,
    folder: Path,
    bounds: Bounds = (None, None),
    on_progress: Callable[[int], None] = lambda n_finished: None,
) -> TrialSeries:
    """Return random parameters with their returns; play only trials that are not yet in `folder`.

    Each trial is a function of the seeds and its index, so the first trials do not depend on `n`. Trials are played and
    stored in chunks of `CHUNK_SIZE`, each under the same episode seeds. Chunks are written atomically, so processes may
    share the folder.

    Args:
        play: function that plays episodes.
        space: parameter space of the policy.
        seeds: seed tree of parameters and episodes.
        n: number of trials.
        episodes: episodes of each trial.
        folder: content-addressed folder, see `locate_trials`; created if missing.
        bounds: bounds of the parameters.
        on_progress: function called with the number of finished trials before more are played and at the end; it may
            raise to stop.

    Raises:
        RunFolderError: `folder` cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise make_write_error(folder, error) from error
    trials: list[ParameterTrial] = []
    for start in range(0, n, CHUNK_SIZE):
        path = folder / f"trials_{start:06d}.json"
        chunk = _read_chunk(path, space.dim, episodes)
        if chunk is None:
            on_progress(start)
            # The last chunk is complete even if `n` is smaller, so that files do not depend on `n`.
            vectors = draw_vectors(space, seeds.child("vectors"), range(start, start + CHUNK_SIZE), bounds)
            returns = play(vectors, draw_episode_seeds(seeds.child("episodes").child(start), episodes))
            chunk = [ParameterTrial(vector, row) for vector, row in zip(vectors, returns, strict=True)]
            rows = [{"vector": t.vector.tolist(), "returns": t.returns.tolist()} for t in chunk]
            write_atomic(path, json.dumps(rows))
        trials += chunk
    on_progress(n)
    return TrialSeries(tuple(trials[:n]), is_search=False, episodes=episodes)


def locate_trials(root: Path, identity: Mapping[str, Any]) -> Path:
    """Return the folder of trials, named by a hash of `identity`: plain data of everything that determines them."""
    text = json.dumps({"format": _FORMAT_VERSION, **identity}, sort_keys=True, separators=(",", ":"))
    return root / hashlib.sha256(text.encode()).hexdigest()[:16]


def read_search_run(folder: Path, space: ParameterSpace, task_identity: Mapping[str, Any]) -> TrialSeries:
    """Return the proposals of a search run in order, without an incomplete last line.

    Args:
        folder: the run folder.
        space: parameter space of the policy.
        task_identity: required identity of the task, see `get_task_identity`.

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
    identity = get_task_identity(config, with_seed="seed" in task_identity)
    keys = sorted(key for key in {*task_identity, *identity} if task_identity.get(key) != identity.get(key))
    if keys:
        changes = "; ".join(f"{key}={identity.get(key)} instead of {task_identity.get(key)}" for key in keys)
        raise ConfigError(f"dataset.runs: {folder} belongs to another task ({changes}); use runs of this env and agent")
    trials: list[ParameterTrial] = []
    try:
        for line in read_proposal_lines(folder):
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
    return TrialSeries(tuple(trials), is_search=True, episodes=episodes)


def find_search_runs(paths: Sequence[str]) -> list[Path]:
    """Return the distinct run folders with proposals in or under `paths`, sorted, without backups of earlier runs.

    Raises:
        ConfigError: there are no proposals in or under one of `paths`.
    """
    run_folders: set[Path] = set()
    for path in paths:
        root = Path(path).expanduser()
        folders = {file.parent for file in root.rglob(FILE_NAME) if "backup_" not in str(file.relative_to(root))}
        if not folders:
            raise ConfigError(
                f"dataset.runs: there is no {FILE_NAME} in or under {root}; run a search first: "
                "llmrl-train env=... agent=... principal=cmaes"
            )
        run_folders |= folders
    return sorted(run_folders)


def get_task_identity(config: Mapping[str, Any], with_seed: bool) -> dict[str, Any]:
    """Return the entries of a resolved config that define the task.

    These are environment and agent, without fields that do not affect returns. `with_seed` adds the seed, for policies
    whose parameters depend on it, such as coefficients of random directions.
    """
    env = {key: value for key, value in config["env"].items() if key not in _FIELDS_WITHOUT_EFFECT}
    nodes = {"env": env, "agent": dict(config["agent"])}
    task = {f"{group}.{key}": value for group, node in nodes.items() for key, value in node.items()}
    return task | ({"seed": config["seed"]} if with_seed else {})


def _read_chunk(path: Path, dim: int, episodes: int) -> list[ParameterTrial] | None:
    """Return the trials of a chunk on disk; None if the file is missing, unreadable or incomplete."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        trials = [ParameterTrial(np.array(r["vector"], np.float64), np.array(r["returns"], np.float64)) for r in rows]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read (%r); its trials are played again", path, error)
        return None
    is_complete = len(trials) == CHUNK_SIZE and all(
        t.vector.shape == (dim,) and t.returns.shape == (episodes,) for t in trials
    )
    return trials if is_complete else None


@dataclass(frozen=True, eq=False)
class ProposalExample:
    """Example of a proposer's task.

    Attributes:
        index: index of the example.
        trials: trials to show in the prompt, in this order, at least one.
        target: trial with other parameters and a higher value than all of `trials`; None if there is none.
    """

    index: int
    trials: tuple[ParameterTrial, ...]
    target: ParameterTrial | None

    @property
    def best_value(self) -> float:
        """Highest mean return of the trials."""
        return max(trial.value for trial in self.trials)


def split_series(
    all_series: Sequence[TrialSeries], share: float, seeds: Seeds
) -> tuple[list[TrialSeries], list[TrialSeries]]:
    """Split `all_series` into training and held-out series without common parameters.

    If there are several search runs, whole runs are held out. Of all other series, distinct vectors are held out with
    all their trials. At least one run or vector is held out and, if there are several, one is not. Trials of held-out
    vectors are removed from all training series.

    Args:
        all_series: series of one task.
        share: share of the runs, or of the vectors of a series, to hold out, in (0, 1).
        seeds: seed tree of the selection.
    """
    search_runs = [series for series in all_series if series.is_search]
    train_series: list[TrialSeries] = []
    held_out_series: list[TrialSeries] = []
    if len(search_runs) > 1:
        held_out_indices = _draw_held_out_indices(len(search_runs), share, seeds.numpy("runs"))
        for i, run in enumerate(search_runs):
            (held_out_series if i in held_out_indices else train_series).append(run)
    for i, series in enumerate(all_series):
        if series.is_search and len(search_runs) > 1:
            continue
        keys = list(dict.fromkeys(make_vector_key(trial.vector) for trial in series.trials))
        held_out_keys = {keys[j] for j in _draw_held_out_indices(len(keys), share, seeds.numpy(f"trials {i}"))}
        held_out_series.append(
            replace(series, trials=tuple(t for t in series.trials if make_vector_key(t.vector) in held_out_keys))
        )
        train_series.append(series)
    excluded_keys = {make_vector_key(trial.vector) for series in held_out_series for trial in series.trials}
    return [
        replace(series, trials=tuple(t for t in series.trials if make_vector_key(t.vector) not in excluded_keys))
        for series in train_series
    ], held_out_series


def make_examples(
    all_series: Sequence[TrialSeries],
    n: int,
    min_trials: int,
    max_trials: int,
    seeds: Seeds,
    usage: str,
    is_valid_target: Callable[[np.ndarray], bool] = lambda vector: True,
) -> list[ProposalExample]:
    """Return `n` examples; example i is a function of `all_series`, `seeds` and i.

    The trials of an example are random ones of one series. For a search run, they are drawn from the first trials up to
    a random index, and keep their order. The target is drawn from the trials of all series whose parameters have a
    higher mean return, over all their trials, than the best trial of the example.

    Args:
        all_series: series of trials, drawn with probability proportional to their length.
        n: number of examples.
        min_trials, max_trials: range of the number of trials in an example, which is drawn uniformly.
        seeds: node of the seed tree.
        usage: use of the trials, for error messages: "to train on" or "held out".
        is_valid_target: function that returns whether parameters can be targets; others are only shown.

    Raises:
        ConfigError: no series has `max_trials` trials.
    """
    eligible_series = [series for series in all_series if len(series.trials) >= max_trials]
    if not eligible_series:
        max_length = max((len(series.trials) for series in all_series), default=0)
        raise ConfigError(
            f"dataset.examples={max_trials} trials per prompt are needed, but there are at most {max_length} "
            f"{usage}; increase dataset.trials, add dataset.runs, or decrease dataset.examples"
        )
    series_lengths = np.array([len(series.trials) for series in eligible_series], dtype=np.float64)
    candidates = [trial for series in all_series for trial in series.trials]
    pool = PooledEstimates()
    for trial in candidates:
        n_episodes = len(trial.returns)
        pool.add(trial.vector, trial.value, standard_error_of_mean(trial.returns), n_episodes, n_episodes)
    values = np.array([pool.get(trial.vector).value for trial in candidates])
    is_valid_target_mask = np.array([is_valid_target(trial.vector) for trial in candidates])
    examples = []
    for i in range(n):
        rng = seeds.numpy(i)
        series = eligible_series[int(rng.choice(len(eligible_series), p=series_lengths / series_lengths.sum()))]
        n_trials = int(rng.integers(min_trials, max_trials + 1))
        end = int(rng.integers(n_trials, len(series.trials) + 1)) if series.is_search else len(series.trials)
        indices = rng.choice(end, size=n_trials, replace=False)
        trials = tuple(series.trials[j] for j in (np.sort(indices) if series.is_search else indices))
        target_draw = int(rng.integers(2**31))
        examples.append(
            ProposalExample(i, trials, _select_target(trials, candidates, values, is_valid_target_mask, target_draw))
        )
    return examples


def _select_target(
    trials: Sequence[ParameterTrial],
    candidates: Sequence[ParameterTrial],
    values: np.ndarray,
    is_valid_target_mask: np.ndarray,
    target_draw: int,
) -> ParameterTrial | None:
    """Return a candidate that is better than all of `trials`; None if there is none.

    `values` [n] are the candidates' mean returns, `is_valid_target_mask` [n] marks those that may be targets, and
    `target_draw` is a random integer that selects one of the better candidates.
    """
    trial_keys = {make_vector_key(trial.vector) for trial in trials}
    indices = np.flatnonzero(is_valid_target_mask & (values > max(trial.value for trial in trials))).tolist()
    better_trials = [candidates[j] for j in indices if make_vector_key(candidates[j].vector) not in trial_keys]
    return better_trials[target_draw % len(better_trials)] if better_trials else None


def count_held_out(n: int, share: float) -> int:
    """Return about `share` of `n`, at least 1 and, for n > 1, at most n - 1."""
    return int(np.clip(round(share * n), 1, max(n - 1, 1)))


def _draw_held_out_indices(n: int, share: float, rng: np.random.Generator) -> set[int]:
    """Draw the indices, out of 0 .. n - 1, that are held out; their number is `count_held_out(n, share)`."""
    return set(rng.permutation(n)[: count_held_out(n, share)].tolist())
