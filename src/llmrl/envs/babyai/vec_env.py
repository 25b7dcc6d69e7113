"""BabyAI-Text as a `VecEnv`: many games of a level, observed as prompts, as symbols, or with the bot's advice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.records import Observation, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvDescription, EnvSpec
from llmrl.core.trust import NOBODY, Trust
from llmrl.envs.babyai.language import LANGUAGES, LanguageName, action_names, tokens, vocabulary
from llmrl.envs.babyai.level_games import LevelGames, to_minigrid
from llmrl.envs.babyai.missions import in_french
from llmrl.envs.babyai.prompt_builder import PromptBuilder, Template
from llmrl.envs.babyai.sentences import view_describer
from llmrl.envs.env_errors import guarded
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.replayable import ReplayableEnv

if TYPE_CHECKING:
    from llmrl.envs.babyai.experts import Experts

Kind = Literal["per_episode", "goto", "pickup", "open", "putnext", "seq", "legacy"]
Sampling = Literal["direct", "rejection"]

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
"""Codes in the channel `mission`: padding, a word outside the vocabulary, and the vocabulary's first word."""
_MISSION, _LONG_MISSION = 24, 72
"""Maximum number of words of a mission: in most levels, and in levels that join up to four clauses."""
_CODES = (11, 6, 3)


