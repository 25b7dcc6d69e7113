"""Runs that are looked into (`+debug=`): profiled, checked for what is not finite, or with one episode only."""

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
"""Folder in that of the run."""
_SHOWN = 60
"""Functions in the text."""
_EPISODE = 0
"""Seed of the one episode."""

Env = TypeVar("Env")


@contextmanager
def watched_closely(asked: Debugging, folder: Path, metrics: Any) -> Iterator[None]:
    """Compute a run inside, with what is asked for.

    Args:
        asked: of the run's config.
        folder: of the run.
        metrics: its log, whose losses are checked.

    Raises:
        Diverged: a number is not finite, where that is asked for.
        RunFolderError: a profile cannot be written.
    """
    with ExitStack() as stack:
        if asked.anomaly:
            import torch

            stack.enter_context(torch.autograd.detect_anomaly())
            metrics.finite_only = True
        if asked.profile:
            stack.enter_context(_profiled(folder / PROFILE))
        if asked.trace:
            stack.enter_context(_traced(folder / PROFILE))
        yield


@contextmanager
def _profiled(folder: Path) -> Iterator[None]:
    """Measure every function of this thread; also of a run that fails."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        said = io.StringIO()
        pstats.Stats(profile, stream=said).sort_stats("cumulative").print_stats(_SHOWN)
        with _writing(folder):
            profile.dump_stats(folder / "profile.pstats")
            (folder / "profile.txt").write_text(said.getvalue(), encoding="utf-8")


@contextmanager
def _traced(folder: Path) -> Iterator[None]:
    """Write down what torch does."""
    import torch

    with torch.profiler.profile() as profile:
        yield
    with _writing(folder):
        profile.export_chrome_trace(str(folder / "trace.json"))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Make the folder of profiles, and name it in an error."""
    try:
        folder.mkdir(exist_ok=True)
        yield
    except OSError as error:
        raise RunFolderError(f"cannot write the profile into {folder}: {error}") from error


def with_one_episode(env: Env) -> Env:
    """The same environment, whose games all begin every episode with one seed: it is the same episode again, as far as
    the same is done in it."""
    inner: Any = env
    inner.pair_games(inner.spec.n_envs)
    reset = inner.reset

    def again(mask: Array | None = None, seed: Any = None) -> Observation:
        observation: Observation = reset(mask, _EPISODE)
        return observation

    inner.reset = again
    return env


class FiniteCheck(Observer):
    """Ends a run at the first observation, reward, logit or value that is not finite."""

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        _check({f"observation {name}": x for name, x in observation.items()})

    def on_step(self, transition: Transition) -> None:
        step, act = transition.step, transition.output
        _check(
            {"reward": step.reward, "logits of actions": act.logits, **{f"step's {k}": v for k, v in step.info.items()}}
        )
        _check({f"observation {name}": x for name, x in step.observation.items()})


def _check(found: Mapping[str, Any]) -> None:
    for name, x in found.items():
        if x is None or str(getattr(x, "dtype", "object")) == "object":
            continue
        numbers = on_host(x)
        # Minus infinity is the logit of an action that is not allowed.
        bad = ~np.isfinite(numbers) & ~((name == "logits of actions") & np.isneginf(numbers))
        if bad.any():
            place = tuple(np.argwhere(bad)[0].tolist())
            raise Diverged(f"+debug=anomaly: the {name} is {numbers[place]} at {place} of {list(numbers.shape)}")
