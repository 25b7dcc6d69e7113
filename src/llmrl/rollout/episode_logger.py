"""The log of episodes that are played: who did what on which grounds, step by step, and videos of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.core.frames import with_text_column
from llmrl.core.observers import Observer, Transition
from llmrl.core.protocols import VecEnv
from llmrl.core.records import Observation, State, embedded, on_host
from llmrl.core.rollouts import Episode
from llmrl.core.welfare_measures import Objective
from llmrl.rollout.episode_results import add_spent, episode_row
from llmrl.run.episode_files import FILM_COLUMN, EpisodeFiles

HEIGHT, SOCIETY_HEIGHT = 480, 640
"""Of a frame, and of one with several players, pixels."""
_NOT_SPENT = ("steps", "return", "thoughts", "recorded", "filmed")
_APART = ("lesson_took", "talk_took")
"""What questions beside those for an action cost, in the notes on a step."""
MOST_SHOWN = 9
"""Players whose words are shown: as many as there is room for, with two lines each."""
_MANY = 8
"""Numbers of an observation above which several share a line."""


@dataclass(frozen=True)
class EpisodeLogSettings:
    """What is written down of how many of the first episodes.

    Attributes:
        records, videos: how many are written down by step, and filmed; from their beginning, so where a resumed run has
            other numbers, they are those of the episodes that begin from then on.
        fps: frames a second of videos.
    """

    records: int
    videos: int
    fps: float


class EpisodeLogger(Observer):
    """Writes down what happens in a wave of episodes, of games that wait when they are over.

    Args:
        env: what is played.
        files: of the run, which may be those of several loggers.
        state: of the run's checkpoint; None: a new run.
        settings: how much is written down.
        objective, spending_cost: what an episode is judged on.

    Attributes:
        first_episode: of game 0, to be set before a wave begins; game i plays episode `first_episode` + i.
        playing: games whose episode goes on, [n_envs] bool.
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
        self.files = files
        self.settings = settings
        self.objective, self.spending_cost = objective, spending_cost
        self.first_episode = 0 if state is None else state["first"]
        n = self.spec.n_envs
        self.playing = np.zeros(n, dtype=bool) if state is None else np.array(state["playing"])
        # Of each game: steps, sum of rewards, each player's last reflection, and what was spent, so far.
        self._so_far = [{} for _ in range(n)] if state is None else [_copied(each) for each in state["so_far"]]
        self._ends: dict[int, str] = {}  # of games that are over, and are not written down yet
        self._pictures: dict[int, np.ndarray] = {}  # of the states that are decided in

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One line for each of the first episodes that are over (`EpisodeFiles.finished`)."""
        return self.files.finished

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """A wave begins."""
        self.playing, self._pictures = games.copy(), {}
        blank = [""] * self.spec.n_agents
        self._so_far = [
            {
                "steps": 0,
                "return": 0.0,
                "thoughts": blank.copy(),
                "recorded": k < self.settings.records,
                "filmed": k < self.settings.videos,
            }
            for k in range(self.first_episode, self.first_episode + self.spec.n_envs)
        ]
        self.look()

    def on_step(self, transition: Transition) -> None:
        """What was seen and done, and what it led to."""
        act, step = transition.output, transition.step
        actions, reward = on_host(act.action), on_host(step.reward)
        for game in self._games():
            so_far = self._so_far[game]
            notes = [{}] * self.spec.n_agents if act.notes is None else act.notes[game]
            for a, note in enumerate(notes):
                self._count(so_far, note)
                so_far["thoughts"][a] = note.get("reflection", so_far["thoughts"][a])
            # Words cost more than a step of most games, so they are found only where they are written or shown.
            if so_far["recorded"] or game in self._pictures:
                lines = [
                    self._line(transition.observation, actions, reward, game, a, note) for a, note in enumerate(notes)
                ]
                self._write(game, lines)
            so_far["return"] += float(reward[game].mean())
            so_far["steps"] += 1
            if transition.ended[game]:
                self._ends[game] = "terminated" if np.asarray(step.terminated)[game] else "truncated"
        self.look()

    def on_episode_end(self, episode: Episode) -> None:
        if episode.game in self._ends:
            row = episode_row(episode, self.objective, self.spending_cost)
            self._end(episode.game, row, self._ends.pop(episode.game))

    def look(self) -> None:
        """Take the pictures of the state that is decided in next. To be asked for where a restored wave goes on."""
        self._pictures |= {game: self.env.render(game) for game in self._games() if self._filmed(game)}

    def close(self) -> None:
        """The run is over."""
        self.files.close()

    def state_dict(self) -> State:
        return {
            "first": self.first_episode,
            "playing": self.playing.copy(),
            "so_far": [_copied(each) for each in self._so_far],
        }

    def _games(self) -> list[int]:
        """Those whose episode goes on."""
        return [game for game in np.flatnonzero(self.playing).tolist() if game not in self._ends]

    def _filmed(self, game: int) -> bool:
        # Whether there are pictures at all is decided by the number that a resumed run has now.
        return bool(self._so_far[game]["filmed"]) and self.first_episode + game < self.settings.videos

    def _write(self, game: int, lines: list[dict[str, Any]]) -> None:
        """The lines of a step, into the file and beside the picture, as far as they are wanted."""
        episode = self.first_episode + game
        for line in lines if self._so_far[game]["recorded"] else ():
            self.files.step(episode, line)
        if game in self._pictures:
            thoughts = self._so_far[game]["thoughts"]
            words = [self._words(line, thought) for line, thought in zip(lines, thoughts, strict=True)]
            self._film(game, self._pictures[game], words)

    def _line(
        self,
        observation: Observation,
        actions: np.ndarray,
        reward: np.ndarray,
        game: int,
        agent: int,
        note: Mapping[str, Any],
    ) -> dict[str, Any]:
        line: dict[str, Any] = {"step": int(self._so_far[game]["steps"])}
        if self.spec.n_agents > 1:
            line["agent"] = agent
        if "text" in observation:
            line["observation"] = embedded(str(observation["text"][game, agent]))
        taken = actions[game, agent]
        if self.spec.continuous_actions is None:
            line["action"] = self.spec.action_names[int(taken)]
        else:
            line["action"] = dict(zip(self.spec.continuous_action_names, taken.tolist(), strict=True))
        return {**line, **{k: x for k, x in note.items() if k not in _APART}, "reward": float(reward[game, agent])}

    def _count(self, so_far: dict[str, Any], note: Mapping[str, Any]) -> None:
        add_spent(so_far, note)
        for apart in _APART:
            add_spent(so_far, note.get(apart, {}))
        if note.get("asked"):
            so_far["decisions"] = so_far.get("decisions", 0) + 1
            so_far["fallbacks"] = so_far.get("fallbacks", 0) + (not note["valid"])

    def _end(self, game: int, row: Mapping[str, Any], end: str) -> None:
        so_far, episode = self._so_far[game], self.first_episode + game
        spent = {name: x for name, x in so_far.items() if name not in _NOT_SPENT}
        if spent:
            told, said = spent["prompt_tokens"], spent["completion_tokens"]
            spent["tokens"] = None if told is None or said is None else told + said
            spent["invalid_rate"] = spent["invalid"] / max(spent["replies"], 1)
        if game in self._pictures:
            words = f"return {row['return']:g} after {row['length']} step{'s' * (row['length'] != 1)}"
            if "success" in row:
                words += ", a success" if row["success"] else ", no success"
            self._film(game, self.env.render(game), [[("the end", words)]])
        line = {"episode": episode, **row, "end": end, **spent}
        self.files.end(episode, line, self.settings.fps if self._filmed(game) else None)
        self.playing[game] = False
        self._pictures.pop(game, None)

    def _words(self, line: Mapping[str, Any], thought: str) -> list[tuple[str, str]]:
        action = line["action"] if isinstance(line["action"], str) else _short_numbers(line["action"])
        if line.get("asked") is False:
            action += "  (repeated)"
        if line.get("valid") is False:
            action += "  (no valid reply)"
        if "agent" in line:
            # The picture shows them all, so a line of what else is known must do.
            known = _in_short(line.get("observation", ""))
            who = f"player {line['agent'] + 1}" + (f", {line['model']}" if "model" in line else "")
            said = f'says "{line["said"]}"' if line.get("said") else ""
            return [(f"{who}: {action}", "\n".join(filter(None, (said, known, thought))) or "-")]
        return [
            ("observation", _readable(line.get("observation", ""))),
            ("lesson", str(line.get("lesson", ""))),
            ("reflection", thought),
            ("action", action),
        ]

    def _film(self, game: int, picture: np.ndarray, words: list[list[tuple[str, str]]]) -> None:
        so_far = self._so_far[game]
        head = ("episode", f"{self.first_episode + game}, step {so_far['steps']}, return {so_far['return']:.4g}")
        shown = [entry for player in words[:MOST_SHOWN] for entry in player]
        if len(words) > MOST_SHOWN:
            shown.append(("and", f"{len(words) - MOST_SHOWN} more players"))
        height = HEIGHT if self.spec.n_agents == 1 else SOCIETY_HEIGHT
        self.files.frame(self.first_episode + game, with_text_column(picture, [head, *shown], height, FILM_COLUMN))


def _copied(so_far: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(x) if isinstance(x, list) else x for name, x in so_far.items()}


def _in_short(seen: Any) -> str:
    """What is one number or word of an observation."""
    if not isinstance(seen, Mapping):
        return ""
    plain = {name: value for name, value in seen.items() if not isinstance(value, list | Mapping)}
    return ", ".join(f"{name} {value}" for name, value in plain.items())


def _readable(seen: Any) -> str:
    if not isinstance(seen, Mapping):
        return str(seen)
    lines: list[str] = []
    alone = [name for name, value in seen.items() if not isinstance(value, list | Mapping)]
    for name, value in seen.items():
        if name in alone and len(alone) > _MANY:
            # In the place of the first of them.
            if name == alone[0]:
                lines.append(", ".join(f"{each} {seen[each]}" for each in alone))
        elif isinstance(value, list) and all(isinstance(x, str) for x in value):
            lines += [f"{name}:", *(f"  {x}" for x in value)]
        else:
            lines.append(f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def _short_numbers(action: Any) -> str:
    """An action of several numbers, by name or in their order, without digits that nobody can see."""
    if isinstance(action, Mapping):
        return ", ".join(f"{name} {_short_numbers(value)}" for name, value in action.items())
    if isinstance(action, list):
        return f"[{', '.join(map(_short_numbers, action))}]"
    return f"{action:.3g}" if isinstance(action, float) else json.dumps(action)
