"""Particle worlds as a `VecEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.envs.env_errors import guarded
from llmrl.envs.particles.physics import ParticleWorld
from llmrl.envs.particles.scenario import DARK, Scenario


class ParticlesEnv:
    """A vectorised environment of `n_envs` games of a scenario (`simple_spread`, ...).

    **Agents** are in the order of `spec.agent_names`, which is that of `mpe2`: in simple_tag adversaries before good
    agents, in simple_speaker_listener the speaker before its listeners. `spec.n_agents` counts them all.

    **Observation.** `vector` [n_envs, n_agents, D] float32: each agent's observation, padded with zeros to the longest;
    `spec.observation["vector"].parts` names its entries (`llmrl.envs.particles.vector_layout`). `action_mask`
    [n_envs, n_agents, n_actions] bool, only if agents have different actions.

    **End.** Truncated after `horizon` steps; no other end.

    Args:
        seeds: the environment's node of the seed tree.
        scenario: scenario of the games.
        n_envs: games in lock step.
        horizon: steps per episode; a step is 0.1 seconds of the world.
        engine: `batched`, arrays of all games at once; or `mpe2`, the objects of that package, one after the other.
            Both play the same games from the same seed, equal up to rounding.

    Attributes:
        place: (i, n): the first game starts as game i of n does (`llmrl.loops.independent_games.OneGame`).
    """

    spec: EnvSpec
    place = (0, 1)

    def __init__(
        self,
        seeds: Seeds,
        scenario: Scenario,
        n_envs: PositiveInt = 32,
        horizon: PositiveInt = 25,
        engine: Literal["batched", "mpe2"] = "batched",
    ) -> None:
        self._made_of = {name: x for name, x in locals().items() if name not in ("self", "n_envs")}
        self._scenario, self._horizon = scenario, horizon
        bodies, n_actions = scenario.bodies, len(scenario.action_names)
        channels = {"vector": Channel((scenario.width,), "float32", parts=scenario.layouts)}
        self._mask: np.ndarray | None = None
        if scenario.legal is not None:
            channels["action_mask"] = Channel((n_actions,), "bool", 0, 1)
            self._mask = np.broadcast_to(scenario.legal, (n_envs, *scenario.legal.shape))
        self.spec = EnvSpec(
            name=scenario.name,
            n_envs=n_envs,
            n_agents=bodies.n_agents,
            observation=channels,
            n_actions=n_actions,
            action_names=scenario.action_names,
            horizon=horizon,
            metrics=scenario.metrics,
            agent_names=bodies.agents,
        )
        self.world = ParticleWorld(bodies, n_envs, scenario.words, len(scenario.guides))
        self._real = None
        if engine == "mpe2":
            from llmrl.envs.particles.mpe2_games import Mpe2Games

            self._real = Mpe2Games(scenario, n_envs, horizon)
        self._groups = 1
        self._rngs = [seeds.numpy("starts")]  # one for each equal group of games
        self._started = np.zeros(n_envs, dtype=bool)
        self._time = np.zeros(n_envs, dtype=np.int64)
        self._ended = np.ones(n_envs, dtype=bool)

    def one_game(self) -> ParticlesEnv:
        """Return the same environment with a single independent game."""
        made: Any = self._made_of
        return guarded(ParticlesEnv(**made, n_envs=1))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes where `mask` [n_envs] is true (None: all); return every game's observation.

        `seed` reseeds the draw of starts; a sequence seeds equal groups of games separately (`VecEnv.reset`)."""
        n_envs = self.spec.n_envs
        if seed is not None:
            several = seed if isinstance(seed, Sequence) else [seed]
            self._rngs = [Seeds(each).numpy("starts") for each in several]
        chosen = np.ones(n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        # Draws for every game, even those that go on, so that a game's draws do not depend on the other games.
        self.world.place(chosen, *self._starts())
        if self._real is not None:
            self._real.start(self.world, chosen)
        self._time[chosen] = 0
        self._ended[chosen] = False
        self._started |= chosen
        return self._observe()

    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return positions [n_envs, E, 2] and goals [n_envs, G] of new games."""
        (first, of), groups = self.place, len(self._rngs)
        size = self.spec.games_per_group(groups if groups > 1 else self._groups)
        drawn = [self._scenario.draw(rng, max(of, size)) for rng in self._rngs]
        position, goal = (np.concatenate([each[i][first : first + size] for each in drawn]) for i in range(2))
        copies = self.spec.n_envs // len(position)
        return np.tile(position, (copies, 1, 1)), np.tile(goal, (copies, 1))

    def step(self, action: Array) -> Step:
        """Advance all games by `action` [n_envs, n_agents]. Games that have ended stay as they are.

        Raises:
            ValueError: wrong shape, an action does not exist or is not legal for the agent, or a game was never reset.
        """
        chosen = self._checked(np.asarray(action))
        active = ~self._ended
        self._time += active
        cut = active & (self._time >= self._horizon)
        if self._real is None:
            self.world.step(*self._scenario.decode(chosen), active)
            reward = self._scenario.reward(self.world) * active[:, None]
        else:
            reward, truncated = self._real.step(chosen, active, self.world)
            assert np.array_equal(truncated, cut)
        self._ended |= cut
        reward = reward.astype(np.float32)
        info = self._scenario.measure(self.world)
        return Step(
            observation=self._observe(),
            reward=reward,
            base_reward=reward.copy(),
            terminated=np.zeros(self.spec.n_envs, dtype=bool),
            truncated=self._ended.copy(),
            info={name: (value * active).astype(np.float32) for name, value in info.items()},
        )

    def pair_games(self, groups: int) -> None:
        """Draw the same starts in each of `groups` equal groups of games."""
        self.spec.games_per_group(groups)
        self._groups = groups

    def set_mechanism(self, values: Array) -> None:
        """Raise ConfigError: there is no mechanism."""
        raise ConfigError(f"{self.spec.name} has no mechanism: use principal=none")

    def set_context(self, context: int) -> None:
        """Raise ConfigError: there are no contexts."""
        raise ConfigError(f"{self.spec.name} has no contexts, so there is no context {context}")

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of game `index`, [320, 320, 3] uint8.

        Agents have distinct colours; landmarks and obstacles are grey, or coloured if they are goals. The outline of an
        agent with a goal has the colour of its landmark."""
        fill, outline = self._scenario.colours(self.world.goal[index])
        return draw(self.world.position[index], self.world.bodies.size, fill, outline)

    def state_dict(self) -> State:
        return {
            "rngs": [rng.bit_generator.state for rng in self._rngs],
            "world": self.world.state_dict(),
            "started": self._started.copy(),
            "time": self._time.copy(),
            "ended": self._ended.copy(),
        }

    def load_state_dict(self, state: State) -> None:
        # States saved by an earlier version have a single generator, `rng`.
        saved = state.get("rngs") or [state["rng"]]
        self._rngs = [np.random.default_rng() for _ in saved]
        for rng, each in zip(self._rngs, saved, strict=True):
            rng.bit_generator.state = each
        self.world.load_state_dict(state["world"])
        self._started = state["started"].copy()
        self._time = state["time"].copy()
        self._ended = state["ended"].copy()
        if self._real is not None:
            self._real.go_on(self.world, np.ones(self.spec.n_envs, dtype=bool), self._time)

    def close(self) -> None:
        if self._real is not None:
            self._real.close()

    def _checked(self, action: np.ndarray) -> np.ndarray:
        spec = self.spec
        if action.shape != (spec.n_envs, spec.n_agents):
            raise ValueError(f"actions must be [{spec.n_envs}, {spec.n_agents}], got shape {list(action.shape)}")
        if action.min() < 0 or action.max() >= spec.n_actions:
            raise ValueError(f"actions must be 0 to {spec.n_actions - 1}, got {action.min()} to {action.max()}")
        if self._mask is not None:
            allowed = np.take_along_axis(self._mask, action[..., None], axis=2)[..., 0]
            if not allowed.all():
                game, agent = np.argwhere(~allowed)[0]
                name = spec.action_names[action[game, agent]]
                raise ValueError(
                    f"{spec.agent_names[agent]} cannot take the action {name}; action_mask says what it can"
                )
        if not self._started.all():
            raise ValueError("reset() must be called before step()")
        return action

    def _observe(self) -> Observation:
        vector = self._scenario.observe(self.world) if self._real is None else self._real.observe()
        return {"vector": vector} if self._mask is None else {"vector": vector, "action_mask": self._mask.copy()}


SIDE = 320  # pixels
VIEW = 1.25  # half-width of the view, units, unless a disc is further out
_PAPER, _FRAME = 244, 205
_SMALLEST = 7.0  # smallest distinguishable radius, pixels
_OUTLINE = 3.0  # pixels


def draw(position: np.ndarray, size: np.ndarray, fill: np.ndarray, outline: np.ndarray) -> np.ndarray:
    """Return a frame of discs at `position` [E, 2] with radius `size` [E] and colours [E, 3], [320, 320, 3] uint8.

    The view is the square of half-width 1.25 around the origin, wider if a disc would not fit; y points up. The drawn
    border is the square of half-width 1 in which games start. Large discs are drawn first, below smaller ones.
    """
    half = max(VIEW, float(np.max(np.abs(position) + size[:, None], initial=0.0)))
    scale = SIDE / 2 / half
    image = np.full((SIDE, SIDE, 3), _PAPER, dtype=np.uint8)
    low, high = round(SIDE / 2 - scale), round(SIDE / 2 + scale) - 1
    image[[low, high], low : high + 1] = _FRAME
    image[low : high + 1, [low, high]] = _FRAME
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    for i in np.argsort(-size, kind="stable"):
        radius = max(float(size[i]) * scale, _SMALLEST)
        distance = np.hypot(x - (SIDE / 2 + position[i, 0] * scale), y - (SIDE / 2 - position[i, 1] * scale))
        image[distance <= radius] = DARK
        image[distance <= radius - 1] = outline[i]
        image[distance <= radius - _OUTLINE] = fill[i]
    return image
