"""BabyAI-Text as a `VecEnv`: many games of one level, observed as prompts, as codes, or with the bot's advice."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.records import Observation, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvDescription, EnvSpec
from llmrl.core.trust import NOBODY, Trust
from llmrl.envs.babyai.language import (
    LANGUAGES,
    LanguageName,
    action_names,
    tokens,
    translate_to_french,
    view_describer,
    vocabulary,
)
from llmrl.envs.babyai.level_games import LevelGames
from llmrl.envs.env_errors import name_env_in_errors
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.replayable import ReplayableEnv
from llmrl.envs.rooms.grid_world import DONE

if TYPE_CHECKING:
    from llmrl.envs.babyai.experts import Experts

Template = Literal["glam", "plain"]


class PromptBuilder:
    """The prompts of `n` games.

    `glam` is the published one (Carta et al. 2023), its spaces and commas included. `plain` names neither the actions
    nor the places of observations.

    Args:
        n: games.
        language: `en` or `fr`.
        template: layout of a prompt.
        actions: names of the actions.
        history: number of observations in a prompt, with the actions between them, >= 1.
        replace: text -> its replacement, applied one after another to the whole prompt.
    """

    def __init__(
        self,
        n: int,
        language: str,
        template: Template,
        actions: Sequence[str],
        history: int,
        replace: Mapping[str, str],
    ) -> None:
        self._words, self._is_glam, self._actions = LANGUAGES[language], template == "glam", tuple(actions)
        # The space between a prompt and the next action belongs to the prompt in the published template, else to the
        # action.
        self._continuations = [name if self._is_glam else f" {name}" for name in actions]
        self._replace = tuple(replace.items())
        self._headers = [""] * n
        self._observations: list[deque[str]] = [deque(maxlen=history) for _ in range(n)]
        self._actions_taken: list[deque[str]] = [deque(maxlen=history - 1) for _ in range(n)]
        if self._is_glam:
            self._observation_prefixes = [f" \n {self._words.observation_label} {i}: " for i in range(history)]
            self._action_prefixes = [f"\n {self._words.action_label} {i}: " for i in range(history)]
        else:
            self._observation_prefixes = [f"\n{self._words.observation_label}: "] * history
            self._action_prefixes = [f"\n{self._words.action_label}:"] * history

    @property
    def continuations(self) -> tuple[str, ...]:
        """Text that follows a prompt after each action, as in the next prompts."""
        return tuple(self.apply_replacements(text) for text in self._continuations)

    def start(self, game: int, mission: str, sentences: Sequence[str]) -> None:
        """Start an episode with its first observation; clear the history of the previous one."""
        possible = f"{self._words.possible_actions_prefix}{', '.join(self._actions)} \n " if self._is_glam else ""
        self._headers[game] = f"{possible}{self._words.goal_prefix}{mission}"
        self._observations[game].clear()
        self._actions_taken[game].clear()
        self._append_observation(game, sentences)

    def append_step(self, game: int, action: int, sentences: Sequence[str]) -> None:
        """Append an action and the observation after it."""
        self._actions_taken[game].append(self._continuations[action])
        self._append_observation(game, sentences)

    def _append_observation(self, game: int, sentences: Sequence[str]) -> None:
        self._observations[game].append(
            "".join([f"{sentence}, " for sentence in sentences]) if self._is_glam else ", ".join(sentences)
        )

    def prompts(self) -> np.ndarray:
        """Return the current prompt of each game, [n, 1] of `str`."""
        prompts = np.empty((len(self._headers), 1), dtype=object)
        for game, header in enumerate(self._headers):
            turns = zip(
                self._observation_prefixes,
                self._observations[game],
                self._action_prefixes,
                (*self._actions_taken[game], ""),
                strict=False,
            )
            prompts[game, 0] = self.apply_replacements(header + "".join(itertools.chain.from_iterable(turns)))
        return prompts

    def apply_replacements(self, text: str) -> str:
        for old, new in self._replace:
            text = text.replace(old, new)
        return text


Kind = Literal["per_episode", "goto", "pickup", "open", "putnext", "seq", "legacy"]
Sampling = Literal["direct", "rejection"]

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
"""Codes in the channel `mission`: padding, a word outside the vocabulary, and the vocabulary's first word."""
_MISSION_LENGTH, _LONG_MISSION_LENGTH = 24, 72
"""Maximum number of words of a mission: in most levels, and in levels that join up to four clauses."""
_CODE_COUNTS = (11, 6, 3)


