"""Batched games with few states: transition tables, expected returns, best policies, and games that use a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.array_games import check_discrete_actions
from llmrl.envs.gym.batched import BatchedGames

TransitionOutcome = tuple[float, int, float, bool]
"""Probability, next state, reward, and whether the episode terminates."""
TransitionRules = Mapping[int, Mapping[int, Sequence[TransitionOutcome]]]
"""State -> action -> outcomes, the attribute `P` of Gymnasium's toy-text environments."""

_VALUE_TOLERANCE = 1e-9
"""Maximum difference between the values of equally good actions."""


@dataclass(frozen=True)
class TransitionTable:
    """The outcome of each action in each state, for each interval in which the sampled random number may be.

    Gymnasium samples a number on [0, 1) and takes the first outcome whose cumulative probability exceeds it (outcome 0
    if rounding leaves none). The cumulative probabilities of all states and actions divide [0, 1) into c intervals.
    For a given state and action, all numbers in one interval have the same outcome.

    Attributes:
        n_states: number of states, 0 to n_states - 1.
        n_actions: number of actions, 0 to n_actions - 1.
        interval_boundaries: boundaries between intervals, [c - 1], ascending.
        next_state: next state, [n_states * n_actions, c]; row `state * n_actions + action`.
        reward: reward, same shape.
        terminated: whether the episode terminates, same shape.
        start_cdf: cumulative probabilities of the start states, [n_states].
    """

    n_states: int
    n_actions: int
    interval_boundaries: NDArray[np.float64]
    next_state: NDArray[np.int64]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    start_cdf: NDArray[np.float64]

    @classmethod
    def from_rules(cls, rules: TransitionRules, start_probabilities: NDArray[np.float64]) -> TransitionTable:
        """Return the table of `rules`, for games that start in state i with probability `start_probabilities[i]`."""
        n_states, n_actions = len(rules), len(rules[0])
        outcome_lists = [rules[state][action] for state in range(n_states) for action in range(n_actions)]
        cdfs = [np.cumsum([probability for probability, *_ in outcome_list]) for outcome_list in outcome_lists]
        interval_boundaries = np.unique(np.concatenate(cdfs))
        # Random numbers are below 1, so cumulative probabilities of 1, or more by rounding, are no boundaries.
        interval_boundaries = interval_boundaries[interval_boundaries < 1]
        interval_starts = np.append(0.0, interval_boundaries)
        outcomes = [
            [outcome_list[i] for i in (cdf[:, None] > interval_starts).argmax(axis=0).tolist()]
            for outcome_list, cdf in zip(outcome_lists, cdfs, strict=True)
        ]
        return cls(
            n_states,
            n_actions,
            interval_boundaries,
            np.array([[outcome[1] for outcome in outcome_row] for outcome_row in outcomes], dtype=np.int64),
            np.array([[outcome[2] for outcome in outcome_row] for outcome_row in outcomes], dtype=np.float64),
            np.array([[outcome[3] for outcome in outcome_row] for outcome_row in outcomes], dtype=bool),
            np.cumsum(start_probabilities),
        )

    @property
    def interval_probabilities(self) -> NDArray[np.float64]:
        """Probability of each interval, [c]."""
        return np.diff(self.interval_boundaries, prepend=0.0, append=1.0)

    def expected_return(self, policy: NDArray[np.int64], horizon: int) -> float:
        """Return the expected return of an episode of at most `horizon` steps, with action `policy[i]` in state i."""
        rows = np.arange(self.n_states) * self.n_actions + policy
        state_values = np.zeros(self.n_states)
        for _ in range(horizon):
            state_values = self._action_values(state_values)[rows]
        return float(np.diff(self.start_cdf, prepend=0.0) @ state_values)

    def best_policy(self, max_iterations: int = 10_000, discount: float = 1 - 1e-6) -> NDArray[np.int64]:
        """Return the action of highest expected return in each state, [n_states], without a step limit.

        Value iteration ends after `max_iterations`, or when no value changes by 1e-12 or more. Of equally good actions,
        the first is returned. With a discount of 1, waiting would have the same value as going to a reward.
        """
        state_values = np.zeros(self.n_states)
        for _ in range(max_iterations):
            action_values = self._action_values(discount * state_values).reshape(self.n_states, self.n_actions)
            previous_values, state_values = state_values, action_values.max(axis=1)
            if np.abs(state_values - previous_values).max() < 1e-12:
                break
        return (action_values >= state_values[:, None] - _VALUE_TOLERANCE).argmax(axis=1)

    def _action_values(self, state_values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the expectation of reward plus next state's value, for each state and action, [n_states * n_actions].

        `state_values` is [n_states].
        """
        next_value = np.where(self.terminated, 0.0, state_values[self.next_state])
        return (self.reward + next_value) @ self.interval_probabilities


class TabularGames(BatchedGames):
    """Games with one transition table; with the same random numbers, they equal Gymnasium's toy-text environments.

    Args:
        n: number of games.
        table: transition table of the games.
        render_state: function that returns a frame, given a state and the action that led to it (None: at the start).
        horizon: steps after which an episode is truncated; None: never.
        action_masks: legal actions in each state, [n_states, n_actions], for `info["action_mask"]`; None: no masks.
    """

    def __init__(
        self,
        n: int,
        table: TransitionTable,
        render_state: Callable[[int, int | None], NDArray[np.uint8]],
        horizon: int | None = None,
        action_masks: NDArray[np.int8] | None = None,
    ) -> None:
        from gymnasium import spaces

        super().__init__(n, spaces.Discrete(table.n_states), spaces.Discrete(table.n_actions), horizon)
        self.table = table
        self._render_state, self._action_masks = render_state, action_masks
        self._state = np.zeros(n, dtype=np.int64)
        self._action = np.full(n, -1, dtype=np.int64)
        self._update_infos()

    def set_start_states(self, indices: NDArray[np.int64], rngs: Sequence[np.random.Generator]) -> None:
        for game, rng in zip(indices.tolist(), rngs, strict=True):
            self._state[game] = np.argmax(self.table.start_cdf > rng.random())
        self._action[indices] = -1
        self._update_infos()

    def advance(self, actions: Any, active: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        table, action = self.table, check_discrete_actions(actions, self.table.n_actions)
        outcome_index = self._state * table.n_actions + action
        if len(table.interval_boundaries):
            interval_indices = table.interval_boundaries.searchsorted(self.sample(1, active)[:, 0], side="right")
            outcome_index = outcome_index * table.next_state.shape[1] + interval_indices
        state = table.next_state.take(outcome_index)
        self._state = state if active is None else np.where(active, state, self._state)
        self._action = action if active is None else np.where(active, action, self._action)
        self._update_infos()
        return table.reward.take(outcome_index), table.terminated.take(outcome_index)

    def observe(self) -> NDArray[np.int64]:
        return self._state.copy()

    def render(self, index: int) -> NDArray[np.uint8]:
        action = int(self._action[index])
        return self._render_state(int(self._state[index]), None if action < 0 else action)

    def _update_infos(self) -> None:
        if self._action_masks is not None:
            self.infos = [{"action_mask": mask} for mask in self._action_masks[self._state]]


def _make_toy_text_games(entry_point: str, n: int, horizon: int | None, **kwargs: Any) -> TabularGames | None:
    """Return `n` games of the Gymnasium environment that `entry_point` creates with `kwargs`.

    None: its table `P` does not contain all rules. Taxi with `fickle_passenger` samples new destinations without it.
    """
    from gymnasium.envs.registration import load_env_creator

    if kwargs.get("fickle_passenger"):
        return None
    env: Any = load_env_creator(entry_point)(render_mode="rgb_array", **kwargs)
    table = TransitionTable.from_rules(env.P, env.initial_state_distrib)

    def render_state(state: int, action: int | None) -> NDArray[np.uint8]:
        env.s, env.lastaction = state, action
        return np.asarray(env.render())

    has_masks = hasattr(env, "action_mask")
    action_masks = np.stack([env.action_mask(state) for state in range(table.n_states)]) if has_masks else None
    return TabularGames(n, table, render_state, horizon, action_masks)


make_frozen_lake_games = partial(_make_toy_text_games, "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv")
make_cliff_walking_games = partial(_make_toy_text_games, "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv")
make_taxi_games = partial(_make_toy_text_games, "gymnasium.envs.toy_text.taxi:TaxiEnv")
"""Functions for `BATCHED_GAMES`; arguments: number of games, step limit, and arguments of the environment."""
