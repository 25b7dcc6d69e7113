"""Games of several runs that are played as one batch, with separate policies, mechanisms, seeds and observers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.algorithms.societies.batched_trainer import BatchedTrainer
from llmrl.algorithms.societies.partitioned_policy import PartitionedPolicy, split_rollout
from llmrl.core.errors import Diverged
from llmrl.core.observers import Observer, Transition
from llmrl.core.protocols import Agent, Resizable
from llmrl.core.records import Observation
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import make_generators
from llmrl.loops.compute_requests import PlayEpisode, PlaySteps
from llmrl.rollout.collector import Collector
from llmrl.run.signals import WorkDiscarded

if TYPE_CHECKING:
    import torch

CallInContext = Callable[..., Any]
"""Function that calls its first argument in the context (`contextvars`) of a run, so that logs belong to the run."""


@dataclass(frozen=True)
class BatchedRun:
    """Run whose games are part of a batch.

    Attributes:
        collector: collector of the run's games; its policy is a `PartitionedPolicy`.
        call_in_context: function that calls the run's observers in the context of the run.
    """

    collector: Collector
    call_in_context: CallInContext


class RunBatch:
    """Runs with equal environments, whose games are played, and whose societies are updated, as one batch.

    The results of each run are bit-equal to those of the run alone, because neither games (`Resizable`) nor policies
    (`PartitionedPolicy`) nor updates (`BatchedTrainer`) depend on the number of games. If an observer of a run raises
    an exception, `play` returns it in place of the run's rollout, and the other runs are not affected.

    Args:
        runs: runs with equal environments, networks and numbers of games and societies.

    Attributes:
        n_games: number of games of each run.
        n_societies: number of societies of each run.
    """

    def __init__(self, runs: Sequence[BatchedRun]) -> None:
        collector = runs[0].collector
        assert isinstance(collector.env, Resizable) and isinstance(collector.policy, PartitionedPolicy)
        self.runs, self.n_games = runs, collector.spec.n_envs
        self.n_societies = len(collector.policy.policies)
        policies = [run_policy for run in runs for run_policy in _get_policies(run)]
        policy = PartitionedPolicy(policies, collector.policy.games)
        self._observer = _BatchObserver(runs, self.n_games)
        self._env = env = collector.env.resized(self.n_games * len(runs))
        self._collector = Collector(env, policy, str(collector.device), observers=[self._observer])
        self._generators: list[torch.Generator] = []
        self._rollout: Rollout | None = None
        self._trainer: BatchedTrainer | None = None

    def play(self, requests: Sequence[PlaySteps], absent_runs: Collection[int]) -> list[Rollout | BaseException]:
        """Play steps in all games; return the rollout of each run, or the exception of its observers.

        Args:
            requests: requests with equal numbers of steps and options; if one starts new episodes (`PlayEpisode`), all
                do, and every run has one.
            absent_runs: indices of runs that did not request these steps, whose games are played without observers.
        """
        first = requests[0]
        collect_options = (first.learn, first.reward_jacobian, first.greedy, first.restart)
        self._observer.begin(absent_runs)
        try:
            if isinstance(first, PlayEpisode):
                self._start_episodes([request for request in requests if isinstance(request, PlayEpisode)])
            self._rollout = self._collector.collect(first.steps, self._generators, *collect_options)
        except _AllRunsFailed:
            return [error for error in self._observer.errors if error is not None]
        rollouts: list[Rollout | BaseException] = []
        for i, run_rollout in enumerate(split_rollout(self._rollout, len(self.runs))):
            episodes = [replace(episode, game=episode.game - i * self.n_games) for episode in run_rollout.episodes]
            rollouts.append(self._observer.finish(i, replace(run_rollout, episodes=episodes)))
        return rollouts

    def _start_episodes(self, requests: Sequence[PlayEpisode]) -> None:
        if requests[0].mechanism is not None:
            self._env.set_mechanism(np.concatenate([np.asarray(request.mechanism) for request in requests]))
        if requests[0].context is not None:
            self._env.set_context(np.repeat([request.context for request in requests], self.n_games))
        self._generators = []
        for request in requests:
            # Societies with the same seed share a generator.
            seeds = list(request.action_seeds or ())
            self._generators += make_generators(seeds if len(seeds) > 1 else seeds * self.n_societies, shared=True)
        self._collector.reset([seed for request in requests for seed in self._society_seeds(request.seed)])

    def update(
        self, agents_by_run: Mapping[int, Sequence[Agent]], minibatch_seeds_by_run: Mapping[int, Sequence[int]]
    ) -> dict[int, list[dict[str, float] | Diverged]]:
        """Update the societies of some runs on the last rollout; return the metrics of each society by run index.

        The metrics of a run are those of `BatchedTrainer.update`.

        Args:
            agents_by_run: from run index to the agents of the run, one per society.
            minibatch_seeds_by_run: from run index to the seeds of minibatches, one per society.
        """
        assert self._rollout is not None
        if len(agents_by_run) == len(self.runs):
            all_agents = [agent for i in range(len(agents_by_run)) for agent in agents_by_run[i]]
            minibatch_generators = [
                generator for i in range(len(agents_by_run)) for generator in make_generators(minibatch_seeds_by_run[i])
            ]
            self._trainer = BatchedTrainer.reuse_or_create(all_agents, self._trainer)
            metrics = self._trainer.update(self._rollout, minibatch_generators)
            n = self.n_societies
            return {i: metrics[i * n : (i + 1) * n] for i in range(len(agents_by_run))}
        rollouts = split_rollout(self._rollout, len(self.runs))
        return {
            i: BatchedTrainer(run_agents).update(rollouts[i], make_generators(minibatch_seeds_by_run[i]))
            for i, run_agents in agents_by_run.items()
        }

    def _society_seeds(self, seed: int | Sequence[int]) -> list[int]:
        """Return a seed for each society of a run; societies with equal seeds draw equal numbers (`VecEnv.reset`)."""
        return [seed] * self.n_societies if isinstance(seed, int | np.integer) else list(seed)


class _AllRunsFailed(Exception):  # noqa: N818  (ends a rollout, not an error)
    """Raised to end a rollout when no run needs it, because each is absent or an observer of it has raised."""


class _BatchObserver(Observer):
    """Observer that calls the observers of each run with the games of the run.

    Attributes:
        errors: exception of the observers of each run; `_AllRunsFailed` for absent runs; None: no exception.
    """

    def __init__(self, runs: Sequence[BatchedRun], n_games: int) -> None:
        self._runs, self._n_games = runs, n_games
        self.errors: list[BaseException | None] = [None] * len(runs)
        self._has_step_observers = True

    def begin(self, absent_runs: Collection[int]) -> None:
        """Prepare for a rollout in which the observers of the runs with indices `absent_runs` are not called."""
        self.errors = [_AllRunsFailed() if i in absent_runs else None for i in range(len(self._runs))]
        observers = [observer for run in self._runs for observer in run.collector.observers]
        self._has_step_observers = any(type(observer).on_step is not Observer.on_step for observer in observers)

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        self._notify(lambda observer, s: observer.on_reset(games[s], _slice_games(observation, s)))

    def on_step(self, transition: Transition) -> None:
        if self._has_step_observers:
            self._notify(lambda observer, s: observer.on_step(_slice_games(transition, s)))

    def on_progress(self, steps: int) -> None:
        self._notify(lambda observer, _: observer.on_progress(steps))

    def finish(self, i: int, rollout: Rollout) -> Rollout | BaseException:
        """Call the observers of run `i` with its rollout; return the rollout, or an exception of its observers."""

        def notify() -> None:
            for observer in self._runs[i].collector.observers:
                for episode in rollout.episodes:
                    observer.on_episode_end(episode)
                observer.on_rollout(rollout)

        self._call_and_store_error(i, notify)
        return rollout if (error := self.errors[i]) is None else error

    def _notify(self, callback: Callable[[Observer, slice], None]) -> None:
        """Call `callback` for each observer of each run, with the slice of the run's games."""
        for i, run in enumerate(self._runs):
            run_games = slice(i * self._n_games, (i + 1) * self._n_games)

            def notify(observers: Sequence[Observer] = run.collector.observers, run_games: slice = run_games) -> None:
                for observer in observers:
                    callback(observer, run_games)

            self._call_and_store_error(i, notify)
        if all(error is not None for error in self.errors):
            raise _AllRunsFailed

    def _call_and_store_error(self, i: int, notify: Callable[[], None]) -> None:
        if self.errors[i] is None:
            try:
                self._runs[i].call_in_context(notify)
            except (KeyboardInterrupt, WorkDiscarded):  # they end the process instead of one run
                raise
            except BaseException as error:  # noqa: BLE001 (raised again in the thread of the run)
                self.errors[i] = error


def _slice_games(x: Any, games: slice) -> Any:
    """Return a slice of the games of an array [n_envs, ...], or of all arrays of a dict or dataclass; None for None."""
    if isinstance(x, dict):
        return {name: _slice_games(array, games) for name, array in x.items()}
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **_slice_games(vars(x), games))
    return None if x is None else x[games]


def _get_policies(run: BatchedRun) -> Sequence[Any]:
    policy = run.collector.policy
    assert isinstance(policy, PartitionedPolicy)
    return policy.policies
