"""Groups of episodes with equal starts, and Monte Carlo estimates of state values from repeated continuations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmrl.core.agent_interfaces import LearnsFromEpisodeGroups
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Agent, Forkable
from llmrl.core.records import State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.loops.compute_requests import Begin, PlaySteps, Requests
from llmrl.loops.independent_games import PerGameSeeding, has_separable_games
from llmrl.rollout.collector import Collector


def begin_games(
    collector: Collector, seeds: Sequence[int], seed: int, games: np.ndarray | None = None
) -> Requests[None]:
    """Request new episodes, each with its own seed if the environment supports this.

    Args:
        collector: collector of the run's games.
        seeds: seed of each game, [n_envs].
        seed: seed of all games, for environments that take only one.
        games: mask of the games that begin, [n_envs] bool; None: all.
    """
    reset_seed: int | Sequence[int] = seed
    if isinstance(collector.env, PerGameSeeding):
        collector.env.seed_games(np.array(seeds, dtype=np.int64))
    elif has_separable_games(collector.env):
        reset_seed = list(seeds)
    yield Begin(collector, reset_seed, games)


class EpisodeGroups:
    """Rollouts of one episode in each game, where groups of consecutive games start in the same state.

    Args:
        collector: collector of the run's games.
        agent: agent that learns from groups of episodes.
        max_steps: number of steps after which an episode is truncated.

    Raises:
        ConfigError: the agent needs state values from continuations, and the environment cannot be forked.
    """

    def __init__(self, collector: Collector, agent: Agent, max_steps: int) -> None:
        assert isinstance(agent, LearnsFromEpisodeGroups) and agent.group_size is not None
        self.collector, self.max_steps = collector, max_steps
        self._agent, self._group_size = agent, agent.group_size
        self._can_fork = isinstance(collector.env, Forkable) and collector.spec.deterministic
        if agent.n_continuations and not self._can_fork:
            raise ConfigError(
                f"llm.learn.advantage=replay continues games from their saved states, which env={collector.spec.name} "
                "does not support; use episode, turn or anchor"
            )

    def play(self, seeds: Seeds) -> Requests[tuple[Rollout, int]]:
        """Play one episode in each game.

        Args:
            seeds: seed tree of the starts, actions and continuations.

        Returns:
            The rollout with the finished episodes, and the number of environment steps, summed over games and
            continuations.
        """
        n_games = self.collector.spec.n_envs
        start_seeds = [seeds.child("start").integer(i // self._group_size) for i in range(n_games)]
        yield from begin_games(self.collector, start_seeds, seeds.integer("start"))
        if self._can_fork:
            # With equal seeds, the games of a group would have equal random numbers also after the start. New random
            # numbers make their episodes differ.
            yield Begin(self.collector, state=self.collector.state_dict(), fork_seed=seeds.integer("futures"))
        if not self._agent.n_continuations:
            rollout = yield self._make_steps_request(self.max_steps, seeds.integer("actions"))
            self._agent.truncate_episodes()
            return rollout, _count_played_steps(rollout, n_games)
        states: list[State] = []
        rollouts: list[Rollout] = []
        while len(rollouts) < self.max_steps:
            state = {"games": self.collector.state_dict(), "agent": self._agent.policy.state_dict()}  # type: ignore[attr-defined]
            rollout = yield self._make_steps_request(1, seeds.child("actions").integer(len(rollouts)))
            if not len(rollout.reward):  # all games have ended
                break
            states.append(state)
            rollouts.append(rollout.copy())
        episodes = [episode for rollout in rollouts for episode in rollout.episodes]
        self._agent.truncate_episodes()
        values, n_steps = yield from self._estimate_continuation_values(states, seeds.child("continuations"))
        self._agent.set_state_values(values)
        n_steps += sum(episode.length for episode in episodes) + (n_games - len(episodes)) * len(rollouts)
        return replace(rollouts[-1], episodes=episodes), n_steps

    def _estimate_continuation_values(self, states: Sequence[State], seeds: Seeds) -> Requests[tuple[np.ndarray, int]]:
        """Return mean discounted returns of continuations, [n_steps, n_envs, n_agents], and the steps played."""
        values, n_steps = [], 0
        with self._agent.pause_recording(), self.collector.disable_observers():
            for t, state in enumerate(states):
                returns = []  # [n_envs, n_agents] of each continuation
                for k in range(self._agent.n_continuations):
                    yield Begin(self.collector, state=state["games"], fork_seed=seeds.child(t).integer(k))
                    self._agent.policy.load_state_dict(state["agent"])  # type: ignore[attr-defined]
                    action_seed = seeds.child(t).child("actions").integer(k)
                    rollout = yield self._make_steps_request(self.max_steps - t, action_seed)
                    reward = rollout.reward.cpu().numpy()
                    returns.append(np.tensordot(self._agent.gamma ** np.arange(len(reward)), reward, 1))
                    n_steps += _count_played_steps(rollout, int((~state["games"]["ended"]).sum()), t)
                values.append(np.mean(returns, axis=0))
        return np.array(values), n_steps

    def _make_steps_request(self, steps: int, seed: int) -> PlaySteps:
        return PlaySteps(collector=self.collector, steps=steps, action_seeds=[seed], learn=False, restart=False)


def _count_played_steps(rollout: Rollout, n_games: int, start: int = 0) -> int:
    """Return the number of steps of `n_games` games in a rollout that began at step `start` of their episodes."""
    n_unfinished = n_games - len(rollout.episodes)
    return sum(episode.length - start for episode in rollout.episodes) + n_unfinished * len(rollout.reward)
