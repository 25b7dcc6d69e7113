"""`ParticlesEnv`: n parallel copies (games) of a particle environment as a `VecEnv`."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Array, Observation, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.envs.array_games import ArrayGames
from llmrl.envs.env_errors import name_env_in_errors
from llmrl.envs.particles.physics import ParticleWorld
from llmrl.envs.particles.scenario import OUTLINE_COLOR, Scenario


class ParticlesEnv(ArrayGames):
    """A vectorized environment of `n_envs` games of a scenario (`simple_spread`, ...).

    **Agents** have the order of `spec.agent_names`, which is that of `mpe2`: in simple_tag adversaries before good
    agents, in simple_speaker_listener the speaker before its listeners.

    **Observation.** `vector` [n_envs, n_agents, D] float32: each agent's observation, padded with zeros to the longest;
    `spec.observation["vector"].parts` names its entries (`llmrl.envs.particles.scenario`). `action_mask`
    [n_envs, n_agents, n_actions] bool, only if agents have different actions.

    **End.** An episode is truncated after `horizon` steps and never terminates.

    Args:
        seeds: seed tree of the environment.
        scenario: scenario of the games.
        n_envs: number of games.
        horizon: number of steps of 0.1 seconds after which an episode is truncated.
    """

    _state_fields = ("_rngs", "world", "_started", "_time", "_ended")
    _stream_name = "starts"

    def __init__(self, seeds: Seeds, scenario: Scenario, n_envs: PositiveInt = 32, horizon: PositiveInt = 25) -> None:
        self._init_arguments = {name: x for name, x in locals().items() if name not in ("self", "n_envs")}
        self._scenario, self._horizon = scenario, horizon
        bodies, n_actions = scenario.bodies, len(scenario.action_names)
        channels = {"vector": Channel((scenario.vector_width,), "float32", parts=scenario.vector_slices)}
        self._legal_actions: np.ndarray | None = None
        if scenario.legal_actions is not None:
            channels["action_mask"] = Channel((n_actions,), "bool", 0, 1)
            self._legal_actions = np.broadcast_to(scenario.legal_actions, (n_envs, *scenario.legal_actions.shape))
        self.spec = EnvSpec(
            name=scenario.name,
            n_envs=n_envs,
            n_agents=bodies.n_agents,
            observation=channels,
            n_actions=n_actions,
            action_names=scenario.action_names,
            horizon=horizon,
            metrics=scenario.metrics,
            agent_names=bodies.agent_names,
        )
        self.world = ParticleWorld(bodies, n_envs, scenario.message_dim, len(scenario.guide_pairs))
        self._reseed([(seeds, self._stream_name)])
        self._started = np.zeros(n_envs, dtype=bool)
        self._time = np.zeros(n_envs, dtype=np.int64)
        self._ended = np.ones(n_envs, dtype=bool)

    def make_single_game(self) -> ParticlesEnv:
        """Return a new environment with the same options and one game, not reset yet."""
        options: Any = self._init_arguments
        return name_env_in_errors(ParticlesEnv(**options, n_envs=1))

    @property
    def _started_mask(self) -> np.ndarray:
        return self._started

    def _begin_episodes(self, reset_mask: np.ndarray) -> None:
        position, goal_landmark = self._sample(self._scenario.sample_start)
        self.world.reset(reset_mask, position, goal_landmark)
        self._time[reset_mask] = 0
        self._ended[reset_mask] = False
        self._started |= reset_mask

    def step(self, action: Array) -> Step:
        """Advance all games by `action` [n_envs, n_agents]. Games that have ended do not change.

        Raises:
            ValueError: the shape is wrong, an action does not exist or is illegal, or a game was never reset.
        """
        actions = self._check_actions(action)
        active = ~self._ended
        self._time += active
        self._ended |= self._time >= self._horizon
        self.world.step(*self._scenario.decode_actions(actions), active)
        reward = self._scenario.compute_rewards(self.world) * active[:, None]
        info = {name: metric * active for name, metric in self._scenario.compute_metrics(self.world).items()}
        return self._build_step(reward, reward, np.zeros(self.spec.n_envs, dtype=bool), self._ended, info)

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of game `index`, [320, 320, 3] uint8.

        Agents have distinct colors; obstacles are gray, and so are landmarks unless they can be goals. The outline of
        an agent with a goal has the color of its landmark.
        """
        fill_colors, outline_colors = self._scenario.compute_colors(self.world.goal_landmark[index])
        return draw_frame(self.world.position[index], self.world.bodies.radius, fill_colors, outline_colors)

    def _check_actions(self, action: Array) -> np.ndarray:
        actions = super()._check_actions(action)
        if self._legal_actions is not None:
            is_legal = np.take_along_axis(self._legal_actions, actions[..., None], axis=2)[..., 0]
            if not is_legal.all():
                game, agent = np.argwhere(~is_legal)[0]
                name = self.spec.action_names[actions[game, agent]]
                raise ValueError(
                    f"{self.spec.agent_names[agent]} cannot take the action {name}; take one that is legal in "
                    "action_mask"
                )
        return actions

    def _observe(self) -> Observation:
        masks = {} if self._legal_actions is None else {"action_mask": self._legal_actions.copy()}
        return {"vector": self._scenario.observe(self.world), **masks}


FRAME_SIDE = 320  # width and height of a frame, in pixels
MIN_VIEW_HALF_WIDTH = 1.25  # minimum of half the width of the square that a frame shows, in length units
_BACKGROUND_GRAY, _BORDER_GRAY = 244, 205
_MIN_DISC_RADIUS = 7.0  # minimum radius of a disc in a frame, in pixels
_OUTLINE_WIDTH = 3.0  # in pixels


def draw_frame(position: np.ndarray, radius: np.ndarray, fill: np.ndarray, outline: np.ndarray) -> np.ndarray:
    """Return a frame [320, 320, 3] uint8 of discs with their `position` [E, 2], `radius` [E] and RGB colors [E, 3].

    A frame shows the square with coordinates in [-1.25, 1.25], or a larger one if a disc would not fit; y points up. A
    line marks the square [-1, 1] in which episodes start. Small discs are drawn over larger ones.
    """
    half_width = max(MIN_VIEW_HALF_WIDTH, float(np.max(np.abs(position) + radius[:, None], initial=0.0)))
    scale = FRAME_SIDE / 2 / half_width
    image = np.full((FRAME_SIDE, FRAME_SIDE, 3), _BACKGROUND_GRAY, dtype=np.uint8)
    border_start, border_end = round(FRAME_SIDE / 2 - scale), round(FRAME_SIDE / 2 + scale) - 1
    image[[border_start, border_end], border_start : border_end + 1] = _BORDER_GRAY
    image[border_start : border_end + 1, [border_start, border_end]] = _BORDER_GRAY
    y, x = np.mgrid[:FRAME_SIDE, :FRAME_SIDE] + 0.5
    for i in np.argsort(-radius, kind="stable"):
        pixel_radius = max(float(radius[i]) * scale, _MIN_DISC_RADIUS)
        distance = np.hypot(
            x - (FRAME_SIDE / 2 + position[i, 0] * scale), y - (FRAME_SIDE / 2 - position[i, 1] * scale)
        )
        image[distance <= pixel_radius] = OUTLINE_COLOR
        image[distance <= pixel_radius - 1] = outline[i]
        image[distance <= pixel_radius - _OUTLINE_WIDTH] = fill[i]
    return image
