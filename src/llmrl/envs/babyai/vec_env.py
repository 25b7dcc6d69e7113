"""BabyAI-Text as a `VecEnv`: n parallel copies (games) of one level, with prompts, codes and advice as channels."""

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
from llmrl.core.trust import NO_FURTHER_TRUST, Trust
from llmrl.envs.babyai.language import (
    LANGUAGES,
    LanguageName,
    get_view_describer,
    list_action_names,
    list_vocabulary,
    split_words,
    translate_to_french,
)
from llmrl.envs.babyai.level_games import LevelGames
from llmrl.envs.env_errors import name_env_in_errors
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.replayable import ReplayableEnv
from llmrl.envs.rooms.grid_world import DONE

if TYPE_CHECKING:
    from llmrl.envs.babyai.experts import BotExperts

PromptTemplate = Literal["glam", "plain"]


class PromptBuilder:
    """Builder of the prompts in `n` games.

    Args:
        n: number of games.
        language: `en` or `fr`.
        template: `glam`: layout of the published prompts (Carta et al. 2023), with their spaces and commas; `plain`:
            without the list of actions and without indices of observations.
        actions: names of the actions.
        history: number of observations in a prompt, with the actions between them, >= 1.
        replacements: text -> its replacement; replacements are applied to the prompt one after another.
    """

    def __init__(
        self,
        n: int,
        language: str,
        template: PromptTemplate,
        actions: Sequence[str],
        history: int,
        replacements: Mapping[str, str],
    ) -> None:
        self._uses_glam_template, self._actions = template == "glam", tuple(actions)
        # The space between a prompt and the next action is part of the prompt with `glam`, else of the action.
        self._action_texts = [name if self._uses_glam_template else f" {name}" for name in actions]
        self._language, self._replacements = LANGUAGES[language], tuple(replacements.items())
        self._prompt_headers = [""] * n
        self._observations: list[deque[str]] = [deque(maxlen=history) for _ in range(n)]
        self._actions_taken: list[deque[str]] = [deque(maxlen=history - 1) for _ in range(n)]
        if self._uses_glam_template:
            self._observation_prefixes = [f" \n {self._language.observation_label} {i}: " for i in range(history)]
            self._action_prefixes = [f"\n {self._language.action_label} {i}: " for i in range(history)]
        else:
            self._observation_prefixes = [f"\n{self._language.observation_label}: "] * history
            self._action_prefixes = [f"\n{self._language.action_label}:"] * history

    @property
    def continuations(self) -> tuple[str, ...]:
        """Text of each action as it continues a prompt."""
        return tuple(self.replace_words(text) for text in self._action_texts)

    def start(self, game: int, mission: str, sentences: Sequence[str]) -> None:
        """Clear the history of a game and append the first observation of an episode."""
        prefix = self._language.possible_actions_prefix
        actions_line = f"{prefix}{', '.join(self._actions)} \n " if self._uses_glam_template else ""
        self._prompt_headers[game] = f"{actions_line}{self._language.goal_prefix}{mission}"
        self._observations[game].clear()
        self._actions_taken[game].clear()
        self._append_observation(game, sentences)

    def append_step(self, game: int, action: int, sentences: Sequence[str]) -> None:
        """Append an action and the observation after it."""
        self._actions_taken[game].append(self._action_texts[action])
        self._append_observation(game, sentences)

    def _append_observation(self, game: int, sentences: Sequence[str]) -> None:
        self._observations[game].append(
            "".join([f"{sentence}, " for sentence in sentences]) if self._uses_glam_template else ", ".join(sentences)
        )

    def build_prompts(self) -> np.ndarray:
        """Return the current prompt of each game, [n, 1] of `str`."""
        prompts = np.empty((len(self._prompt_headers), 1), dtype=object)
        for game, header in enumerate(self._prompt_headers):
            turns = zip(
                self._observation_prefixes,
                self._observations[game],
                self._action_prefixes,
                (*self._actions_taken[game], ""),
                strict=False,
            )
            prompts[game, 0] = self.replace_words(header + "".join(itertools.chain.from_iterable(turns)))
        return prompts

    def replace_words(self, text: str) -> str:
        for old, new in self._replacements:
            text = text.replace(old, new)
        return text


MissionKind = Literal["per_episode", "goto", "pickup", "open", "putnext", "seq", "legacy"]
Sampling = Literal["direct", "rejection"]