class BabyAIEnv(ReplayableEnv):
    """A vectorised environment of `n_envs` games with one agent each.

    **Observation.** After the first call of `provide`, only the requested channels; before it, all of them.

    - `prompt` [n_envs, 1] of str: the actions, the mission, and the last observations with the actions between them.
    - `text` [n_envs, 1] of str: the mission and the current view in words, as JSON.
    - `view` [n_envs, 1, v, v, 3] uint8: MiniGrid's view, codes of type, colour and state; v is 7 in most levels.
    - `mission` [n_envs, 1, 24] int64 (72 in levels with long missions): indices of its words in `vocabulary` plus 2; 0
      is padding, 1 a word outside the vocabulary.
    - `expert` [n_envs, 1] int64: the action of MiniGrid's bot; -1 if the bot gave up, or if the agent does not have
      that action. Only in BabyAI's levels.

    **Action.** Indices of names that stand for MiniGrid's actions in this order: left, right, forward, pick up, drop,
    toggle; names from the seventh on do nothing.

    **Reward.** In the step that fulfils the mission, `reward_scale` times the level's reward, which is 1 - 0.9 t / T in
    step t of at most T; `base_reward` is the level's reward. T depends on the mission.

    Args:
        seeds: the environment's node of the seed tree.
        level: Gymnasium's id of a level of MiniGrid or BabyAI (docs/babyai_text.md).
        name: name of the environment in messages; None: `level`.
        kwargs: arguments of the level.
        kind: kind of mission in levels with several kinds: drawn from the seed of each episode (`per_episode`), one of
            the kinds, or drawn once for each game (`legacy`, as published).
        sampling: how levels that exclude some missions are drawn (`TextLevel`).
        language: language of prompts, descriptions, missions and actions.
        actions: name of a set of action names, or a list of names.
        replace: replacements of texts, applied one after another to prompts, texts and missions.
        history: number of observations in a prompt.
        template: layout of a prompt.
        reward_scale: factor of the reward.
        n_envs: games in lock step.
        horizon: steps after which an episode is truncated; None: the mission's own number.
        render: whether `render` works, as videos need.
        trust: modules that `level` may name.

    Attributes:
        missions: mission of each game, in words.
        kinds: kind of mission of each game's episode; empty texts in levels of one kind.
        separable: whether an episode does not depend on the game in which it is played.

    Raises:
        ConfigError: unknown level, invalid argument, missions without a French translation, or repeated action names.
    """

    def __init__(
        self,
        seeds: Seeds,
        level: str,
        name: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        kind: Kind = "per_episode",
        sampling: Sampling = "direct",
        language: LanguageName = "en",
        actions: str | list[str] = "canonical",
        replace: Mapping[str, str] | None = None,
        history: PositiveInt = 3,
        template: Template = "glam",
        reward_scale: PositiveFloat = 20.0,
        n_envs: PositiveInt = 32,
        horizon: PositiveInt | None = None,
        render: bool = False,
        trust: Trust = NOBODY,
    ) -> None:
        super().__init__(n_envs, seeds.integer("games"))
        self._made_of = {name: x for name, x in locals().items() if name not in ("self", "n_envs", "__class__")}
        # With one kind for each game, an episode depends on the game in which it is played.
        self.separable = kind != "legacy"
        self._language, self._scale = language, reward_scale
        self._names = action_names(language, actions)
        makers = _makers(level, dict(kwargs or {}), kind, sampling, horizon, n_envs, seeds, trust)
        self._games = LevelGames(makers, render)
        self._teller = view_describer(language, self._games.size, self._games.size)
        self._format = (language, template, self._names, history, dict(replace or {}))
        self._prompts = PromptBuilder(n_envs, *self._format)
        self._words = {word: FIRST_WORD + i for i, word in enumerate(vocabulary(language))}
        possible = set(self.kinds) if kind == "legacy" else set(self._games.kinds)
        self._several = possible if kind in ("per_episode", "legacy") and len(possible) > 1 else set()
        self.missions = [""] * n_envs
        self._told: list[list[str]] = [[] for _ in range(n_envs)]
        self._won = np.zeros(n_envs, dtype=bool)
        self._advice = np.full(n_envs, -1, dtype=np.int64)
        self._experts: Experts | None = None
        self._asked: set[str] | None = None
        longest = self._games.horizon()
        long = _many_clauses(self._games.envs[0])
        self._mission_ids = np.zeros((n_envs, _LONG_MISSION if long else _MISSION), dtype=np.int64)
        self._reads = True
        self._begin_games(np.ones(n_envs, dtype=bool))
        self.spec = self._describe(name or level, longest)
        if "expert" in self.spec.observation:
            self._hire()

    def _describe(self, name: str, longest: int) -> EnvSpec:
        words, size = LANGUAGES[self._language], self._games.size
        does = [words.does[min(i, len(words.does) - 1)] for i in range(len(self._names))]
        text = EnvDescription(
            goal=words.play.format(steps=longest),
            observation=(("mission", words.mission), ("view", words.view)),
            actions=tuple(zip(self._names, does, strict=True)),
            example=self._text(0),
        )
        length, n_words = self._mission_ids.shape[1], FIRST_WORD + len(self._words)
        channels = {
            "prompt": Channel((), "object", continuations=self._prompts.continuations),
            "text": Channel((), "object"),
            "view": Channel((size, size, 3), "uint8", 0, max(_CODES) - 1, codes=_CODES),
            "mission": Channel((length,), "int64", 0, n_words - 1, codes=(n_words,)),
        }
        if self._games.babyai:
            channels["expert"] = Channel((), "int64", -1, len(self._names) - 1)
        metrics: dict[str, Aggregate] = {"success": "sum"}
        metrics |= {f"success_{kind}": "last" for kind in self._games.kinds if kind in self._several}
        return EnvSpec(
            name=name,
            n_envs=self._games.n,
            n_agents=1,
            observation=channels,
            n_actions=len(self._names),
            action_names=self._names,
            horizon=longest,
            metrics=metrics,
            text=text,
        )

    @property
    def kinds(self) -> list[str]:
        return [str(getattr(env, "kind", "")) if self._games.kinds else "" for env in self._games.envs]

    def one_game(self) -> BabyAIEnv:
        """Return the same environment with a single independent game."""
        return guarded(BabyAIEnv(**self._made_of, n_envs=1))

    def provide(self, channels: Sequence[str]) -> None:
        """Add these channels to the observations from now on. The first call removes all other channels.

        Raises:
            ConfigError: `expert` is requested in a level without the bot, or with too few actions for its missions.
        """
        if "expert" in channels:
            self._check_expert()
        known = [name for name in channels if name in self.spec.observation]
        asked = (self._asked or set()) | set(known)
        fresh = asked - (self._asked if self._asked is not None else set(self.spec.observation))
        self._asked = asked
        self._reads = bool(asked & {"prompt", "text"})
        if "expert" not in asked:
            self._experts = None
        elif self._experts is None:
            self._hire()
        if fresh & {"prompt", "text", "expert"} and self._begun.any():
            # These depend on the episode's earlier observations, so episodes are replayed.
            self.load_state_dict(self.state_dict())

    def _check_expert(self) -> None:
        name = self.spec.name
        if not self._games.babyai:
            raise ConfigError(f"MiniGrid's bot plays the levels of BabyAI, and env={name} is none of them")
        needed, own = len(LANGUAGES[self._language].actions["canonical"]), len(self._names)
        if own < needed and not self._games.only_goto():
            raise ConfigError(
                f"MiniGrid's bot picks up, drops and toggles, which the {own} actions of env={name} "
                f"({', '.join(self._names)}) do not offer; use env.actions=canonical"
            )

    def _hire(self) -> None:
        from llmrl.envs.babyai.experts import Experts

        self._experts = Experts(self._games.envs, len(self._names))

    def _begin(self, chosen: np.ndarray) -> None:
        self._begin_games(chosen)
        if self._experts is not None:
            for i in np.flatnonzero(chosen).tolist():
                self._advice[i] = self._experts.start(i)

    def _begin_games(self, chosen: np.ndarray) -> None:
        self._games.reset(self._seeds, chosen)
        self._won[chosen] = False
        games = np.flatnonzero(chosen)
        self._tell(games)
        for i in games.tolist():
            said = str(self._games.envs[i].mission)
            if self._language == "fr":
                said = in_french(said)
            self.missions[i] = self._prompts.replaced(said)
            self._mission_ids[i] = self._numbers(self.missions[i])
            if self._reads:
                # The prompt builder applies the replacements itself, and they must be applied only once.
                self._prompts.start(i, said, self._told[i])

    def _numbers(self, mission: str) -> np.ndarray:
        """Return the words of a mission as codes, padded."""
        numbers = np.zeros(self._mission_ids.shape[1], dtype=np.int64)
        words = tokens(mission)
        if len(words) > len(numbers):
            raise EngineError(f"the mission {mission!r} has more than {len(numbers)} words")
        numbers[: len(words)] = [self._words.get(word, UNKNOWN) for word in words]
        return numbers

    def _tell(self, games: np.ndarray) -> None:
        if self._reads and len(games):
            for i, told in zip(games.tolist(), self._teller.tell(self._games.views[games]), strict=True):
                self._told[i] = told

    def _advance(self, action: np.ndarray, playing: np.ndarray) -> np.ndarray:
        chosen = np.asarray(action, dtype=np.int64)[:, 0]
        done = to_minigrid(chosen)
        reward, terminated, truncated = self._games.step(done, playing)
        self._terminated |= terminated
        self._truncated |= truncated
        self._won |= reward > 0
        games = np.flatnonzero(playing)
        self._tell(games)
        if self._reads:
            for i in games.tolist():
                self._prompts.go_on(i, int(chosen[i]), self._told[i])
        if self._experts is not None:
            for i in games.tolist():
                over = terminated[i] or truncated[i]
                self._advice[i] = -1 if over else self._experts.advise(i, done[i])
        return reward

    def _step(self, reward: np.ndarray, playing: np.ndarray) -> Step:
        base = reward.astype(np.float32)[:, None]
        info = {"success": (reward > 0).astype(np.float32)}
        if self._several:
            kinds = np.array(self.kinds)
            for kind in self._several:
                info[f"success_{kind}"] = np.where(kinds == kind, self._won, np.nan).astype(np.float32)
        scaled = (reward * self._scale).astype(np.float32)[:, None]
        return Step(self._observe(), scaled, base, self._terminated.copy(), self._truncated.copy(), info)

    def _observe(self) -> Observation:
        asked = self.spec.observation if self._asked is None else self._asked
        observation: Observation = {}
        if "prompt" in asked:
            observation["prompt"] = self._prompts.prompts()
        if "text" in asked:
            texts = np.empty((self.spec.n_envs, 1), dtype=object)
            texts[:, 0] = [self._text(i) for i in range(self.spec.n_envs)]
            observation["text"] = texts
        if "view" in asked:
            observation["view"] = self._games.views[:, None].copy()
        if "mission" in asked:
            observation["mission"] = self._mission_ids[:, None].copy()
        if "expert" in asked:
            observation["expert"] = self._advice[:, None].copy()
        return observation

    def _text(self, game: int) -> str:
        view = [self._prompts.replaced(said) for said in self._told[game]]
        return json.dumps({"mission": self.missions[game], "view": view}, ensure_ascii=False)

    def prompt(self, goal: str, observations: Sequence[Sequence[str]], actions: Sequence[str]) -> str:
        """Return the prompt for a mission `goal` after `observations` (a list of sentences each), oldest first.

        `actions` are the names of the actions between them, one fewer.

        Raises:
            ConfigError: unknown action.
        """
        if unknown := [name for name in actions if name not in self._names]:
            raise ConfigError(f"{unknown[0]!r} is none of the actions {', '.join(self._names)}")
        prompts = PromptBuilder(1, *self._format)
        prompts.start(0, goal, observations[0])
        for action, seen in zip(actions, observations[1:], strict=True):
            prompts.go_on(0, self._names.index(action), seen)
        return str(prompts.prompts()[0, 0])

    @property
    def bots_that_gave_up(self) -> int:
        """Number of episodes in which the bot gave up."""
        return 0 if self._experts is None else self._experts.gave_up

    def render(self, index: int = 0) -> np.ndarray:
        return self._games.render(index)

    def close(self) -> None:
        self._games.close()


