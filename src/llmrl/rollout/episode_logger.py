"""Records of the steps of episodes, and videos with the texts of the players beside each frame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.core.frames import add_text_column
from llmrl.core.observers import Observer, Transition
from llmrl.core.protocols import VecEnv
from llmrl.core.records import Observation, State, parse_if_json, to_numpy
from llmrl.core.rollouts import Episode
from llmrl.core.welfare_measures import Objective
from llmrl.rollout.episode_summaries import add_costs, make_episode_row
from llmrl.run.episode_files import TEXT_COLUMN_WIDTH, EpisodeFiles

SINGLE_PLAYER_HEIGHT, SOCIETY_HEIGHT = 480, 640
"""Height in pixels of a video frame with one player, and with several players."""
_NON_COST_KEYS = ("steps", "return", "thoughts", "recorded", "filmed")
_EXTRA_COST_KEYS = ("lesson_cost", "message_cost")
"""Keys of a step's notes that hold costs of requests for other texts than an action."""
MAX_SHOWN_PLAYERS = 9
"""Maximum number of players whose texts, with two lines each, fit next to a frame."""


@dataclass(frozen=True)
class EpisodeLogSettings:
    """Numbers of episodes whose steps are recorded, and of episodes with a video.

    A resumed run with other numbers applies them to the episodes that begin after it resumes.

    Attributes:
        records: number of episodes, from episode 0, whose steps are recorded.
        videos: number of episodes, from episode 0, with a video.
        fps: frames per second of videos.
    """

    records: int
    videos: int
    fps: float


