"""How fast a design run would be here: a few steps of its games, and an update on them."""

from __future__ import annotations

import time

import numpy as np

from llmrl.core.protocols import VecEnv
from llmrl.core.seeding import Seeds
from llmrl.learners.rollout import Collector
from llmrl.loops.societies import Societies

STEPS = 50
"""Steps of every game that are timed."""
_FIRST = 5
"""Steps before them, in which libraries make ready."""


def steps_per_second(env: VecEnv, collector: Collector, societies: Societies, seeds: Seeds) -> float:
    """Return the environment steps a second, summed over games, of adapting societies; agents have learned a little
    then.

    Updates on a few steps stand for those of a whole round, as their cost grows with the steps.
    """
    assert env.spec.mechanism is not None
    none = env.spec.mechanism.neutral
    env.set_mechanism(societies.imposed(np.stack([none] * societies.candidates)))
    learns = societies.agents[0].learns
    elapsed = 0.0
    for steps in (_FIRST, STEPS):
        collector.reset(societies.game_seeds(seeds))
        begun = time.perf_counter()
        rollout = collector.collect(steps, societies.generators(seeds), learns)
        if learns:
            societies.update(rollout, seeds)
        elapsed = time.perf_counter() - begun
    return STEPS * env.spec.n_envs / elapsed
