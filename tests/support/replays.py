"""Replay of recorded episodes of the Melting Pot engine on the native engine, with a report of differences.

Random events of the recording (order of moves, growth of apples, new dirt, positions of returning players) are passed
to the native engine as its random numbers. All other state must be equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engine_games import EngineState, Recording
from llmrl.envs.native.engine import MOVE_DIRECTIONS, GameSetup, list_direction_offsets
from llmrl.envs.substrate.maps import GameMap, parse_map
from stepped_engine import HashedRandom, State, SteppedEngine

MAX_UNIFORM = 1 - 2.0**-24
"""Largest possible random number, for which no random event occurs."""


class ReplayRandom(HashedRandom):
    """Random numbers given in advance by purpose; other purposes raise an error."""

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        super().__init__(torch.zeros((len(next(iter(values.values()))), 2), dtype=torch.int32))
        self.values = {name: torch.from_numpy(value.astype(np.float32)) for name, value in values.items()}

    def uniform(self, purpose: str, t: torch.Tensor, n: int) -> torch.Tensor:
        value = self.values[purpose]
        assert value.shape[1] == n, f"{n} random numbers requested for {purpose}, {value.shape[1]} expected"
        return value

    def of(self, games: torch.Tensor) -> ReplayRandom:
        return ReplayRandom({name: value[games].numpy() for name, value in self.values.items()})


@dataclass
class ReplayResult:
    """Result of a replay.

    Attributes:
        steps: number of steps of all games.
        mismatches: differences as (game, step, name, value on the engine, value on the native engine).
        counts: numbers of events by name.
    """

    steps: int = 0
    mismatches: list[tuple[int, int, str, object, object]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def make_engine(recording: Recording) -> SteppedEngine:
    game_settings = recording.game_settings
    return SteppedEngine(
        GameSetup(parse_map(game_settings.substrate, game_settings.map), game_settings.n_agents, game_settings.rules)
    )


def replay_recordings(recordings: Sequence[Recording], engine: SteppedEngine | None = None) -> ReplayResult:
    """Replay recordings of the same game with equal lengths; after a difference a game continues from the recording."""
    engine = engine or make_engine(recordings[0])
    reference = EngineReference(engine.setup.game_map, recordings, engine)
    replay_result = ReplayResult(counts=reference.counts())
    state = reference.state(0)
    for t in range(1, reference.action.shape[1] + 1):
        action = torch.from_numpy(reference.action[:, t - 1])
        state, events = engine.step(state, action, reference.draws(t))
        replay_result.steps += len(recordings)
        native = {name: getattr(state, name) for name in reference.compared}
        native["heading"] = torch.where(state.alive, state.heading, 0)
        native |= {"reward": events.reward, "cleaned": events.cleaned, "zapped": events.zaps, "t": state.t}
        cooldown = engine.tables.constants.zap_cooldown
        readiness = (1 - state.steps_until_zap.to(torch.float64) / cooldown).clamp_min(0) * state.alive
        native |= {"others_cleaned": events.others_cleaned, "ready": readiness}
        reference_state = reference.state(t)
        real = {name: getattr(reference_state, name) for name in reference.compared}
        fields = ("reward", "cleaned", "zapped", "others_cleaned", "ready")
        real |= {
            "t": reference_state.t,
            **{name: torch.from_numpy(getattr(reference.states, name)[:, t]) for name in fields},
        }
        wrong = torch.zeros(len(recordings), dtype=torch.bool)
        for name, value in native.items():
            differs = (value.to(torch.float64) != real[name].to(torch.float64)).flatten(1 if value.dim() > 1 else 0)
            differs = differs.any(-1) if differs.dim() > 1 else differs
            for game in torch.nonzero(differs).flatten().tolist():
                replay_result.mismatches.append((game, t, name, real[name][game].tolist(), value[game].tolist()))
            wrong |= differs
        if wrong.any():
            state = reference_state.where(wrong, state)
    return replay_result


class EngineReference:
    """Recordings as states of the native engine and random numbers of the transitions between them."""

    compared = (
        "pos",
        "heading",
        "alive",
        "steps_until_return",
        "steps_until_zap",
        "steps_until_clean",
        "apple",
        "dirt",
        "group",
        "is_withered",
        "has_cleaned",
        "phase",
    )

    def __init__(self, game_map: GameMap, recordings: Sequence[Recording], engine: SteppedEngine) -> None:
        self.map, self.engine = game_map, engine
        self.harvest = game_map.substrate == "harvest"
        self.states = EngineState.stack([recording.states for recording in recordings])
        self.action = np.stack([r.action for r in recordings]).astype(np.int64)
        cells = [
            np.array([game_map.find_cell(x, y) for x, y, _ in r.sites.tolist()], dtype=np.int64) for r in recordings
        ]
        kinds = recordings[0].sites[:, 2]
        assert all((cell == cells[0]).all() for cell in cells)
        np.testing.assert_array_equal(cells[0][kinds == 1], game_map.apple_cells)
        np.testing.assert_array_equal(cells[0][kinds == 2], game_map.dirt_cells)
        water = list(cells[0][kinds == 3])
        order = [water.index(cell) for cell in np.concatenate([game_map.dirt_cells, game_map.clean_river_cells])]
        time = np.arange(self.states.water.shape[1])[None, :, None]
        self._phase = ((self.states.water[:, :, order] - time // 3) % 4).astype(np.uint8)
        self._pos = (self.states.y + 9) * game_map.stride + self.states.x + 9
        self._out_for = self._absences()

    def _absences(self) -> np.ndarray:
        """Return the number of steps until each player returns to the game, [B, T + 1, N]."""
        alive, absent = self.states.alive, self.engine.tables.constants.removal_steps
        out = np.zeros(alive.shape, np.int32)
        for t in range(1, alive.shape[1]):
            removals = alive[:, t - 1] & ~alive[:, t]
            out[:, t] = np.where(removals, absent + 1, np.maximum(out[:, t - 1] - 1, 0)) * ~alive[:, t]
        return out

    def state(self, t: int) -> State:
        states, games = self.states, len(self.action)
        alive = states.alive[:, t]
        empty = np.zeros((games, 0))
        parts = {
            "t": np.full(games, t, np.int32),
            "pos": np.where(alive, self._pos[:, t], 0).astype(np.int64),
            # Players out of the game can turn, but they return with a random heading.
            "heading": np.where(alive, states.heading[:, t], 0).astype(np.int64),
            "alive": alive,
            "steps_until_return": self._out_for[:, t],
            "steps_until_zap": states.zap_wait[:, t].astype(np.int32),
            "steps_until_clean": (empty if self.harvest else states.clean_wait[:, t]).astype(np.int32),
            "apple": states.apple[:, t],
            "dirt": states.dirt[:, t],
            "phase": self._phase[:, t],
            "group": (np.minimum(states.waits[:, t], 3) if self.harvest else empty).astype(np.int8),
            "is_withered": (states.dry[:, t] if self.harvest else empty).astype(bool),
            "has_cleaned": (empty if self.harvest else states.cleaned[:, t] > 0).astype(bool),
        }
        return State(**{name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()})

    def draws(self, t: int) -> ReplayRandom:
        """Return the random numbers of the step from t - 1 to t."""
        states, games = self.states, len(self.action)
        values = {
            "order": states.turn[:, t] / 64,
            "grow": np.where(states.grew[:, t], 0, MAX_UNIFORM),
            "return": np.full((games, len(self.map.spawn_cells)), 0.9),
            "return_heading": (states.heading[:, t] + 0.5) / 4,
        }
        if not self.harvest:
            values["spill"] = np.full((games, 2), MAX_UNIFORM)
            for game, site in np.argwhere(states.spilled[:, t]):
                clean = np.flatnonzero(~states.dirt[game, t - 1])
                assert site in clean and states.spilled[game, t].sum() == 1, "the level made dirt of dirt"
                values["spill"][game] = 0, (np.searchsorted(clean, site) + 0.5) / len(clean)
        for game in range(games):
            returns = np.flatnonzero(states.alive[game, t] & ~states.alive[game, t - 1])
            for rank, player in enumerate(returns):
                spot = np.flatnonzero(self.map.spawn_cells == self._pos[game, t, player])
                if len(spot):  # otherwise the player has a separate start cell
                    values["return"][game, spot[0]] = (rank + 1) / 64
        return ReplayRandom(values)

    def counts(self) -> Counter[str]:
        """Count the events of the recordings by name."""
        states, alive = self.states, self.states.alive
        now, previous = slice(1, None), slice(None, -1)
        moves = [self.engine.action_names.index(name) for name in MOVE_DIRECTIONS]
        moves_ = np.isin(self.action, moves) & alive[:, previous]
        blocked = moves_ & alive[:, now] & (self._pos[:, now] == self._pos[:, previous])
        hidden = states.grew[:, now] & ~states.apple[:, now] & ~states.apple[:, previous]
        counts = {
            "apples eaten": states.reward.sum(),
            "apples grown": (states.grew[:, now] & ~states.apple[:, previous]).sum(),
            "grown under a player": hidden.sum(),
            "two rewards in a step": (states.reward > 1).sum(),
            "zap hits": states.zapped.sum(),
            "returns": (alive[:, now] & ~alive[:, previous]).sum(),
            "moves": moves_.sum(),
            "moves into a wall or a player": blocked.sum(),
            "moves where the order decided": self._contests(blocked),
        }
        if self.harvest:
            counts["grass withered"] = (states.dry[:, now] & ~states.dry[:, previous]).sum()
        else:
            counts["cells cleaned"] = states.cleaned.sum()
            counts["dirt spawned"] = states.spilled.sum()
            counts["spawned and cleaned at once"] = (states.spilled[:, now] & ~states.dirt[:, now]).sum()
        return Counter({name: int(count) for name, count in counts.items()})

    def _contests(self, blocked: np.ndarray) -> int:
        """Count the blocked moves into cells that were vacated or became occupied in the same step."""
        game_map, count = self.map, 0
        offsets = list_direction_offsets(game_map)
        for game, t, player in np.argwhere(blocked):
            move = MOVE_DIRECTIONS[self.engine.action_names[self.action[game, t, player]]]
            target = self._pos[game, t, player] + offsets[(self.states.heading[game, t, player] + move) % 4]
            occupied = (self._pos[game, t] == target) & self.states.alive[game, t]
            occupied_next = (self._pos[game, t + 1] == target) & self.states.alive[game, t]
            count += not game_map.is_wall[target] and not (occupied & occupied_next).any()
        return count
