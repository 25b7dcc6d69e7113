"""`PettingZooEnv`: many games of any PettingZoo world as one `VecEnv`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Observation, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvSpec, ParameterSpace
from llmrl.core.trust import NOBODY, Trust
from llmrl.envs.env_errors import guarded
from llmrl.envs.gym.faults import check_rewards
from llmrl.envs.gym.lazy_texts import LazyTextArray
from llmrl.envs.gym.replayable import ReplayableEnv
from llmrl.envs.mechanisms import RewardTax, Settlement, SocietyEvents
from llmrl.envs.pettingzoo.agent_channels import SharedChannels
from llmrl.envs.pettingzoo.declarations import cycles_of, mechanism_of, metrics_of
from llmrl.envs.pettingzoo.factory import Library, WorldFactory
from llmrl.envs.pettingzoo.games import game_of
from llmrl.envs.pettingzoo.texts import WorldTexts


class PettingZooEnv(ReplayableEnv):
    """A vectorised environment of `n_envs` games of a PettingZoo world, stepped one after another in this process.

    **Agents** are the world's `possible_agents`, in this order. A step of a `ParallelEnv` takes the actions of all; a
    step of an `AECEnv` is one agent's turn, and the actions of the others are ignored.

    **Observation.** `vector` [n_envs, n_agents, k] float32: every number of an agent's observation, categories one-hot,
    filled up with zeros to the longest; `state` [n_envs, n_agents] int64 if observations are state indices; `pixels`
    where they are pictures; `text` [n_envs, n_agents] if there is a text interface; `mechanism` [n_envs, n_agents, d]
    float32 if it is shown. `action_mask` [n_envs, n_agents, n_actions] bool: the world's own, in the observation or in
    the info. Of an agent that has nothing to decide (it is not its turn, or it has died) the first action alone is
    legal; it is ignored, and its text is "". An agent that has died observes zeros (death masking, arXiv 2103.01955).

    **Action.** One of the largest number of actions of any agent; or several numbers, which are clipped to the agent's
    bounds. Numbers that an agent does not have are ignored.

    **Reward.** The world's own: of an `AECEnv`, what each agent got in that turn. 0 for agents that have died. The
    rewards of an agent from its turn to its next one add up to the cumulative reward that `AECEnv.last` returns there,
    and the text of the next turn contains this sum. A world with a mechanism of its own may say in infos what a reward
    was before it (`base_reward`).

    **Mechanism.** The world's own (`declarations.mechanism_of`), or a tax around its rewards (`tax`).

    **End.** When no agent is left: truncated if all who were left were truncated together, else terminated. Truncated
    after `horizon` steps.

    After a resume, a game continues exactly: its episode is replayed from its seed, actions and mechanism. This
    requires a world that is a function of these. A world that begins differently twice from one seed is found out
    (`spec.deterministic` is false then, and a resume begins new games).

    Args:
        seeds: the environment's node of the seed tree.
        id: `module:function` of the world, or OpenSpiel's name of a game.
        name: name of the environment in messages; None: the world's own.
        kwargs: arguments of the function; parameters of OpenSpiel's game.
        library: whose names ids are.
        n_envs: games in lock step.
        horizon: steps after which an episode is truncated; None: the world's own number (`max_cycles`), if it has one.
        tax: whether a principal can set a tax on positive rewards (`llmrl.envs.mechanisms.RewardTax`).
        show_mechanism: whether agents observe the mechanism's values.
        text: text interface of the world: `auto`, a shipped text, a file, `package.Class`, or `own`; None: none.
        render: whether `render` works, as videos need.
        trust: modules that `id` and `text` may name.

    Attributes:
        clip_actions: whether real numbers are clipped to their bounds; an agent may turn this off.

    Raises:
        ConfigError: an unknown or untrusted world, a missing package, an unsupported action space, nothing that can be
            observed, or a tax on a world that has a mechanism.
    """

    def __init__(
        self,
        seeds: Seeds,
        id: str,
        name: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        library: Library = "pettingzoo",
        n_envs: PositiveInt = 8,
        horizon: PositiveInt | None = None,
        tax: bool = False,
        show_mechanism: bool = False,
        text: str | None = "auto",
        render: bool = False,
        trust: Trust = NOBODY,
    ) -> None:
        super().__init__(n_envs, seeds.integer("games"))
        self._made_of = {name: x for name, x in locals().items() if name not in ("self", "n_envs", "__class__")}
        self.clip_actions = True
        factory = WorldFactory(id, dict(kwargs or {}), library, trust)
        first = factory.make(render)
        called = name or str(getattr(first, "metadata", {}).get("name") or id)
        turns = hasattr(first, "agent_iter")
        cycles = cycles_of(first)
        limits = [horizon, None if cycles is None else cycles * (len(first.possible_agents) if turns else 1)]
        shortest = min((limit for limit in limits if limit is not None), default=None)
        worlds = [first, *(factory.make(render) for _ in range(n_envs - 1))]
        self.games = [game_of(called, world, shortest) for world in worlds]
        self._shared = SharedChannels(called, first, self.games[0].agents)
        self._own = mechanism_of(called, first)
        self._tax = RewardTax() if tax else None
        self._settled: Settlement | None = None  # the last step
        if self._own is not None and tax:
            raise ConfigError(f"{called} has a mechanism of its own ({', '.join(self._own.names)}): set env.tax=false")
        space = self._tax.spec if self._tax is not None else self._own
        if show_mechanism and space is None:
            raise ConfigError(f"show_mechanism=true: {called} has no mechanism; set env.tax=true, or show nothing")
        if space is not None:
            self._values = np.tile(space.neutral, (n_envs, 1))
        self._show_mechanism, self._metrics = show_mechanism, metrics_of(called, first)
        deterministic = self._begins_alike(called)
        self._texts = None
        if text is not None:
            self._texts = WorldTexts(
                text,
                self.games[0],
                self._shared.views,
                called,
                dict(kwargs or {}),
                turns,
                space,
                show_mechanism,
                RewardTax.base_reward,
                RewardTax.rule if tax else "",
                trust,
            )
        # Rewards of the last step before the mechanism, and since each agent's last observation before and after it.
        self._base_reward = np.zeros((n_envs, len(self._shared.agents)))
        self._cumulative = np.zeros((n_envs, len(self._shared.agents), 2))
        self.spec = self._describe(called, shortest, space, deterministic, factory.ends)

    def _begins_alike(self, name: str) -> bool:
        """Whether a seed decides how the first game begins; it has begun then."""
        game, seen = self.games[0], []
        for _ in range(2):
            if self._own is not None:
                game.impose(self._values[0])
            game.reset(0)
            seen.append(self._shared.observe([game]))
        return all(np.array_equal(seen[0][channel], seen[1][channel]) for channel in seen[0])

    def _describe(
        self, name: str, horizon: int | None, space: ParameterSpace | None, deterministic: bool, ends: bool
    ) -> EnvSpec:
        shared, text = self._shared, None if self._texts is None else self._texts.description
        channels = dict(shared.channels)
        if text is not None:
            channels["text"] = Channel((), "object")
        if space is not None and self._show_mechanism:
            bounds = float(space.low.min()), float(space.high.max())
            channels["mechanism"] = Channel((space.dim,), "float32", *bounds)
        if not set(channels) - {"action_mask", "mechanism"}:
            raise ConfigError(f"nothing of what {name} shows can be given to an agent; put it into words with env.text")
        own = tuple(key for key, _ in text.actions) if text is not None else ()
        metrics: dict[str, Aggregate] = {**self._metrics, **({} if self._tax is None else self._tax.metrics)}
        return EnvSpec(
            name=name,
            n_envs=len(self.games),
            n_agents=len(shared.agents),
            observation=channels,
            n_actions=shared.n_actions,
            action_names=own if len(own) == shared.n_actions else tuple(str(i) for i in range(shared.n_actions)),
            horizon=horizon,
            mechanism=space,
            metrics=metrics,
            has_reward_jacobian=self._tax is not None,
            deterministic=deterministic,
            agent_names=shared.agents,
            continuous_actions=shared.numbers,
            text=text,
            endless=horizon is None and not ends,
        )

    def _begin(self, chosen: np.ndarray) -> None:
        for i in np.flatnonzero(chosen).tolist():
            if self._own is not None:
                self.games[i].impose(self._values[i])
            self.games[i].reset(int(self._seeds[i]))
        self._base_reward[chosen], self._cumulative[chosen] = 0.0, 0.0

    def _advance(self, action: np.ndarray, playing: np.ndarray) -> np.ndarray:
        """Advance the games that are `playing` [n_envs]; return rewards after the mechanism, [n_envs, n_agents]."""
        actions = self._shared.actions(action, self.games, playing, self.clip_actions)
        observing = np.array([[agent in game.deciding for agent in game.agents] for game in self.games])
        self._cumulative[observing & playing[:, None]] = 0.0
        reward = np.zeros((len(self.games), len(self._shared.agents)))
        base = np.zeros_like(reward)
        for i in np.flatnonzero(playing).tolist():
            game = self.games[i]
            if self._own is not None:
                game.impose(self._values[i])
            game.step(actions[i])
            for j, agent in enumerate(self._shared.agents):
                reward[i, j] = game.rewards.get(agent, 0.0)
                base[i, j] = game.told.get(agent, {}).get("base_reward", reward[i, j])
            self._terminated[i], self._truncated[i] = game.terminated, game.truncated
        for each in (reward, base):
            check_rewards(self.spec.name, each.ravel(), np.repeat(self._length, each.shape[1]))
        if self._tax is not None:
            present = np.array([[agent in game.present for agent in game.agents] for game in self.games])
            events = SocietyEvents(reward.astype(np.float32), None, present & playing[:, None])
            values = self._values.astype(np.float32)
            self._settled = self._tax.settle(events, values)
            base, reward = events.raw, self._settled.reward(values)
        self._base_reward = base * playing[:, None]
        self._cumulative[playing] += np.stack((base, reward), -1)[playing]
        return reward

    def _step(self, reward: np.ndarray, playing: np.ndarray) -> Step:
        info = {name: self._metric(name, playing) for name in self._metrics}
        if self._settled is not None:
            info |= {name: np.asarray(x, dtype=np.float32) for name, x in self._settled.metrics.items()}
        return Step(
            observation=self._observe(),
            reward=reward.astype(np.float32),
            base_reward=self._base_reward.astype(np.float32),
            terminated=self._terminated.copy(),
            truncated=self._truncated.copy(),
            info=info,
            reward_jacobian=None if self._settled is None else self._settled.reward_jacobian,
        )

    def _metric(self, name: str, playing: np.ndarray) -> np.ndarray:
        """A number of infos, added over the agents that report it, [n_envs] float32."""
        sums = [sum(float(info.get(name, 0.0)) for info in game.told.values()) for game in self.games]
        total: np.ndarray = (np.array(sums) * playing).astype(np.float32)
        return total

    def _observe(self) -> Observation:
        observation = self._shared.observe(self.games)
        if "mechanism" in self.spec.observation:
            shown = self._values.astype(np.float32)[:, None]
            observation["mechanism"] = np.repeat(shown, self.spec.n_agents, axis=1)
        if self._texts is not None:
            observation["text"] = self._told(self._texts)
        return observation

    def _told(self, texts: WorldTexts) -> LazyTextArray:
        # Games replace these in a step, and change none of them.
        kept = [(game.seen, game.infos, game.deciding, game.steps) for game in self.games]
        values, cumulative, agents = self._values, self._cumulative.copy(), self._shared.agents

        def tell(game: int, agent: int) -> str:
            name, (seen, infos, deciding, steps) = agents[agent], kept[game]
            if name not in deciding:
                return ""
            before, after = cumulative[game, agent].tolist()
            imposed = values[game] if values.shape[1] else None
            return texts.told(name, seen[name], infos.get(name, {}), imposed, (before, after) if steps else None)

        return LazyTextArray((len(kept), len(agents)), tell)

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of game `index`, [height, width, 3] uint8; needs `render=True`."""
        return np.asarray(self.games[index].world.render())

    def one_game(self) -> PettingZooEnv:
        """Return the same environment with a single independent game."""
        return guarded(PettingZooEnv(**self._made_of, n_envs=1))

    def close(self) -> None:
        for game in self.games:
            game.world.close()