PADDING_CODE, UNKNOWN_WORD_CODE, FIRST_WORD_CODE = 0, 1, 2
"""Codes in the channel `mission`: padding, a word outside the vocabulary, and the vocabulary's first word."""
_MAX_MISSION_WORDS, _MAX_LONG_MISSION_WORDS = 24, 72
"""Maximum number of words of a mission: in most levels, and in levels that join up to four clauses."""
_N_CODE_VALUES = (11, 6, 3)  # numbers of codes of types, colors and states in views


@dataclass(frozen=True)
class BabyAISettings:
    """Options of `BabyAIEnv`; meanings, units and ranges are in `conf/env/babyai_text.yaml`."""

    level: str
    name: str | None
    kwargs: Mapping[str, Any] | None
    kind: MissionKind
    sampling: Sampling
    language: LanguageName
    actions: str | list[str]
    replace: Mapping[str, str] | None
    history: PositiveInt
    template: PromptTemplate
    reward_scale: PositiveFloat
    n_envs: PositiveInt
    horizon: PositiveInt | None
    render: bool


class BabyAIEnv(ReplayableEnv):
    """A vectorized environment of `n_envs` games with one agent each.

    **Observation.** All channels at first; after a call of `provide`, only requested channels.

    - `prompt` [n_envs, 1] of str: the actions, the mission, and the last observations with the actions between them.
    - `text` [n_envs, 1] of str: JSON with the mission and sentences about the current view.
    - `view` [n_envs, 1, v, v, 3] uint8: MiniGrid's view, codes of type, color and state; v is 7 in most levels.
    - `mission` [n_envs, 1, 24] int64 (72 in levels with long missions): for each word, 2 + its index in the vocabulary
      (`list_vocabulary`), or 1 if it is not there; then zeros.
    - `expert` [n_envs, 1] int64: the action of MiniGrid's bot; -1 if the bot has failed, the agent lacks this action,
      or the episode has ended. Only in BabyAI's levels.

    **Action.** Indices of names for MiniGrid's actions in this order: left, right, forward, pick up, drop, toggle.
    Actions from the seventh on have no effect.

    **Reward.** `reward_scale` times the level's reward, which is 1 - 0.9 t / T in the step t that fulfills the mission,
    else 0. The step limit T depends on the mission. `base_reward` is the level's reward.

    Args:
        settings: options of the environment.
        seeds: seed tree of the environment.
        trust: modules that `level` may name.

    Attributes:
        missions: text of each game's mission.
        kinds: kind of each game's mission; empty texts for levels that are not of BabyAI-Text.
        separable: whether an episode is a function of its seed, independent of the index of its game.

    Raises:
        ConfigError: the level is unknown, an argument is invalid, missions have no French translation, or action names
            are repeated.
    """

    settings: BabyAISettings

    def __init__(self, settings: BabyAISettings, seeds: Seeds, trust: Trust = NO_FURTHER_TRUST) -> None:
        from minigrid.envs.babyai.core.levelgen import LevelGen

        n_envs, kind, language = settings.n_envs, settings.kind, settings.language
        super().__init__(settings, seeds, trust)
        # With `legacy`, each game has its own kind of missions.
        self.separable = kind != "legacy"
        self._action_names = list_action_names(language, settings.actions)
        self._games = LevelGames(_build_env_factories(settings, seeds, trust), settings.render)
        self._view_describer = get_view_describer(language, self._games.view_size, self._games.view_size)
        replacements = dict(settings.replace or {})
        self._prompt_arguments = (language, settings.template, self._action_names, settings.history, replacements)
        self._prompt_builder = PromptBuilder(n_envs, *self._prompt_arguments)
        self._code_by_word = {word: FIRST_WORD_CODE + i for i, word in enumerate(list_vocabulary(language))}
        possible_kinds = set(self.kinds) if kind == "legacy" else set(self._games.kinds)
        self._tracked_kinds = possible_kinds if kind in ("per_episode", "legacy") and len(possible_kinds) > 1 else set()
        self.missions = [""] * n_envs
        self._view_sentences: list[list[str]] = [[] for _ in range(n_envs)]
        self._succeeded = np.zeros(n_envs, dtype=bool)
        self._advised_actions = np.full(n_envs, -1, dtype=np.int64)
        self._bots: BotExperts | None = None
        self._requested_channels: set[str] | None = None
        max_steps = self._games.find_max_steps()
        mission_length = _MAX_LONG_MISSION_WORDS if isinstance(self._games.envs[0], LevelGen) else _MAX_MISSION_WORDS
        self._mission_codes = np.zeros((n_envs, mission_length), dtype=np.int64)
        self._needs_text = True  # whether sentences about views are computed
        self._begin_episodes(np.ones(n_envs, dtype=bool))
        self.spec = self._build_spec(settings.name or settings.level, max_steps)
        if "expert" in self.spec.observation:
            self._create_bots()

    def _build_spec(self, name: str, max_steps: int) -> EnvSpec:
        language, size = LANGUAGES[self.settings.language], self._games.view_size
        descriptions = language.action_descriptions
        action_effects = [descriptions[min(i, len(descriptions) - 1)] for i in range(len(self._action_names))]
        text = EnvDescription(
            goal=language.game_description.format(steps=max_steps),
            observation=(("mission", language.mission_description), ("view", language.view_description)),
            actions=tuple(zip(self._action_names, action_effects, strict=True)),
            example=self._format_text(0),
        )
        length, n_words = self._mission_codes.shape[1], FIRST_WORD_CODE + len(self._code_by_word)
        channels = {
            "prompt": Channel((), "object", continuations=self._prompt_builder.continuations),
            "text": Channel((), "object"),
            "view": Channel((size, size, 3), "uint8", 0, max(_N_CODE_VALUES) - 1, codes=_N_CODE_VALUES),
            "mission": Channel((length,), "int64", 0, n_words - 1, codes=(n_words,)),
        }
        if self._games.is_babyai:
            channels["expert"] = Channel((), "int64", -1, len(self._action_names) - 1)
        metrics: dict[str, Aggregate] = {"success": "sum"}
        metrics |= {f"success_{kind}": "last" for kind in self._games.kinds if kind in self._tracked_kinds}
        return EnvSpec(
            name=name,
            n_envs=self._games.n,
            n_agents=1,
            observation=channels,
            n_actions=len(self._action_names),
            action_names=self._action_names,
            horizon=max_steps,
            metrics=metrics,
            text=text,
        )

    @property
    def kinds(self) -> list[str]:
        return [str(getattr(env, "kind", "")) if self._games.kinds else "" for env in self._games.envs]

    def make_single_game(self) -> BabyAIEnv:
        """Return a new environment with the same options and one game, not reset yet."""
        return name_env_in_errors(BabyAIEnv(replace(self.settings, n_envs=1), self._seed_tree, self._trust))

    def provide(self, channels: Sequence[str]) -> None:
        """Add channels to the observations from now on. The first call also removes all other channels.

        Raises:
            ConfigError: `expert` is requested, but the bot does not support the level or needs missing actions.
        """
        if "expert" in channels:
            self._check_expert_support()
        available, previously_requested = set(self.spec.observation), self._requested_channels
        requested = (previously_requested or set()) | (set(channels) & available)
        new_channels = requested - (available if previously_requested is None else previously_requested)
        self._requested_channels = requested
        self._needs_text = bool(requested & {"prompt", "text"})
        if "expert" not in requested:
            self._bots = None
        elif self._bots is None:
            self._create_bots()
        if new_channels & {"prompt", "text", "expert"} and self._episode_counts.any():
            # The new channels depend on earlier observations of the episodes, so these are replayed.
            self.load_state_dict(self.state_dict())

    def _check_expert_support(self) -> None:
        name = self.spec.name
        if not self._games.is_babyai:
            raise ConfigError(f"MiniGrid's bot can only play levels of BabyAI, and env={name} is not one of them")
        n_required, n_actions = len(LANGUAGES[self.settings.language].action_sets["canonical"]), len(self._action_names)
        if n_actions < n_required and not self._games.has_only_goto_missions():
            raise ConfigError(
                f"MiniGrid's bot picks up, drops and toggles objects, which the {n_actions} actions of env={name} "
                f"({', '.join(self._action_names)}) do not include; use env.actions=canonical"
            )

    def _create_bots(self) -> None:
        from llmrl.envs.babyai.experts import BotExperts

        self._bots = BotExperts(self._games.envs, len(self._action_names))

    def _begin_episodes(self, reset_mask: np.ndarray) -> None:
        self._games.reset(self._episode_seeds, reset_mask)
        self._succeeded[reset_mask] = False
        games = np.flatnonzero(reset_mask)
        self._describe_views(games)
        for i in games.tolist():
            mission = str(self._games.envs[i].mission)
            if self.settings.language == "fr":
                mission = translate_to_french(mission)
            self.missions[i] = self._prompt_builder.replace_words(mission)
            self._mission_codes[i] = self._encode_mission(self.missions[i])
            if self._needs_text:
                # The prompt builder gets the mission without replacements, because it applies them to the whole prompt.
                self._prompt_builder.start(i, mission, self._view_sentences[i])
            if self._bots is not None:
                self._advised_actions[i] = self._bots.start(i)

    def _encode_mission(self, mission: str) -> np.ndarray:
        """Return the codes of the words of a mission, padded with zeros."""
        codes = np.zeros(self._mission_codes.shape[1], dtype=np.int64)
        words = split_words(mission)
        if len(words) > len(codes):
            raise EngineError(f"the mission {mission!r} has {len(words)} words; at most {len(codes)} are supported")
        codes[: len(words)] = [self._code_by_word.get(word, UNKNOWN_WORD_CODE) for word in words]
        return codes

    def _describe_views(self, games: np.ndarray) -> None:
        if self._needs_text and len(games):
            descriptions = self._view_describer.describe(self._games.views[games])
            for i, sentences in zip(games.tolist(), descriptions, strict=True):
                self._view_sentences[i] = sentences

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
                self._prompt_builder.append_step(i, int(actions[i]), self._view_sentences[i])
        if self._bots is not None:
            for i in games.tolist():
                is_finished = terminated[i] or truncated[i]
                self._advised_actions[i] = -1 if is_finished else self._bots.advise(i, minigrid_actions[i])
        return reward

    def _build_step(self, reward: np.ndarray, active: np.ndarray) -> Step:
        base_reward = reward.astype(np.float32)[:, None]
        info = {"success": (reward > 0).astype(np.float32)}
        if self._tracked_kinds:
            kinds = np.array(self.kinds)
            info |= {
                f"success_{kind}": np.where(kinds == kind, self._succeeded, np.nan).astype(np.float32)
                for kind in self._tracked_kinds
            }
        scaled_reward = (reward * self.settings.reward_scale).astype(np.float32)[:, None]
        return Step(self._observe(), scaled_reward, base_reward, self._terminated.copy(), self._truncated.copy(), info)

    def _observe(self) -> Observation:
        requested = self.spec.observation if self._requested_channels is None else self._requested_channels
        observation: Observation = {}
        if "prompt" in requested:
            observation["prompt"] = self._prompt_builder.build_prompts()
        if "text" in requested:
            observation["text"] = np.array([[self._format_text(i)] for i in range(self.spec.n_envs)], dtype=object)
        if "view" in requested:
            observation["view"] = self._games.views[:, None].copy()
        if "mission" in requested:
            observation["mission"] = self._mission_codes[:, None].copy()
        if "expert" in requested:
            observation["expert"] = self._advised_actions[:, None].copy()
        return observation

    def _format_text(self, game: int) -> str:
        view = [self._prompt_builder.replace_words(sentence) for sentence in self._view_sentences[game]]
        return json.dumps({"mission": self.missions[game], "view": view}, ensure_ascii=False)

    def prompt(self, goal: str, observations: Sequence[Sequence[str]], actions: Sequence[str]) -> str:
        """Return the prompt for the mission `goal` after n `observations` (lists of sentences), the oldest first.

        `actions` contains the names of the n - 1 actions between them.

        Raises:
            ConfigError: an action does not exist.
        """
        if unknown_actions := [name for name in actions if name not in self._action_names]:
            names = ", ".join(self._action_names)
            raise ConfigError(f"the action {unknown_actions[0]!r} does not exist; use one of {names}")
        prompts = PromptBuilder(1, *self._prompt_arguments)
        prompts.start(0, goal, observations[0])
        for action, observation in zip(actions, observations[1:], strict=True):
            prompts.append_step(0, self._action_names.index(action), observation)
        return str(prompts.build_prompts()[0, 0])

    def render(self, index: int = 0) -> np.ndarray:
        return self._games.render(index)

    def close(self) -> None:
        self._games.close()


def _build_env_factories(settings: BabyAISettings, seeds: Seeds, trust: Trust) -> list[EnvFactory]:
    """Return the factory of each game."""
    import llmrl.envs.babyai.levels  # noqa: F401

    level, kind, horizon, n = settings.level, settings.kind, settings.horizon, settings.n_envs
    kwargs, kinds = dict(settings.kwargs or {}), _find_kinds(level)
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


def _find_kinds(level: str) -> tuple[str, ...]:
    """Return the kinds of missions of a level of BabyAI-Text; empty for other levels."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    from llmrl.envs.babyai.levels import TextLevel

    spec = gymnasium.registry.get(level)
    entry_point = spec.entry_point if spec is not None else None
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return creator.kinds if isinstance(creator, type) and issubclass(creator, TextLevel) else ()