class EpisodeLogger(Observer):
    """Observer that writes results, step records and videos of one episode of each game; ended games must wait.

    Args:
        env: environment that is played.
        files: episode files of the run; several loggers may share them.
        state: state from the run's checkpoint; None: a new run.
        settings: numbers of episodes with step records and videos.
        objective, spending_cost: objective of an episode: welfare measure, and cost per unit of spending.

    Attributes:
        first_episode: number of the episode of game 0, to be set before a reset; game i plays episode
            `first_episode` + i.
        playing: mask of the games whose episode is in progress, [n_envs] bool.
    """

    def __init__(
        self,
        env: VecEnv,
        files: EpisodeFiles,
        state: State | None,
        settings: EpisodeLogSettings,
        objective: Objective,
        spending_cost: float,
    ) -> None:
        self.env, self.spec = env, env.spec
        self.files, self.settings = files, settings
        self.objective, self.spending_cost = objective, spending_cost
        self.first_episode = 0 if state is None else state["first"]
        n = self.spec.n_envs
        self.playing = np.zeros(n, dtype=bool) if state is None else np.array(state["playing"])
        # Of each game's episode: steps, sum of rewards, latest reflection of each player, flags, and costs.
        self._totals = [{} for _ in range(n)] if state is None else [_copy_totals(totals) for totals in state["totals"]]
        # "terminated" or "truncated", by game, from the last step of an episode until its result is written.
        self._end_types: dict[int, str] = {}
        self._frames: dict[int, np.ndarray] = {}  # rendered states before the next actions, by game

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """Begin a new episode in each of `games`, a mask [n_envs] bool."""
        self.playing, self._frames = games.copy(), {}
        self._totals = [
            {
                "steps": 0,
                "return": 0.0,
                "thoughts": [""] * self.spec.n_agents,
                "recorded": k < self.settings.records,
                "filmed": k < self.settings.videos,
            }
            for k in range(self.first_episode, self.first_episode + self.spec.n_envs)
        ]
        self.render_frames()

    def on_step(self, transition: Transition) -> None:
        """Record observations, actions and rewards of a step."""
        act, step = transition.output, transition.step
        actions, reward = to_numpy(act.action), to_numpy(step.reward)
        for game in self._list_playing_games():
            totals = self._totals[game]
            notes = [{}] * self.spec.n_agents if act.notes is None else act.notes[game]
            for agent, note in enumerate(notes):
                self._add_note_costs(totals, note)
                totals["thoughts"][agent] = note.get("reflection", totals["thoughts"][agent])
            # Formatting of texts takes longer than a step of most games, so it is skipped where no file needs them.
            if totals["recorded"] or game in self._frames:
                lines = [
                    self._make_step_record(transition.observation, actions, reward, game, agent, note)
                    for agent, note in enumerate(notes)
                ]
                self._write_step(game, lines)
            totals["return"] += float(reward[game].mean())
            totals["steps"] += 1
            if transition.ended[game]:
                self._end_types[game] = "terminated" if np.asarray(step.terminated)[game] else "truncated"
        self.render_frames()

    def on_episode_end(self, episode: Episode) -> None:
        if episode.game in self._end_types:
            row = make_episode_row(episode, self.objective, self.spending_cost)
            self._finish_episode(episode.game, row, self._end_types.pop(episode.game))

    def render_frames(self) -> None:
        """Render the states before the next actions of episodes with a video; also to be called after a restore."""
        self._frames |= {game: self.env.render(game) for game in self._list_playing_games() if self._is_filmed(game)}

    def close(self) -> None:
        self.files.close()

    def state_dict(self) -> State:
        return {
            "first": self.first_episode,
            "playing": self.playing.copy(),
            "totals": [_copy_totals(totals) for totals in self._totals],
        }

    def _list_playing_games(self) -> list[int]:
        """Return the games whose episode is in progress."""
        return [game for game in np.flatnonzero(self.playing).tolist() if game not in self._end_types]

    def _is_filmed(self, game: int) -> bool:
        # The number of videos may be lower in a resumed run than it was at the start of the episode.
        return bool(self._totals[game]["filmed"]) and self.first_episode + game < self.settings.videos

    def _write_step(self, game: int, lines: list[dict[str, Any]]) -> None:
        """Write the lines of a step to the step records and next to the video frame, where the episode has these."""
        for line in lines if self._totals[game]["recorded"] else ():
            self.files.write_step(self.first_episode + game, line)
        if game in self._frames:
            thoughts = self._totals[game]["thoughts"]
            texts_by_player = [self._make_frame_texts(*texts) for texts in zip(lines, thoughts, strict=True)]
            self._write_frame(game, self._frames[game], texts_by_player)

    def _make_step_record(
        self,
        observation: Observation,
        actions: np.ndarray,
        reward: np.ndarray,
        game: int,
        agent: int,
        note: Mapping[str, Any],
    ) -> dict[str, Any]:
        line: dict[str, Any] = {"step": int(self._totals[game]["steps"])}
        if self.spec.n_agents > 1:
            line["agent"] = agent
        if "text" in observation:
            line["observation"] = parse_if_json(str(observation["text"][game, agent]))
        action = actions[game, agent]
        if self.spec.continuous_actions is None:
            line["action"] = self.spec.action_names[int(action)]
        else:
            line["action"] = dict(zip(self.spec.continuous_action_names, action.tolist(), strict=True))
        return {
            **line,
            **{k: x for k, x in note.items() if k not in _EXTRA_COST_KEYS},
            "reward": float(reward[game, agent]),
        }

    def _add_note_costs(self, totals: dict[str, Any], note: Mapping[str, Any]) -> None:
        add_costs(totals, note)
        for key in _EXTRA_COST_KEYS:
            add_costs(totals, note.get(key, {}))
        if note.get("has_request"):
            totals["decisions"] = totals.get("decisions", 0) + 1
            totals["fallbacks"] = totals.get("fallbacks", 0) + (not note["valid"])

    def _finish_episode(self, game: int, row: Mapping[str, Any], end: str) -> None:
        totals, episode = self._totals[game], self.first_episode + game
        costs = {name: x for name, x in totals.items() if name not in _NON_COST_KEYS}
        if costs:
            prompt_tokens, completion_tokens = costs["prompt_tokens"], costs["completion_tokens"]
            is_unknown = prompt_tokens is None or completion_tokens is None
            costs["tokens"] = None if is_unknown else prompt_tokens + completion_tokens
            costs["invalid_rate"] = costs["invalid"] / max(costs["replies"], 1)
        if game in self._frames:
            result_text = f"return {row['return']:g} after {row['length']} step{'s' * (row['length'] != 1)}"
            if "success" in row:
                result_text += ", a success" if row["success"] else ", no success"
            self._write_frame(game, self.env.render(game), [[("the end", result_text)]])
        line = {"episode": episode, **row, "end": end, **costs}
        self.files.finish_episode(episode, line, self.settings.fps if self._is_filmed(game) else None)
        self.playing[game] = False
        self._frames.pop(game, None)

    def _make_frame_texts(self, line: Mapping[str, Any], reflection: str) -> list[tuple[str, str]]:
        action = line["action"] if isinstance(line["action"], str) else _format_numbers(line["action"])
        if line.get("has_request") is False:
            action += "  (repeated)"
        if line.get("valid") is False:
            action += "  (no valid reply)"
        if "agent" in line:
            # The frame itself shows all players, so one line of text for each is enough.
            summary = _format_scalars(line.get("observation", ""))
            player = f"player {line['agent'] + 1}" + (f", {line['model']}" if "model" in line else "")
            message_text = f'says "{line["message"]}"' if line.get("message") else ""
            return [(f"{player}: {action}", "\n".join(filter(None, (message_text, summary, reflection))) or "-")]
        return [
            ("observation", _format_observation(line.get("observation", ""))),
            ("lesson", str(line.get("lesson", ""))),
            ("reflection", reflection),
            ("action", action),
        ]

    def _write_frame(self, game: int, frame: np.ndarray, texts_by_player: list[list[tuple[str, str]]]) -> None:
        totals = self._totals[game]
        heading = ("episode", f"{self.first_episode + game}, step {totals['steps']}, return {totals['return']:.4g}")
        texts = [text for player_texts in texts_by_player[:MAX_SHOWN_PLAYERS] for text in player_texts]
        if len(texts_by_player) > MAX_SHOWN_PLAYERS:
            texts.append(("and", f"{len(texts_by_player) - MAX_SHOWN_PLAYERS} more players"))
        height = SINGLE_PLAYER_HEIGHT if self.spec.n_agents == 1 else SOCIETY_HEIGHT
        self.files.write_frame(
            self.first_episode + game, add_text_column(frame, [heading, *texts], height, TEXT_COLUMN_WIDTH)
        )


def _copy_totals(totals: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(x) if isinstance(x, list) else x for name, x in totals.items()}


def _format_scalars(observation: Any) -> str:
    """Return the scalar fields of an observation as one line of text."""
    if not isinstance(observation, Mapping):
        return ""
    scalars = {name: value for name, value in observation.items() if not isinstance(value, list | Mapping)}
    return ", ".join(f"{name} {value}" for name, value in scalars.items())


def _format_observation(observation: Any) -> str:
    """Return an observation as text, with a line for each of its fields."""
    if not isinstance(observation, Mapping):
        return str(observation)
    texts = {name: x if isinstance(x, str) else json.dumps(x, ensure_ascii=False) for name, x in observation.items()}
    return "\n".join(f"{name}: {text}" for name, text in texts.items())


def _format_numbers(action: Any) -> str:
    """Format the numbers of a continuous action, a mapping by name or a list, with three significant digits."""
    if isinstance(action, Mapping):
        return ", ".join(f"{name} {_format_numbers(value)}" for name, value in action.items())
    if isinstance(action, list):
        return f"[{', '.join(map(_format_numbers, action))}]"
    return f"{action:.3g}" if isinstance(action, float) else json.dumps(action)