def _makers(
    level: str,
    kwargs: dict[str, Any],
    kind: Kind,
    sampling: Sampling,
    horizon: int | None,
    n: int,
    seeds: Seeds,
    trust: Trust,
) -> list[EnvFactory]:
    """Return the factory of each game."""
    import llmrl.envs.babyai.registration  # noqa: F401

    kinds = _kinds(level)
    if not kinds:
        if kind != "per_episode":
            raise ConfigError(
                f"env.kind={kind}: the missions of env.level={level} are of one kind; only the levels of BabyAI-Text "
                "(BabyAI-MixedTrainLocal-v0, ...) have several"
            )
        return [EnvFactory(level, kwargs, horizon, trust=trust)] * n
    own = {"sampling": sampling, **kwargs}
    if kind == "legacy":
        drawn = seeds.numpy("kinds").integers(len(kinds), size=n).tolist()
        return [EnvFactory(level, {"kind": kinds[k], **own}, horizon) for k in drawn]
    if kind != "per_episode" and kind not in kinds:
        raise ConfigError(f"env.kind={kind}: env.level={level} has {', '.join(kinds)}")
    return [EnvFactory(level, {"kind": kind, **own}, horizon)] * n


def _kinds(level: str) -> tuple[str, ...]:
    """Return the kinds of missions of a level of BabyAI-Text; empty for other levels."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    from llmrl.envs.babyai.levels import TextLevel

    spec = gymnasium.registry.get(level)
    made_by = spec.entry_point if spec is not None else None
    creator = load_env_creator(made_by) if isinstance(made_by, str) else made_by
    return creator.kinds if isinstance(creator, type) and issubclass(creator, TextLevel) else ()


def _many_clauses(env: Any) -> bool:
    from minigrid.envs.babyai.core.levelgen import LevelGen

    return isinstance(env, LevelGen)
