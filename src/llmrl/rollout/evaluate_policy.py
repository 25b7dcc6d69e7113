"""Episodes played to measure something: the same ones for whoever plays them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmrl.core.protocols import unchanged
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.rollout.collector import Collector

UNKNOWN_HORIZON = 1000
"""Taken for the horizon where an engine alone knows when an episode ends; an eighth of it is played between two looks
at what has ended."""


def evaluate_policy(
    collector: Collector,
    n: int,
    seeds: Seeds,
    greedy: bool = False,
    prepare: Callable[[], None] = lambda: None,
    exactly: bool = False,
) -> list[Episode]:
    """Play the first episode of every game, in as many rounds as give `n` episodes; all of the last round count.

    A game that is over waits for the longest of its round: where episodes differ in length, short ones would otherwise
    be counted more often than they occur.

    Args:
        collector: env and policy; it needs a reset before it is used otherwise.
        n: episodes, >= 1.
        seeds: round i is seeded with `env i` and draws actions from `actions i`, so that policies are compared in the
            same games.
        greedy: take the likeliest action.
        prepare: called before each round, to set mechanism and context.
        exactly: the last round has only the games that are missing, for players that cost something.
    """
    spec = collector.spec
    horizon = spec.horizon or UNKNOWN_HORIZON
    # A round is over when its longest first episode is: looked after in pieces, as few wait for the horizon.
    piece = max(1, horizon // 8)
    episodes: list[Episode] = []
    i = 0
    while len(episodes) < n:
        prepare()
        games = np.arange(spec.n_envs) < (n - len(episodes) if exactly else spec.n_envs)
        collector.reset(seeds.integer(f"env {i}"), games)
        generator = seeds.torch(f"actions {i}")
        finished: dict[int, Episode] = {}
        with unchanged(collector.policy):  # what is read in one piece need not be read again in the next
            while len(finished) < games.sum():
                played = collector.collect(piece, generator, learn=False, greedy=greedy, restart=False).episodes
                finished |= {episode.game: episode for episode in played}
        episodes += [finished[game] for game in sorted(finished)]
        i += 1
    return episodes
