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
from llmrl.core.state_fields import ForkableFields
from llmrl.envs.env_errors import guarded
from llmrl.envs.particles.physics import ParticleWorld
from llmrl.envs.particles.scenario import DARK, Scenario


class ParticlesEnv(ForkableFields):
    """A vectorized environment of `n_envs` games of a scenario (`simple_spread`, ...).

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
    """

    _state_fields = ("_rngs", "world", "_started", "_time", "_ended")

    spec: EnvSpec

    def __init__(
        self,
        seeds: Seeds,
        scenario: Scenario,
        n_envs: PositiveInt = 32,
        horizon: PositiveInt = 25,
        engine: Literal["batched", "mpe2"] = "batched",
    ) -> None:
        self._init_kwargs = {name: x for name, x in locals().items() if name not in ("self", "n_envs")}
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
        self._mpe2_games = None
        if engine == "mpe2":
            from llmrl.envs.particles.mpe2_games import Mpe2Games

            self._mpe2_games = Mpe2Games(scenario, n_envs, horizon)
        self._groups = 1
        self._rngs = [seeds.numpy("starts")]  # one for each equal group of games
        self._started = np.zeros(n_envs, dtype=bool)
        self._time = np.zeros(n_envs, dtype=np.int64)
        self._ended = np.ones(n_envs, dtype=bool)

    def one_game(self) -> ParticlesEnv:
        """Return the same environment with a single independent game."""
        options: Any = self._init_kwargs
        return guarded(ParticlesEnv(**options, n_envs=1))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes where `mask` [n_envs] is true (None: all); return every game's observation.

        `seed` reseeds the draw of starts; a sequence seeds equal groups of games separately (`VecEnv.reset`).
        """
        n_envs = self.spec.n_envs
        if seed is not None:
            seeds = seed if isinstance(seed, Sequence) else [seed]
            self._rngs = [Seeds(root_seed).numpy("starts") for root_seed in seeds]
        reset_mask = np.ones(n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        # Starts are drawn for every game, even those in progress, so that a game's draws do not depend on the other
        # games.
        self.world.place(reset_mask, *self._starts())
        if self._mpe2_games is not None:
            self._mpe2_games.start(self.world, reset_mask)
        self._time[reset_mask] = 0
        self._ended[reset_mask] = False
        self._started |= reset_mask
        return self._observe()

    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return positions [n_envs, E, 2] and goals [n_envs, G] of new games."""
        groups = len(self._rngs)
        size = self.spec.games_per_group(groups if groups > 1 else self._groups)
        draws = [self._scenario.draw(rng, size) for rng in self._rngs]
        position, goal = (np.concatenate([draw[i] for draw in draws]) for i in range(2))
        copies = self.spec.n_envs // len(position)
        return np.tile(position, (copies, 1, 1)), np.tile(goal, (copies, 1))

    def step(self, action: Array) -> Step:
        """Advance all games by `action` [n_envs, n_agents]. Games that have ended do not change.

        Raises:
            ValueError: wrong shape, an action does not exist or is not legal for the agent, or a game was never reset.
        """
        actions = self._check_actions(np.asarray(action))
        active = ~self._ended
        self._time += active
        truncated_games = active & (self._time >= self._horizon)
        if self._mpe2_games is None:
            self.world.step(*self._scenario.decode(actions), active)
            reward = self._scenario.reward(self.world) * active[:, None]
        else:
            reward, truncated = self._mpe2_games.step(actions, active, self.world)
            assert np.array_equal(truncated, truncated_games)
        self._ended |= truncated_games
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
        raise ConfigError(f"{self.spec.name} has no mechanism; use principal=none")

    def set_context(self, context: int) -> None:
        """Raise ConfigError: there are no contexts."""
        raise ConfigError(f"{self.spec.name} has no contexts, so context {context} cannot be set")

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of game `index`, [320, 320, 3] uint8.

        Agents have distinct colors; landmarks and obstacles are gray, or colored if they are goals. The outline of an
        agent with a goal has the color of its landmark.
        """
        fill, outline = self._scenario.colors(self.world.goal[index])
        return draw(self.world.position[index], self.world.bodies.size, fill, outline)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if self._mpe2_games is not None:
            self._mpe2_games.resume(self.world, np.ones(self.spec.n_envs, dtype=bool), self._time)

    def close(self) -> None:
        if self._mpe2_games is not None:
            self._mpe2_games.close()

    def _check_actions(self, action: np.ndarray) -> np.ndarray:
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
                    f"{spec.agent_names[agent]} cannot take the action {name}; take one that is legal in action_mask"
                )
        if not self._started.all():
            raise ValueError("reset() must be called before step()")
        return action

    def _observe(self) -> Observation:
        vector = self._scenario.observe(self.world) if self._mpe2_games is None else self._mpe2_games.observe()
        return {"vector": vector} if self._mask is None else {"vector": vector, "action_mask": self._mask.copy()}


FRAME_SIDE = 320  # pixels
MIN_HALF_WIDTH = 1.25  # minimum half-width of the view, units
_PAPER, _FRAME = 244, 205
_MIN_RADIUS = 7.0  # minimum radius of a drawn disc, pixels
_OUTLINE_WIDTH = 3.0  # pixels


def draw(position: np.ndarray, size: np.ndarray, fill: np.ndarray, outline: np.ndarray) -> np.ndarray:
    """Return a frame of discs at `position` [E, 2] with radius `size` [E] and colors [E, 3], [320, 320, 3] uint8.

    The view is the square of half-width 1.25 around the origin, wider if a disc would not fit; y points up. The drawn
    border is the square of half-width 1 in which games start. Large discs are drawn first, below smaller ones.
    """
    half_width = max(MIN_HALF_WIDTH, float(np.max(np.abs(position) + size[:, None], initial=0.0)))
    scale = FRAME_SIDE / 2 / half_width
    image = np.full((FRAME_SIDE, FRAME_SIDE, 3), _PAPER, dtype=np.uint8)
    low, high = round(FRAME_SIDE / 2 - scale), round(FRAME_SIDE / 2 + scale) - 1
    image[[low, high], low : high + 1] = _FRAME
    image[low : high + 1, [low, high]] = _FRAME
    y, x = np.mgrid[:FRAME_SIDE, :FRAME_SIDE] + 0.5
    for i in np.argsort(-size, kind="stable"):
        radius = max(float(size[i]) * scale, _MIN_RADIUS)
        distance = np.hypot(
            x - (FRAME_SIDE / 2 + position[i, 0] * scale), y - (FRAME_SIDE / 2 - position[i, 1] * scale)
        )
        image[distance <= radius] = DARK
        image[distance <= radius - 1] = outline[i]
        image[distance <= radius - _OUTLINE_WIDTH] = fill[i]
    return image