@dataclass(frozen=True)
class BabyAISettings:
    """Options of `BabyAIEnv`; meanings, units and ranges are in `conf/env/babyai_text.yaml`."""

    level: str
    name: str | None
    kwargs: Mapping[str, Any] | None
    kind: Kind
    sampling: Sampling
    language: LanguageName
    actions: str | list[str]
    replace: Mapping[str, str] | None
    history: PositiveInt
    template: Template
    reward_scale: PositiveFloat
    n_envs: PositiveInt
    horizon: PositiveInt | None
    render: bool


class BabyAIEnv(ReplayableEnv):
    """A vectorized environment of `n_envs` games with one agent each.

    **Observation.** After the first call of `provide`, only the requested channels; before it, all of them.

    - `prompt` [n_envs, 1] of str: the actions, the mission, and the last observations with the actions between them.
    - `text` [n_envs, 1] of str: the mission and the current view in words, as JSON.
    - `view` [n_envs, 1, v, v, 3] uint8: MiniGrid's view, codes of type, color and state; v is 7 in most levels.
    - `mission` [n_envs, 1, 24] int64 (72 in levels with long missions): indices of its words in `vocabulary` plus 2; 0
      is padding, 1 a word outside the vocabulary.
    - `expert` [n_envs, 1] int64: the action of MiniGrid's bot; -1 if the bot gave up, or if the agent does not have
      that action. Only in BabyAI's levels.

    **Action.** Indices of names that stand for MiniGrid's actions in this order: left, right, forward, pick up, drop,
    toggle; names from the seventh on do nothing.

    **Reward.** In the step that fulfills the mission, `reward_scale` times the level's reward, which is 1 - 0.9 t / T
    in step t of at most T; `base_reward` is the level's reward. T depends on the mission.

    Args:
        settings: options of the environment.
        seeds: the environment's node of the seed tree.
        trust: modules that `level` may name.

    Attributes:
        missions: mission of each game, in words.
        kinds: kind of mission of each game's episode; empty texts in levels of one kind.
        separable: whether an episode does not depend on the game in which it is played.

    Raises:
        ConfigError: unknown level, invalid argument, missions without a French translation, or repeated action names.
    """

    settings: BabyAISettings

    def __init__(self, settings: BabyAISettings, seeds: Seeds, trust: Trust = NOBODY) -> None:
        from minigrid.envs.babyai.core.levelgen import LevelGen

        n_envs, kind, language = settings.n_envs, settings.kind, settings.language
        super().__init__(settings, seeds, trust)
        # With one kind for each game, an episode depends on the game in which it is played.
        self.separable = kind != "legacy"
        self._names = action_names(language, settings.actions)
        self._games = LevelGames(_env_factories(settings, seeds, trust), settings.render)
        self._describer = view_describer(language, self._games.view_size, self._games.view_size)
        self._format = (language, settings.template, self._names, settings.history, dict(settings.replace or {}))
        self._prompts = PromptBuilder(n_envs, *self._format)
        self._word_ids = {word: FIRST_WORD + i for i, word in enumerate(vocabulary(language))}
        possible_kinds = set(self.kinds) if kind == "legacy" else set(self._games.kinds)
        self._tracked_kinds = possible_kinds if kind in ("per_episode", "legacy") and len(possible_kinds) > 1 else set()
        self.missions = [""] * n_envs
        self._sentences: list[list[str]] = [[] for _ in range(n_envs)]
        self._succeeded = np.zeros(n_envs, dtype=bool)
        self._advice = np.full(n_envs, -1, dtype=np.int64)
        self._experts: Experts | None = None
        self._requested_channels: set[str] | None = None
        max_steps = self._games.horizon()
        mission_length = _LONG_MISSION_LENGTH if isinstance(self._games.envs[0], LevelGen) else _MISSION_LENGTH
        self._mission_ids = np.zeros((n_envs, mission_length), dtype=np.int64)
        self._needs_text = True
        self._begin_episodes(np.ones(n_envs, dtype=bool))
        self.spec = self._build_spec(settings.name or settings.level, max_steps)
        if "expert" in self.spec.observation:
            self._create_experts()

    def _build_spec(self, name: str, max_steps: int) -> EnvSpec:
        words, size = LANGUAGES[self.settings.language], self._games.view_size
        descriptions = words.action_descriptions
        effects = [descriptions[min(i, len(descriptions) - 1)] for i in range(len(self._names))]
        text = EnvDescription(
            goal=words.game_description.format(steps=max_steps),
            observation=(("mission", words.mission_description), ("view", words.view_description)),
            actions=tuple(zip(self._names, effects, strict=True)),
            example=self._text(0),
        )
        length, n_words = self._mission_ids.shape[1], FIRST_WORD + len(self._word_ids)
        channels = {
            "prompt": Channel((), "object", continuations=self._prompts.continuations),
            "text": Channel((), "object"),
            "view": Channel((size, size, 3), "uint8", 0, max(_CODE_COUNTS) - 1, codes=_CODE_COUNTS),
            "mission": Channel((length,), "int64", 0, n_words - 1, codes=(n_words,)),
        }
        if self._games.is_babyai:
            channels["expert"] = Channel((), "int64", -1, len(self._names) - 1)
        metrics: dict[str, Aggregate] = {"success": "sum"}
        metrics |= {f"success_{kind}": "last" for kind in self._games.kinds if kind in self._tracked_kinds}
        return EnvSpec(
            name=name,
            n_envs=self._games.n,
            n_agents=1,
            observation=channels,
            n_actions=len(self._names),
            action_names=self._names,
            horizon=max_steps,
            metrics=metrics,
            text=text,
        )

    @property
    def kinds(self) -> list[str]:
        return [str(getattr(env, "kind", "")) if self._games.kinds else "" for env in self._games.envs]

    def one_game(self) -> BabyAIEnv:
        """Return the same environment with a single independent game."""
        return name_env_in_errors(BabyAIEnv(replace(self.settings, n_envs=1), self._seed_tree, self._trust))

    def provide(self, channels: Sequence[str]) -> None:
        """Add these channels to the observations from now on. The first call removes all other channels.

        Raises:
            ConfigError: `expert` is requested in a level without the bot, or with too few actions for its missions.
        """
        if "expert" in channels:
            self._check_expert()
        available, previous = set(self.spec.observation), self._requested_channels
        requests = (previous or set()) | (set(channels) & available)
        new_channels = requests - (available if previous is None else previous)
        self._requested_channels = requests
        self._needs_text = bool(requests & {"prompt", "text"})
        if "expert" not in requests:
            self._experts = None
        elif self._experts is None:
            self._create_experts()
        if new_channels & {"prompt", "text", "expert"} and self._episode_counts.any():
            # These depend on earlier observations of the episode, so episodes are replayed.
            self.load_state_dict(self.state_dict())

    def _check_expert(self) -> None:
        name = self.spec.name
        if not self._games.is_babyai:
            raise ConfigError(f"MiniGrid's bot can only play levels of BabyAI, and env={name} is not one of them")
        n_required, n_actions = len(LANGUAGES[self.settings.language].actions["canonical"]), len(self._names)
        if n_actions < n_required and not self._games.has_only_goto_missions():
            raise ConfigError(
                f"MiniGrid's bot picks up, drops and toggles objects, which the {n_actions} actions of env={name} "
                f"({', '.join(self._names)}) do not include; use env.actions=canonical"
            )

    def _create_experts(self) -> None:
        from llmrl.envs.babyai.experts import Experts

        self._experts = Experts(self._games.envs, len(self._names))

    def _begin_episodes(self, reset_mask: np.ndarray) -> None:
        self._games.reset(self._episode_seeds, reset_mask)
        self._succeeded[reset_mask] = False
        games = np.flatnonzero(reset_mask)
        self._describe_views(games)
        for i in games.tolist():
            mission = str(self._games.envs[i].mission)
            if self.settings.language == "fr":
                mission = translate_to_french(mission)
            self.missions[i] = self._prompts.apply_replacements(mission)
            self._mission_ids[i] = self._encode_mission(self.missions[i])
            if self._needs_text:
                # The prompt builder applies the replacements itself, and they must be applied only once.
                self._prompts.start(i, mission, self._sentences[i])
            if self._experts is not None:
                self._advice[i] = self._experts.start(i)

    def _encode_mission(self, mission: str) -> np.ndarray:
        """Return the words of a mission as codes, padded."""
        codes = np.zeros(self._mission_ids.shape[1], dtype=np.int64)
        words = tokens(mission)
        if len(words) > len(codes):
            raise EngineError(f"the mission {mission!r} has {len(words)} words; at most {len(codes)} are supported")
        codes[: len(words)] = [self._word_ids.get(word, UNKNOWN) for word in words]
        return codes

    def _describe_views(self, games: np.ndarray) -> None:
        if self._needs_text and len(games):
            for i, sentences in zip(games.tolist(), self._describer.describe(self._games.views[games]), strict=True):
                self._sentences[i] = sentences

    def _advance(self, action: np.ndarray, active: np.ndarray) -> np.ndarray:
        actions = np.asarray(action, dtype=np.int64)[:, 0]
        minigrid_actions = np.minimum(actions, DONE).tolist()  # actions beyond MiniGrid's do nothing
        reward, terminated, truncated = self._games.step(minigrid_actions, active)
        self._terminated |= terminated
        self._truncated |= truncated
        self._succeeded |= reward > 0
        games = np.flatnonzero(active)
        self._describe_views(games)
        if self._needs_text:
            for i in games.tolist():
                self._prompts.append_step(i, int(actions[i]), self._sentences[i])
        if self._experts is not None:
            for i in games.tolist():
                finished = terminated[i] or truncated[i]
                self._advice[i] = -1 if finished else self._experts.advise(i, minigrid_actions[i])
        return reward

    def _build_step(self, reward: np.ndarray, active: np.ndarray) -> Step:
        base = reward.astype(np.float32)[:, None]
        info = {"success": (reward > 0).astype(np.float32)}
        if self._tracked_kinds:
            kinds = np.array(self.kinds)
            for kind in self._tracked_kinds:
                info[f"success_{kind}"] = np.where(kinds == kind, self._succeeded, np.nan).astype(np.float32)
        scaled = (reward * self.settings.reward_scale).astype(np.float32)[:, None]
        return Step(self._observe(), scaled, base, self._terminated.copy(), self._truncated.copy(), info)

    def _observe(self) -> Observation:
        requests = self.spec.observation if self._requested_channels is None else self._requested_channels
        observation: Observation = {}
        if "prompt" in requests:
            observation["prompt"] = self._prompts.prompts()
        if "text" in requests:
            texts = np.empty((self.spec.n_envs, 1), dtype=object)
            texts[:, 0] = [self._text(i) for i in range(self.spec.n_envs)]
            observation["text"] = texts
        if "view" in requests:
            observation["view"] = self._games.views[:, None].copy()
        if "mission" in requests:
            observation["mission"] = self._mission_ids[:, None].copy()
        if "expert" in requests:
            observation["expert"] = self._advice[:, None].copy()
        return observation

    def _text(self, game: int) -> str:
        view = [self._prompts.apply_replacements(sentence) for sentence in self._sentences[game]]
        return json.dumps({"mission": self.missions[game], "view": view}, ensure_ascii=False)

    def prompt(self, goal: str, observations: Sequence[Sequence[str]], actions: Sequence[str]) -> str:
        """Return the prompt for a mission `goal` after `observations` (lists of sentences), oldest first.

        `actions` are the names of the actions between them, one fewer.

        Raises:
            ConfigError: unknown action.
        """
        if unknown_actions := [name for name in actions if name not in self._names]:
            raise ConfigError(f"the action {unknown_actions[0]!r} does not exist; use one of {', '.join(self._names)}")
        prompts = PromptBuilder(1, *self._format)
        prompts.start(0, goal, observations[0])
        for action, observation in zip(actions, observations[1:], strict=True):
            prompts.append_step(0, self._names.index(action), observation)
        return str(prompts.prompts()[0, 0])

    def render(self, index: int = 0) -> np.ndarray:
        return self._games.render(index)

    def close(self) -> None:
        self._games.close()


