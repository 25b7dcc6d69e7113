"""Estimates of the duration of loops on this machine, from a few timed steps or episodes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from llmrl.core.seeding import Seeds
from llmrl.loops.compute_requests import Begin, Loop, PlaySteps, Requests, Update
from llmrl.loops.executor import serve
from llmrl.loops.learn import LearnLoop
from llmrl.loops.loop_parts import min_rollout_steps
from llmrl.loops.play import PlayLoop
from llmrl.loops.search import SearchLoop
from llmrl.loops.search_settings import draw_warmup_vectors
from llmrl.loops.societies import AdaptationRounds
from llmrl.rollout.collector import Collector

TIMED_STEPS = 50
"""Number of timed steps of every game; fewer if a rollout is shorter, more if an update needs more."""
_WARMUP_STEPS = 5
"""Steps before the timed ones, in which libraries initialize themselves."""
_TIMED_EPISODES = 4
"""Timed episodes of policy search."""


def measure_steps_per_second(adaptation: AdaptationRounds, seeds: Seeds) -> float:
    """Return the environment steps per second, summed over games, of adaptation rounds, updates included.

    The weights of the agents change. A few steps suffice to time updates, whose cost is proportional to the steps.
    """
    spec, societies = adaptation.collector.spec, adaptation.societies
    assert spec.mechanism is not None
    vectors = np.stack([spec.mechanism.neutral] * societies.candidates)
    seed_nodes = [seeds] * societies.candidates

    learns, min_steps = societies.agents[0].learns, min_rollout_steps(societies.agents, societies.games)

    def measure_round_seconds(steps: int) -> Requests[float]:
        start = time.perf_counter()
        rollout = yield adaptation.make_episode_request(steps, seed_nodes, vectors, None, learn=learns)
        if learns:
            yield societies.make_update_request(rollout, seed_nodes)
        return time.perf_counter() - start

    serve(measure_round_seconds(max(_WARMUP_STEPS, min_steps)))
    steps = max(TIMED_STEPS, min_steps)
    return steps * spec.n_envs / serve(measure_round_seconds(steps))


def estimate_seconds(loop: Loop, seeds: Seeds) -> float | None:
    """Return the estimated seconds of a run of learning, search or play, without the time of language models.

    Episodes of a search and of play are assumed to reach the horizon. Without a horizon, and for other loops, return
    None.

    Args:
        loop: loop that has not started; its state changes, so it cannot be run afterwards.
        seeds: seed node of the timed steps.
    """
    if isinstance(loop, LearnLoop):
        return _estimate_learning_seconds(loop, seeds)
    if isinstance(loop, SearchLoop):
        return _estimate_search_seconds(loop)
    if isinstance(loop, PlayLoop) and loop.env.spec.horizon is not None:
        seconds = serve(_measure_seconds(loop.collector, TIMED_STEPS, seeds, _WARMUP_STEPS))
        return seconds / TIMED_STEPS * loop.env.spec.horizon * loop.n_waves
    return None


def _estimate_learning_seconds(loop: LearnLoop, seeds: Seeds) -> float:
    spec, settings = loop.env.spec, loop.settings
    steps = min(loop.rollout_steps, max(TIMED_STEPS, min_rollout_steps([loop.agent], spec.n_envs)))
    rollout_seconds = serve(_measure_seconds(loop.collector, steps, seeds, min(steps, _WARMUP_STEPS), loop.agent))
    seconds = rollout_seconds / steps * loop.rollout_steps * loop.n_updates
    if spec.horizon is not None:
        play_seconds = serve(_measure_seconds(loop.collector, TIMED_STEPS, seeds, 0))
        interval = settings.evaluation_interval
        n_evaluations = 1 + (max(0, loop.n_updates - 1) // interval if interval else 0)
        n_waves = -(-settings.evaluate_episodes // spec.n_envs)
        seconds += play_seconds / TIMED_STEPS * spec.horizon * n_waves * n_evaluations
    return seconds


def _estimate_search_seconds(loop: SearchLoop) -> float | None:
    if loop.env.spec.horizon is None:
        return None
    vectors = draw_warmup_vectors(loop.space, "uniform", 1, np.random.default_rng(0))
    seeds = np.arange(_TIMED_EPISODES, dtype=np.uint64)

    def measure_seconds_per_step() -> Requests[float]:
        yield loop.make_play_request(vectors, seeds)  # not timed, because it also starts the worker processes
        start = time.perf_counter()
        evaluation = yield loop.make_play_request(vectors, seeds)
        return (time.perf_counter() - start) / float(evaluation.lengths.sum())

    n_episodes = loop.total_episodes + loop.settings.evaluate_episodes
    return serve(measure_seconds_per_step()) * n_episodes * loop.env.spec.horizon


def _measure_seconds(
    collector: Collector, steps: int, seeds: Seeds, n_warmup_steps: int, agent: Any = None
) -> Requests[float]:
    """Play `steps` steps of every game and update `agent` on them; return the duration in seconds.

    Args:
        collector: collector of the loop.
        steps: number of timed steps.
        seeds: seed node.
        n_warmup_steps: number of steps before the timed ones.
        agent: agent to update; None: the steps are only played.
    """
    yield Begin(collector, seeds.integer("games"))
    start = time.perf_counter()
    for n_steps in filter(None, (n_warmup_steps, steps)):
        start = time.perf_counter()
        rollout = yield PlaySteps(
            collector=collector, steps=n_steps, action_seeds=[seeds.integer("actions")], learn=agent is not None
        )
        if agent is not None and n_steps >= min_rollout_steps([agent], collector.spec.n_envs):
            yield Update(agents=[agent], rollout=rollout, minibatch_seeds=[seeds.integer("minibatches")], stacked=False)
    return time.perf_counter() - start
