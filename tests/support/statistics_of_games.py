"""Summary statistics of episodes on the Melting Pot engine and the native engine, and their comparison."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import scripted
from engine_games import EngineState, GameSettings, Policy, Recording, play
from llmrl.envs.native.engine import GameSetup
from llmrl.envs.native.hashed_random import derive_game_keys
from llmrl.envs.substrate.maps import parse_map
from stepped_engine import HashedRandom, SteppedEngine

REFERENCE = Path(__file__).parents[1] / "envs" / "native" / "reference_statistics.json"
RECORD_INTERVAL = 50
"""Steps between two counts of apples and dirt."""
REWARD_INTERVAL = 100
"""Steps over which rewards are summed."""
MAX_SKEWNESS = 0.5
"""Maximum skewness of a mean that is compared under a normal approximation."""


@dataclass(frozen=True)
class Condition:
    """Condition of a comparison.

    Attributes:
        substrate: name of the substrate.
        policy: name in `scripted.SCRIPTS`, or `drawn` for random actions with probabilities proportional to `weights`.
        clean: whether the whole river is clean at the start.
        steps: number of steps per episode.
        weights: weights of the actions.
    """

    substrate: str
    policy: str
    clean: bool = False
    steps: int = 1000
    weights: tuple[float, ...] = ()

    @property
    def game_settings(self) -> GameSettings:
        return GameSettings(self.substrate, clean=self.clean)

    def script(self, game_settings: GameSettings | None = None) -> scripted.Script:
        """Return the script of the players on `game_settings`, or on the rig of the condition."""
        game_settings = game_settings or self.game_settings
        if self.policy == "drawn":
            return scripted.make_weighted_script(list(self.weights))
        return scripted.SCRIPTS[self.policy](
            parse_map(game_settings.substrate, game_settings.map), game_settings.actions
        )


def load_reference() -> dict[str, dict]:
    return json.loads(REFERENCE.read_text())


def write_reference(statistics: Mapping) -> None:
    """Write the reference statistics with one quantity per line."""
    text = json.dumps(statistics, indent=1)
    REFERENCE.write_text(re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + " ".join(m[1].split()) + "]", text) + "\n")


def parse_condition(entry: Mapping) -> Condition:
    return Condition(**{**entry["condition"], "weights": tuple(entry["condition"].get("weights", ()))})


def measure_native_games(
    condition: Condition, games: int, seed: int, draws: type[HashedRandom] = HashedRandom
) -> dict[str, np.ndarray]:
    """Return the statistics of native games, [games] each; `draws` is the class of their random numbers."""
    game_settings, script, rng = condition.game_settings, condition.script(), np.random.default_rng(seed)
    game_map = parse_map(game_settings.substrate, game_settings.map)
    engine = SteppedEngine(GameSetup(game_map, game_settings.n_agents))
    keys = derive_game_keys(np.full(games, seed), np.arange(games), np.zeros(games, np.int64))
    source = draws(torch.from_numpy(keys))
    state, tally = engine.start(source), Tally(games, game_settings.n_agents, condition.steps)
    for t in range(condition.steps):
        tally.record_counts(t, state.apple.sum(-1).numpy(), state.dirt.sum(-1).numpy())
        x, y = game_map.find_position(state.pos.numpy())
        world = scripted.WorldState(x, y, state.heading.numpy(), state.apple.numpy(), state.dirt.numpy())
        action = torch.from_numpy(script(world, rng))
        state, events = engine.step(state, action, source)
        tally.add(t, events.reward.numpy(), events.zaps.numpy(), events.cleaned.numpy())
    tally.record_counts(condition.steps, state.apple.sum(-1).numpy(), state.dirt.sum(-1).numpy())
    return tally.numbers(game_settings.substrate == "cleanup")


def measure_engine_game(condition: Condition, seed: int) -> dict[str, np.ndarray]:
    """Return the statistics of one game on the Melting Pot engine, [1] each."""
    return measure_recording(
        play(condition.game_settings, make_engine_policy(condition.script()), condition.steps, seed)
    )


def make_engine_policy(script: scripted.Script) -> Policy:
    """Return the policy of a script for one game on the Melting Pot engine."""

    def policy(states: EngineState, rng: np.random.Generator) -> np.ndarray:
        world = scripted.WorldState(*(v[None] for v in (states.x, states.y, states.heading, states.apple, states.dirt)))
        return script(world, rng)[0]

    return policy


def measure_recording(recording: Recording) -> dict[str, np.ndarray]:
    states, steps = recording.states, len(recording.action)
    tally = Tally(1, recording.game_settings.n_agents, steps)
    for t in range(steps + 1):
        tally.record_counts(t, states.apple[t].sum(keepdims=True), states.dirt[t].sum(keepdims=True))
        if t:
            tally.add(t - 1, states.reward[t][None], states.zapped[t][None], states.cleaned[t][None])
    return tally.numbers(recording.game_settings.substrate == "cleanup")


class Tally:
    """Sums over episodes of `steps` steps."""

    def __init__(self, games: int, n_agents: int, steps: int) -> None:
        self._reward = np.zeros((games, n_agents))
        self._parts = np.zeros((-(-steps // REWARD_INTERVAL), games))
        self._zaps, self._cleaned = np.zeros(games), np.zeros(games)
        self._counts: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def record_counts(self, t: int, apples: np.ndarray, dirt: np.ndarray) -> None:
        if t % RECORD_INTERVAL == 0:
            self._counts[t] = apples, dirt

    def add(self, t: int, reward: np.ndarray, zaps: np.ndarray, cleaned: np.ndarray) -> None:
        self._reward += reward
        self._parts[t // REWARD_INTERVAL] += reward.sum(-1)
        self._zaps += zaps.sum(-1)
        self._cleaned += cleaned.sum(-1)

    def numbers(self, river: bool) -> dict[str, np.ndarray]:
        total = self._reward.sum(-1)
        numbers = {"return": total, "return above 0": (total > 0).astype(float), "zap hits": self._zaps}
        numbers |= {f"return of player {i + 1}": rewards for i, rewards in enumerate(self._reward.T)}
        numbers |= {
            f"reward in steps {REWARD_INTERVAL * i + 1}-{REWARD_INTERVAL * (i + 1)}": rewards
            for i, rewards in enumerate(self._parts)
        }
        numbers |= {f"apples after {t}": apples for t, (apples, _) in self._counts.items()}
        if river:
            numbers |= {"cells cleaned": self._cleaned}
            numbers |= {f"dirt after {t}": dirt for t, (_, dirt) in self._counts.items()}
        return numbers


def summarize(numbers: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """Return mean, standard deviation and size of each sample."""
    return {name: [round(float(v.mean()), 4), round(float(v.std(ddof=1)), 4), len(v)] for name, v in numbers.items()}


def compute_z_scores(quantities: Mapping[str, Sequence[float]], numbers: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the z-scores of the differences between native means and engine means, with pooled variances.

    Quantities are omitted if the normal approximation is poor, that is, if the skewness of the engine's mean, estimated
    from native games, exceeds `MAX_SKEWNESS`.
    """
    scores = {}
    for name, (mean, sd, n) in quantities.items():
        values = numbers[name]
        deviation = values.std(ddof=1)
        if deviation == 0:
            # The last expression is a lower bound of the number of engine episodes with a nonzero value.
            if mean == values.mean() or sd == 0 or n * mean**2 / (mean**2 + sd**2) > 3:
                scores[name] = 0.0 if mean == values.mean() else np.inf
            continue
        if abs(((values - values.mean()) ** 3).mean()) / deviation**3 / np.sqrt(n) > MAX_SKEWNESS:
            continue
        pooled = ((n - 1) * sd**2 + (len(values) - 1) * deviation**2) / (n + len(values) - 2)
        scores[name] = float((values.mean() - mean) / np.sqrt(pooled * (1 / n + 1 / len(values))))
    return scores
