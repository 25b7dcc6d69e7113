"""Evaluation of policies on episodes that are the same for every policy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmrl.core.protocols import unchanged
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.rollout.collector import Collector

UNKNOWN_HORIZON = 1000
"""Assumed horizon of environments without one, in steps; ends of episodes are checked after each eighth of it."""


def evaluate_policy(
    collector: Collector,
    n: int,
    seeds: Seeds,
    greedy: bool = False,
    prepare: Callable[[], None] = lambda: None,
    exactly: bool = False,
) -> list[Episode]:
    """Play rounds of one episode per game until there are `n` episodes; return all of them, round by round.

    A finished game waits for the longest of its round. Otherwise short episodes would be overrepresented.

    Args:
        collector: environment and policy; it must be reset before any other use.
        n: least number of episodes, >= 1.
        seeds: seed tree; round i is seeded with `env i` and draws actions from `actions i`, so that all policies play
            the same games.
        greedy: take the most probable actions.
        prepare: function called before each round, e.g. to set mechanism and context.
        exactly: return exactly `n` episodes: the last round has only the missing games, for players that cost money.
    """
    spec = collector.spec
    horizon = spec.horizon or UNKNOWN_HORIZON
    # Few episodes last until the horizon, so their ends are checked after each piece.
    piece = max(1, horizon // 8)
    episodes: list[Episode] = []
    i = 0
    while len(episodes) < n:
        prepare()
        games = np.arange(spec.n_envs) < (n - len(episodes) if exactly else spec.n_envs)
        collector.reset(seeds.integer(f"env {i}"), games)
        generator = seeds.torch(f"actions {i}")
        episodes_by_game: dict[int, Episode] = {}
        with unchanged(collector.policy):  # so that memoized values remain valid from one piece to the next
            while len(episodes_by_game) < games.sum():
                new_episodes = collector.collect(piece, generator, learn=False, greedy=greedy, restart=False).episodes
                episodes_by_game |= {episode.game: episode for episode in new_episodes}
        episodes += [episodes_by_game[game] for game in sorted(episodes_by_game)]
        i += 1
    return episodes
