"""`GymnasiumEnv`: n parallel copies (games) of any Gymnasium environment as one `VecEnv`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, ContinuousActions, EnvSpec
from llmrl.core.trust import NO_FURTHER_TRUST, Trust
from llmrl.envs.env_errors import ENCODING_ERROR_TYPES, build_observation_error, check_rewards, name_env_in_errors
from llmrl.envs.gym.channel_spaces import LazyTextArray, build_channels, convert_actions, find_continuous_actions
from llmrl.envs.gym.env_factory import Engine, EnvFactory, make_gymnasium_env
from llmrl.envs.gym.episode_scores import ReturnScale, SuccessCriterion, SuccessQuantity
from llmrl.envs.gym.replayable import ReplayableEnv

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    import gymnasium

    from llmrl.envs.gym.evaluator import GymEvaluator
    from llmrl.envs.texts.describers import Describer


@dataclass(frozen=True)
class GymnasiumSettings:
    """Options of `GymnasiumEnv`; meanings, units and ranges are in `conf/env/gymnasium.yaml`."""

    id: str
    name: str | None
    kwargs: Mapping[str, Any] | None
    n_envs: PositiveInt
    horizon: PositiveInt | None
    engine: Engine
    success: SuccessQuantity | None
    success_threshold: float | None
    progress: ReturnScale | None
    text: str | None
    render: bool


class GymnasiumEnv(ReplayableEnv):
    """A vectorized environment of `n_envs` games with one agent each.

    **Observation.** `vector` [n_envs, 1, k] float32: every number of the observation, categories one-hot; `state`
    [n_envs, 1] int64 if the observation is a state index; `pixels` [n_envs, 1, height, width, channels] uint8 if it is
    an image; `text` [n_envs, 1] with the option `text`; `action_mask` [n_envs, 1, n_actions] bool if the environment
    reports legal actions (`info["action_mask"]`).

    **Action.** One of `n_actions`, or several numbers (`spec.continuous_actions`), which are clipped to their bounds.

    **Reward.** The reward of the Gymnasium environment.

    After a resume, a game continues exactly: its episode is replayed from its seed and actions. This requires an
    environment whose episodes depend only on these. Gymnasium's environments that keep state across resets
    (BipedalWalker, CarRacing) are created anew for each episode; other such environments cannot be detected.

    Args:
        settings: options of the environment.
        seeds: the environment's node of the seed tree.
        trust: modules that `id` and `text` may name.

    Raises:
        ConfigError: the environment is unknown, a module is not trusted, a package is missing, the action space is
            unsupported, no observation is usable, or `success` and `success_threshold` do not fit each other.
    """

    settings: GymnasiumSettings

    def __init__(self, settings: GymnasiumSettings, seeds: Seeds, trust: Trust = NO_FURTHER_TRUST) -> None:
        super().__init__(settings, seeds, trust)
        n_envs = settings.n_envs
        kwargs, name = dict(settings.kwargs or {}), settings.name or settings.id
        self._success_criterion = SuccessCriterion.from_options(settings.success, settings.success_threshold)
        self.clip_actions = True  # An agent may set this to False, so that its actions reach the games unchanged.
        self.env_factory = EnvFactory(settings.id, kwargs, settings.horizon, settings.engine, trust)
        self._games = self.env_factory.make(n_envs, settings.render)
        continuous_actions = find_continuous_actions(self._games.action_space, name)
        self._returns, self._max_rewards = np.zeros(n_envs), np.full(n_envs, -np.inf)
        # Only a reset shows whether infos contain an action mask.
        self._observations = self._games.reset(np.zeros(n_envs, dtype=np.int64), np.ones(n_envs, dtype=bool))
        self._has_action_mask = "action_mask" in self._games.infos[0]
        self._return_scale = settings.progress
        if self._return_scale is not None and not self._return_scale.applies_to(self._games.horizon, kwargs):
            horizon, reference_kwargs = self._return_scale.horizon, dict(self._return_scale.kwargs)
            message = "env.progress was measured with horizon=%s and kwargs=%s, so this run has no metric progress"
            log.info(message, horizon, reference_kwargs)
            self._return_scale = None
        self._describer: Describer | None = None
        if settings.text is not None:
            from llmrl.envs.texts import build_describer

            self._describer = build_describer(settings.text, self.env_factory, self._success_criterion)
        self._channels = build_channels(self._games.observation_space)
        self.spec = self._build_spec(name, continuous_actions)

    def _build_spec(self, name: str, continuous_actions: ContinuousActions | None) -> EnvSpec:
        from gymnasium import spaces

        action_space = self._games.action_space
        n_actions = int(action_space.n) if isinstance(action_space, spaces.Discrete) else 0
        text = None if self._describer is None else self._describer.game
        if self._describer is not None and text is not None:
            text = replace(text, example=self._describer.describe(self._observations[0], self._games.infos[0]))
        action_names = tuple(key for key, _ in text.actions) if text is not None else ()
        channels = {name: channel for name, (channel, _) in self._channels.items()}
        if text is not None:
            channels["text"] = Channel((), "object")
        if self._has_action_mask and n_actions:
            channels["action_mask"] = Channel((n_actions,), "bool", 0, 1)
        if not channels:
            raise ConfigError(
                f"no observation of {name} can be converted to numbers or images: {self._games.observation_space}; set "
                "env.text to convert it to text"
            )
        scores = {"success": self._success_criterion, "progress": self._return_scale}
        return EnvSpec(
            name=name,
            n_envs=self._games.n,
            n_agents=1,
            observation=channels,
            n_actions=n_actions,
            action_names=action_names if len(action_names) == n_actions else tuple(str(i) for i in range(n_actions)),
            horizon=self._games.horizon,
            metrics={score: "last" for score, definition in scores.items() if definition is not None},
            continuous_actions=continuous_actions,
            text=text,
            max_return=self._return_scale.best
            if self._return_scale is not None and self._return_scale.is_maximum
            else None,
            endless=not self._games.always_ends,
        )

    def _begin_episodes(self, reset_mask: np.ndarray) -> None:
        self._observations = self._games.reset(self._episode_seeds, reset_mask)
        self._returns[reset_mask], self._max_rewards[reset_mask] = 0.0, -np.inf

    def _build_step(self, reward: np.ndarray, active: np.ndarray) -> Step:
        step_reward, info = reward.astype(np.float32)[:, None], {}
        if self._success_criterion is not None:
            success = self._success_criterion.is_met(self._returns, self._max_rewards, self._terminated)
            info["success"] = (success & (self._episode_counts > 0)).astype(np.float32)
        if self._return_scale is not None:
            info["progress"] = self._return_scale.score(self._returns).astype(np.float32)
        return Step(
            self._observe(), step_reward, step_reward.copy(), self._terminated.copy(), self._truncated.copy(), info
        )

    def _advance(self, action: np.ndarray, active: np.ndarray) -> np.ndarray:
        actions = convert_actions(self._games.action_space, action, self.clip_actions)
        self._observations, reward, terminated, truncated = self._games.step(actions, active)
        check_rewards(self.spec.name, reward, self._episode_lengths)
        self._terminated |= terminated
        self._truncated |= truncated
        self._returns += reward
        np.maximum(self._max_rewards, reward, out=self._max_rewards, where=active)
        return reward

    def _observe(self) -> Observation:
        try:
            observation: Observation = {
                name: encode(self._observations) for name, (_, encode) in self._channels.items()
            }
        except ENCODING_ERROR_TYPES as cause:
            space = self._games.observation_space
            for element, step in zip(self._observations, self._episode_lengths.tolist(), strict=True):
                if not space.contains(element):
                    raise build_observation_error(self.spec.name, space, element, step) from cause
            raise
        observations, infos, describer = self._observations, self._games.infos, self._describer
        if describer is not None:
            observation["text"] = LazyTextArray(
                (self._games.n, 1), lambda game, agent: describer.describe(observations[game], infos[game])
            )
        if "action_mask" in self.spec.observation:
            if not all("action_mask" in info for info in infos):
                raise EngineError(
                    f"{self.spec.name} reported legal actions (info['action_mask']) at first, but not later; it must "
                    "report them in every reset and step, or never"
                )
            observation["action_mask"] = np.array([info["action_mask"] for info in infos], dtype=bool)[:, None]
        return observation

    def render(self, index: int = 0) -> np.ndarray:
        return self._games.render(index)

    def make_single_game(self) -> GymnasiumEnv:
        """Return a new environment with the same options and one game, not reset yet."""
        return name_env_in_errors(GymnasiumEnv(replace(self.settings, n_envs=1), self._seed_tree, self._trust))

    def make_gymnasium_env(self) -> gymnasium.Env[Any, Any]:
        """Return a new Gymnasium environment with the same options."""
        return make_gymnasium_env(replace(self.env_factory, engine="stock"), render=False)

    def build_evaluator(self, clip_actions: bool, workers: int | None) -> GymEvaluator:
        """Return an evaluator of controllers, which plays episodes in `workers` processes (None: one per core)."""
        from llmrl.envs.gym.evaluator import EpisodeRules, GymEvaluator

        return GymEvaluator(EpisodeRules(self.env_factory, clip_actions, self._success_criterion), workers)

    def fork(self, state: State, seed: int) -> None:
        self.load_state_dict(state)
        n, tree = self.spec.n_envs, Seeds(seed).child("fork")
        seeds = np.array([tree.integer(i) for i in range(n)], dtype=np.int64)
        self._forks.append((self._episode_lengths.copy(), seeds))
        self._reseed(seeds, np.ones(n, dtype=bool))

    def _reseed(self, seeds: np.ndarray, mask: np.ndarray) -> None:
        self._games.reseed(seeds, mask)

    def close(self) -> None:
        self._games.close()
