"""Running sums of episodes in progress, and the records of finished episodes."""

from __future__ import annotations

import numpy as np
import torch

from llmrl.core.records import Array, State
from llmrl.core.rollouts import Episode
from llmrl.core.spaces import EnvSpec

MAX_SUMMED = 2**22
"""Maximum count of numbers summed at once, which limits the memory for long rollouts of many games."""


class EpisodeAccumulator:
    """Running sums of the episodes in progress, updated with whole rollouts.

    The sums stay on the environment's device; only those of finished episodes are copied to the CPU.

    Args:
        spec: spec of the environment.
        state: state of earlier sums; None: no step was played yet.
    """

    def __init__(self, spec: EnvSpec, state: State | None = None) -> None:
        self.spec = spec
        self._device = torch.device(spec.device or "cpu")
        # Columns: reward, base reward, number of gains and sum of their times, of each agent; then `spec.per_step`;
        # then numerator and denominator of each derived metric.
        self._derived = [aggregate for aggregate in spec.metrics.values() if not isinstance(aggregate, str)]
        shape = (spec.n_envs, 4 * spec.n_agents + len(spec.per_step) + 2 * len(self._derived))
        self._means = np.array([aggregate == "mean" for aggregate in spec.per_step.values()], dtype=bool)
        last = [4 * spec.n_agents + i for i, aggregate in enumerate(spec.per_step.values()) if aggregate == "last"]
        self._last = torch.tensor(last, dtype=torch.int64, device=self._device)
        sums = torch.zeros(shape, dtype=torch.float64) if state is None else state["sums"].clone()
        self._sums = sums.to(self._device)
        # Number of steps since the first, and step at which each game's episode began.
        self._clock = 0 if state is None else int(state["clock"])
        self._begin_times = np.zeros(spec.n_envs, dtype=np.int64) if state is None else np.array(state["begun"])

    def state_dict(self) -> State:
        return {"sums": self._sums.clone(), "clock": self._clock, "begun": self._begin_times.copy()}

    def add(
        self, reward: Array, base_reward: Array, info: Array, ends: np.ndarray, waiting: np.ndarray
    ) -> list[Episode]:
        """Add T steps; return the episodes that end in them, ordered by their ends and then by game.

        Args:
            reward, base_reward: rewards after and before the mechanism, [T, n_envs, n_agents], on the environment's
                device.
            info: `EnvSpec.per_step` in their order, [rows, T, n_envs].
            ends: whether the game's episode ends with this step, [T, n_envs] bool, NumPy.
            waiting: whether a game waits for a reset after these steps, [n_envs] bool, NumPy; its steps after its last
                end are discarded.
        """
        signals = [torch.as_tensor(x) for x in (reward, base_reward)] + [torch.as_tensor(info).permute(1, 2, 0)]
        steps = self._steps(ends) if self._derived else None
        ending = np.flatnonzero(ends.any(1))
        sums: list[torch.Tensor] = []
        begin_times: list[np.ndarray] = []
        size = max(1, MAX_SUMMED // max(1, self._sums.numel()))
        for start in range(0, len(ends), size):
            stop = min(start + size, len(ends))
            piece_steps = None if steps is None else torch.from_numpy(steps[start:stop]).to(self._device)
            numbers = self._numbers([x[start:stop] for x in signals], self._clock + start, piece_steps)
            position = start
            for t in ending[(ending >= start) & (ending < stop)].tolist():
                self._sum(numbers[position - start : t + 1 - start])
                position = t + 1
                games = np.flatnonzero(ends[t])
                begin_times.append(self._begin_times[games])
                sums.append(self._pop_sums(games, self._clock + position))
            if position < stop:
                self._sum(numbers[position - start :])
        self._clock += len(ends)
        if waiting.any():
            self._pop_sums(np.flatnonzero(waiting), self._clock)
        if not sums:
            return []
        times, games = np.nonzero(ends)
        times += self._clock - len(ends)
        return self._episodes(torch.cat(sums).cpu().numpy(), np.concatenate(begin_times), times + 1, games)

    def so_far(self, game: int) -> Episode | None:
        """Return the present episode of `game` as if it ended now; None before its first step."""
        if self._clock == self._begin_times[game]:
            return None
        sums, games = self._sums[[game]].cpu().numpy(), np.array([game])
        [episode] = self._episodes(sums, self._begin_times[games], np.array([self._clock]), games)
        return episode

    def _steps(self, ends: np.ndarray) -> np.ndarray:
        """Return the number of steps of its episode that each game had played before each step, [T, n_envs] float64."""
        clock = self._clock + np.arange(len(ends))[:, None]
        begin_times = np.vstack([self._begin_times[None], np.where(ends[:-1], clock[1:], 0)])
        return (clock - np.maximum.accumulate(begin_times)).astype(np.float64)

    def _numbers(self, signals: list[torch.Tensor], start: int, steps: torch.Tensor | None) -> torch.Tensor:
        """Return the numbers to sum for t steps from time `start`, [t, n_envs, columns] float64."""
        reward, base_reward, info = signals
        rows = dict(zip(self.spec.per_step, info.unbind(-1), strict=True))
        is_gain = base_reward > 0
        # float64 holds these sums of integers exactly.
        clock = torch.arange(start, start + len(reward), dtype=torch.float64, device=self._device)
        columns = [reward, base_reward, is_gain, is_gain * clock[:, None, None], info]
        columns += [part[..., None] for metric in self._derived for part in metric.parts(rows, steps)]
        numbers = torch.empty((*reward.shape[:2], self._sums.shape[1]), dtype=torch.float64, device=self._device)
        column = 0
        for x in columns:
            numbers[..., column : column + x.shape[-1]] = x
            column += x.shape[-1]
        return numbers

    def _sum(self, numbers: torch.Tensor) -> None:
        self._sums += numbers.sum(0)
        if len(self._last):
            self._sums[:, self._last] = numbers[-1][:, self._last]

    def _pop_sums(self, games: np.ndarray, clock: int) -> torch.Tensor:
        """Return the sums of `games` [k], [k, columns], and reset them."""
        index = torch.from_numpy(games).to(self._device)
        sums = self._sums[index]
        self._sums.index_fill_(0, index, 0.0)
        self._begin_times[games] = clock
        return sums

    def _episodes(
        self, sums: np.ndarray, begin_times: np.ndarray, end_times: np.ndarray, games: np.ndarray
    ) -> list[Episode]:
        """Return the episodes with `sums` [k, columns], steps from `begin_times` [k] to before `end_times` [k]."""
        spec, length = self.spec, end_times - begin_times
        agents, rows = 4 * spec.n_agents, len(self._means)
        returns, base_returns, gains, gain_times = np.split(sums[:, :agents], 4, axis=1)
        gain_times = gain_times - gains * begin_times[:, None]
        per_step = sums[:, agents : agents + rows] / np.where(self._means, length[:, None], 1)
        numerators, denominators = sums[:, agents + rows :: 2], sums[:, agents + rows + 1 :: 2]
        quotients = np.divide(numerators, denominators, out=np.full(numerators.shape, np.nan), where=denominators != 0)
        plain = np.array([isinstance(aggregate, str) for aggregate in spec.metrics.values()], dtype=bool)
        values = np.empty((len(games), len(plain)))
        values[:, plain], values[:, ~plain] = per_step, quotients
        return [
            Episode(
                returns=returns[i],
                base_returns=base_returns[i],
                length=n,
                summaries=dict(zip(spec.metrics, row, strict=True)) | self._kind_means(returns[i], base_returns[i]),
                gains=gains[i],
                gain_times=gain_times[i],
                game=g,
                start=start,
            )
            for i, (n, row, g, start) in enumerate(
                zip(length.tolist(), values.tolist(), games.tolist(), begin_times.tolist(), strict=True)
            )
        ]

    def _kind_means(self, returns: np.ndarray, base_returns: np.ndarray) -> dict[str, float]:
        """Return the mean returns of the players of each kind, in a mixed society."""
        means = {}
        for name, seats in self.spec.kinds.items():
            means[f"return_{name}"] = float(returns[list(seats)].mean())
            means[f"base_return_{name}"] = float(base_returns[list(seats)].mean())
        return means