def _env_factories(settings: BabyAISettings, seeds: Seeds, trust: Trust) -> list[EnvFactory]:
    """Return the factory of each game."""
    import llmrl.envs.babyai.levels  # noqa: F401

    level, kind, horizon, n = settings.level, settings.kind, settings.horizon, settings.n_envs
    kwargs, kinds = dict(settings.kwargs or {}), _kinds(level)
    if not kinds:
        if kind != "per_episode":
            raise ConfigError(
                f"env.kind={kind} requires a level with several kinds of missions, and env.level={level} has one kind; "
                "use env.kind=per_episode, or a level of BabyAI-Text (BabyAI-MixedTrainLocal-v0, ...)"
            )
        return [EnvFactory(level, kwargs, horizon, trust=trust)] * n
    options = {"sampling": settings.sampling, **kwargs}
    if kind == "legacy":
        indices = seeds.numpy("kinds").integers(len(kinds), size=n).tolist()
        return [EnvFactory(level, {"kind": kinds[k], **options}, horizon) for k in indices]
    if kind != "per_episode" and kind not in kinds:
        raise ConfigError(
            f"env.kind={kind} does not exist in env.level={level}; use one of per_episode, {', '.join(kinds)}"
        )
    return [EnvFactory(level, {"kind": kind, **options}, horizon)] * n


def _kinds(level: str) -> tuple[str, ...]:
    """Return the kinds of missions of a level of BabyAI-Text; empty for other levels."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    from llmrl.envs.babyai.levels import TextLevel

    spec = gymnasium.registry.get(level)
    entry_point = spec.entry_point if spec is not None else None
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return creator.kinds if isinstance(creator, type) and issubclass(creator, TextLevel) else ()
