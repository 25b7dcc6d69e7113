"""Support for debugging runs (`+debug=`): profiles, checks for numbers that are not finite, a single episode."""

from __future__ import annotations

import cProfile
import io
import pstats
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from llmrl.config.debugging import Debugging
from llmrl.core.errors import Diverged, RunFolderError
from llmrl.core.observers import Observer, Transition
from llmrl.core.records import Array, Observation, on_host

PROFILE = "profile"
"""Folder of profiles inside the run folder."""
_MAX_FUNCTIONS = 60
"""Maximum number of functions in the text of a profile."""
_EPISODE = 0
"""Seed of the single episode."""

Env = TypeVar("Env")


@contextmanager
def apply_debugging(options: Debugging, folder: Path, metrics: Any) -> Iterator[None]:
    """Return a context manager that applies debugging options to the run computed in it.

    Args:
        options: debugging options of the run's config.
        folder: run folder.
        metrics: metric log of the run, whose losses are checked.

    Raises:
        Diverged: a number is not finite, and the options request a check.
        RunFolderError: a profile cannot be written.
    """
    with ExitStack() as stack:
        if options.anomaly:
            import torch

            stack.enter_context(torch.autograd.detect_anomaly())
            metrics.finite_only = True
        if options.profile:
            stack.enter_context(_profile_functions(folder / PROFILE))
        if options.trace:
            stack.enter_context(_trace_torch(folder / PROFILE))
        yield


@contextmanager
def _profile_functions(folder: Path) -> Iterator[None]:
    """Profile every function of this thread, also if the run fails."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        report = io.StringIO()
        pstats.Stats(profile, stream=report).sort_stats("cumulative").print_stats(_MAX_FUNCTIONS)
        with _profile_folder(folder):
            profile.dump_stats(folder / "profile.pstats")
            (folder / "profile.txt").write_text(report.getvalue(), encoding="utf-8")


@contextmanager
def _trace_torch(folder: Path) -> Iterator[None]:
    """Record the operations of torch."""
    import torch

    with torch.profiler.profile() as profile:
        yield
    with _profile_folder(folder):
        profile.export_chrome_trace(str(folder / "trace.json"))


@contextmanager
def _profile_folder(folder: Path) -> Iterator[None]:
    """Create the folder of profiles; raise RunFolderError if it cannot be written."""
    try:
        folder.mkdir(exist_ok=True)
        yield
    except OSError as error:
        raise RunFolderError(f"cannot write the profile into {folder}: {error}") from error


def with_single_episode(env: Env) -> Env:
    """Return the environment, changed such that every episode of every game starts from the same seed.

    Equal actions then give equal episodes.
    """
    inner: Any = env
    inner.pair_games(inner.spec.n_envs)
    reset = inner.reset

    def reset_episode(mask: Array | None = None, seed: Any = None) -> Observation:
        observation: Observation = reset(mask, _EPISODE)
        return observation

    inner.reset = reset_episode
    return env


class FiniteCheck(Observer):
    """An observer that ends a run at the first observation, reward, logit or value that is not finite."""

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        _check({f"observation {name}": x for name, x in observation.items()})

    def on_step(self, transition: Transition) -> None:
        step, act = transition.step, transition.output
        _check(
            {"reward": step.reward, "logits of actions": act.logits, **{f"step's {k}": v for k, v in step.info.items()}}
        )
        _check({f"observation {name}": x for name, x in step.observation.items()})


def _check(arrays: Mapping[str, Any]) -> None:
    for name, x in arrays.items():
        if x is None or str(getattr(x, "dtype", "object")) == "object":
            continue
        numbers = on_host(x)
        # Minus infinity is the logit of an invalid action.
        bad = ~np.isfinite(numbers) & ~((name == "logits of actions") & np.isneginf(numbers))
        if bad.any():
            place = tuple(np.argwhere(bad)[0].tolist())
            raise Diverged(f"+debug=anomaly: the {name} is {numbers[place]} at {place} of {list(numbers.shape)}")
