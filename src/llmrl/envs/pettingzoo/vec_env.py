"""`PettingZooEnv`: n copies of a world (a PettingZoo environment) as one `VecEnv`. Game: a copy and its episode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.records import Observation, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvSpec, ParameterSpace
from llmrl.core.trust import NO_FURTHER_TRUST, Trust
from llmrl.envs.env_errors import check_rewards, name_env_in_errors
from llmrl.envs.gym.channel_spaces import LazyTextArray
from llmrl.envs.gym.replayable import ReplayableEnv
from llmrl.envs.mechanisms import RewardTax, Settlement, SocietyEvents
from llmrl.envs.pettingzoo.agent_channels import SharedChannels
from llmrl.envs.pettingzoo.factory import PettingZooSettings, WorldFactory
from llmrl.envs.pettingzoo.games import AECGame, ParallelGame, read_max_cycles, read_mechanism, read_metrics
from llmrl.envs.pettingzoo.texts import WorldTexts


class PettingZooEnv(ReplayableEnv):
    """A vectorized environment of `n_envs` games of one world, stepped one after another in this process.

    **Agents** are the world's `possible_agents`, in this order. A step of a `ParallelEnv` uses the actions of all; a
    step of an `AECEnv` is one agent's turn, and the actions of the others are ignored. A dead agent has left the game,
    in which others may still act.

    **Observation.** `vector` [n_envs, n_agents, k] float32: every number of an agent's observation, categories one-hot,
    padded with zeros to the longest; `state` [n_envs, n_agents] int64 if observations are state indices; `pixels`
    if they are images; `text` [n_envs, n_agents] with the option `text`; `mechanism` [n_envs, n_agents, d] float32 with
    the option `show_mechanism`. `action_mask` [n_envs, n_agents, n_actions] bool: the mask in the world's observation
    or info. For an agent without a decision (it is not its turn, or it is dead), only action 0 is legal; it is ignored,
    and the text is "". A dead agent observes zeros (death masking, arXiv 2103.01955).

    **Action.** One of `n_actions`, the largest number of actions of any agent; or several numbers, which are clipped to
    the agent's bounds. Numbers beyond the size of an agent's action space are ignored.

    **Reward.** The world's reward; in an `AECEnv`, the reward of each agent in that turn. It is 0 for dead agents. The
    rewards of an agent from its turn to its next one add up to the cumulative reward that `AECEnv.last` returns there,
    and the text of the next turn contains this sum. A world that declares a mechanism may report the reward before its
    payments in infos (`base_reward`).

    **Mechanism.** The one that the world declares (`games.read_mechanism`), or a tax on its rewards (`tax`).

    **End.** An episode ends when no agent is left: it is truncated if all remaining agents were truncated in the same
    step, else terminated. It is also truncated after `horizon` steps.

    After a resume, a game continues exactly: its episode is replayed from its seed, actions and mechanism. This
    requires a world whose episodes depend only on these. If two resets with the same seed return different
    observations, `spec.deterministic` is false, and a resume starts new episodes.

    Args:
        settings: options of the environment.
        seeds: the environment's node of the seed tree.
        trust: modules that `id` and `text` may name.

    Attributes:
        clip_actions: whether real numbers are clipped to their bounds; an agent may set it to False.

    Raises:
        ConfigError: the world is unknown or not trusted, a package is missing, the action space is not supported, no
            observation is usable, or `tax` is set for a world that declares a mechanism.
    """

    settings: PettingZooSettings

    def __init__(self, settings: PettingZooSettings, seeds: Seeds, trust: Trust = NO_FURTHER_TRUST) -> None:
        n_envs = settings.n_envs
        super().__init__(settings, seeds, trust)
        self.clip_actions = True
        factory = WorldFactory(settings.id, dict(settings.kwargs or {}), settings.library, trust)
        first_world = factory.make(settings.render)
        name = settings.name or str(getattr(first_world, "metadata", {}).get("name") or settings.id)
        is_turn_based = hasattr(first_world, "agent_iter")  # an AECEnv
        max_cycles = read_max_cycles(first_world)
        steps_per_cycle = len(first_world.possible_agents) if is_turn_based else 1
        step_limits = [settings.horizon, None if max_cycles is None else max_cycles * steps_per_cycle]
        horizon = min((limit for limit in step_limits if limit is not None), default=None)
        worlds = [first_world, *(factory.make(settings.render) for _ in range(n_envs - 1))]
        game_class = AECGame if is_turn_based else ParallelGame
        self.games = [game_class(name, world, horizon) for world in worlds]
        self._channels = SharedChannels(name, first_world, self.games[0].agents)
        self._world_mechanism = read_mechanism(name, first_world)
        self._tax = RewardTax() if settings.tax else None
        self._settlement: Settlement | None = None  # settlement of the last step
        if self._world_mechanism is not None and settings.tax:
            raise ConfigError(
                f"{name} has its own mechanism ({', '.join(self._world_mechanism.names)}), so it cannot have a tax; "
                "set env.tax=false"
            )
        mechanism_space = self._tax.space if self._tax is not None else self._world_mechanism
        if settings.show_mechanism and mechanism_space is None:
            raise ConfigError(
                f"env.show_mechanism=true, but {name} has no mechanism; set env.tax=true, or env.show_mechanism=false"
            )
        if mechanism_space is not None:
            self._mechanism_values = np.tile(mechanism_space.neutral, (n_envs, 1))
        self._metric_aggregates = read_metrics(name, first_world)
        is_deterministic = self._check_reproducibility(name)
        self._world_texts = (
            None
            if settings.text is None
            else WorldTexts(settings, self.games[0], self._channels.interfaces, mechanism_space, trust)
        )
        # Rewards of the last step before the mechanism's payments; and the sums of rewards since each agent's last
        # observation, [..., 0] before and [..., 1] after these payments.
        self._base_reward = np.zeros((n_envs, len(self._channels.agents)))
        self._cumulative_rewards = np.zeros((n_envs, len(self._channels.agents), 2))
        self.spec = self._build_spec(name, horizon, mechanism_space, is_deterministic, factory.always_ends)

    def _check_reproducibility(self, name: str) -> bool:
        """Return whether two resets of the first game with the same seed return the same observations."""
        game, observations = self.games[0], []
        for _ in range(2):
            if self._world_mechanism is not None:
                game.set_mechanism(self._mechanism_values[0])
            game.reset(0)
            observations.append(self._channels.observe([game]))
        return all(np.array_equal(observations[0][channel], observations[1][channel]) for channel in observations[0])

    def _build_spec(
        self, name: str, horizon: int | None, space: ParameterSpace | None, is_deterministic: bool, always_ends: bool
    ) -> EnvSpec:
        """Return the spec; `space` is that of the mechanism's values, and None without a mechanism."""
        text = None if self._world_texts is None else self._world_texts.description
        channels, n_actions = dict(self._channels.channels), self._channels.n_actions
        if text is not None:
            channels["text"] = Channel((), "object")
        if space is not None and self.settings.show_mechanism:
            channels["mechanism"] = Channel((space.dim,), "float32", float(space.low.min()), float(space.high.max()))
        if not set(channels) - {"action_mask", "mechanism"}:
            raise ConfigError(
                f"no observation of {name} can be converted to numbers or images; set env.text to convert it to text"
            )
        action_names = tuple(key for key, _ in text.actions) if text is not None else ()
        metrics: dict[str, Aggregate] = {**self._metric_aggregates, **({} if self._tax is None else self._tax.metrics)}
        return EnvSpec(
            name=name,
            n_envs=len(self.games),
            n_agents=len(self._channels.agents),
            observation=channels,
            n_actions=n_actions,
            action_names=action_names if len(action_names) == n_actions else tuple(str(i) for i in range(n_actions)),
            horizon=horizon,
            mechanism=space,
            metrics=metrics,
            has_reward_jacobian=self._tax is not None,
            deterministic=is_deterministic,
            agent_names=self._channels.agents,
            continuous_actions=self._channels.continuous_actions,
            text=text,
            endless=horizon is None and not always_ends,
        )

    def _begin_episodes(self, reset_mask: np.ndarray) -> None:
        for i in np.flatnonzero(reset_mask).tolist():
            if self._world_mechanism is not None:
                self.games[i].set_mechanism(self._mechanism_values[i])
            self.games[i].reset(int(self._episode_seeds[i]))
        self._base_reward[reset_mask], self._cumulative_rewards[reset_mask] = 0.0, 0.0

    def _advance(self, action: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Advance the games that are `active` [n_envs]; return rewards after the mechanism, [n_envs, n_agents]."""
        actions = self._channels.build_actions(action, self.games, active, self.clip_actions)
        is_acting = np.array([[agent in game.acting_agents for agent in game.agents] for game in self.games])
        self._cumulative_rewards[is_acting & active[:, None]] = 0.0
        reward = np.zeros((len(self.games), len(self._channels.agents)))
        base_reward = np.zeros_like(reward)
        for i in np.flatnonzero(active).tolist():
            game = self.games[i]
            if self._world_mechanism is not None:
                game.set_mechanism(self._mechanism_values[i])
            game.step(actions[i])
            for j, agent in enumerate(self._channels.agents):
                reward[i, j] = game.rewards.get(agent, 0.0)
                base_reward[i, j] = game.step_infos.get(agent, {}).get("base_reward", reward[i, j])
            self._terminated[i], self._truncated[i] = game.terminated, game.truncated
        for rewards in (reward, base_reward):
            check_rewards(self.spec.name, rewards.ravel(), np.repeat(self._episode_lengths, rewards.shape[1]))
        if self._tax is not None:
            is_present = np.array([[agent in game.previous_agents for agent in game.agents] for game in self.games])
            events = SocietyEvents(reward.astype(np.float32), None, is_present & active[:, None])
            self._settlement = self._tax.settle(events, self._mechanism_values.astype(np.float32))
            base_reward, reward = events.raw_reward, self._settlement.reward
        self._base_reward = base_reward * active[:, None]
        self._cumulative_rewards[active] += np.stack((base_reward, reward), -1)[active]
        return reward

    def _build_step(self, reward: np.ndarray, active: np.ndarray) -> Step:
        info: dict[str, np.ndarray] = {}
        for name in self._metric_aggregates:  # summed over the agents that report them
            sums = [sum(float(infos.get(name, 0.0)) for infos in game.step_infos.values()) for game in self.games]
            info[name] = (np.array(sums) * active).astype(np.float32)
        if self._settlement is not None:
            info |= {name: np.asarray(x, dtype=np.float32) for name, x in self._settlement.metrics.items()}
        return Step(
            observation=self._observe(),
            reward=reward.astype(np.float32),
            base_reward=self._base_reward.astype(np.float32),
            terminated=self._terminated.copy(),
            truncated=self._truncated.copy(),
            info=info,
            reward_jacobian=None if self._settlement is None else self._settlement.reward_jacobian,
        )

    def _observe(self) -> Observation:
        observation = self._channels.observe(self.games)
        if "mechanism" in self.spec.observation:
            values = self._mechanism_values.astype(np.float32)[:, None]
            observation["mechanism"] = np.repeat(values, self.spec.n_agents, axis=1)
        if self._world_texts is not None:
            observation["text"] = self._build_lazy_texts(self._world_texts)
        return observation

    def _build_lazy_texts(self, texts: WorldTexts) -> LazyTextArray:
        # Games replace these objects in a step and do not change them.
        snapshots = [(game.observations, game.infos, game.acting_agents, game.n_steps) for game in self.games]
        values, cumulative_rewards, agents = (
            self._mechanism_values,
            self._cumulative_rewards.copy(),
            self._channels.agents,
        )

        def describe(game: int, agent: int) -> str:
            name, (observations, infos, acting_agents, n_steps) = agents[agent], snapshots[game]
            if name not in acting_agents:
                return ""
            game_values = values[game] if values.shape[1] else None
            base_reward, total_reward = cumulative_rewards[game, agent].tolist()
            rewards = (base_reward, total_reward) if n_steps else None
            return texts.describe_observation(name, observations[name], infos.get(name, {}), game_values, rewards)

        return LazyTextArray((len(snapshots), len(agents)), describe)

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of game `index`, [height, width, 3] uint8; needs `render=True`."""
        return np.asarray(self.games[index].world.render())

    def make_single_game(self) -> PettingZooEnv:
        """Return a new environment with the same options and one game, not reset yet."""
        return name_env_in_errors(PettingZooEnv(replace(self.settings, n_envs=1), self._seed_tree, self._trust))

    def close(self) -> None:
        for game in self.games:
            game.world.close()
