"""Record of one player's observations and answers in an episode, and the messages made of it."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from llmrl.agents.llm_player.answer_format import Action
from llmrl.core.records import State, parse_if_json
from llmrl.llms.images import IMAGES

Show = Literal["step", "reward", "return", "legal_actions", "last_episode"]
"""Additions to an observation."""
MAX_ENTRY_LENGTH = 120
"""Maximum number of characters of an entry of an observation between two decisions."""
DEFAULT_EXTRAS: tuple[Show, ...] = ("step", "reward", "return", "legal_actions")
"""Default additions, which only concern the present episode."""

Message = dict[str, Any]


def shorten_observation(frame: Mapping[str, Any]) -> dict[str, Any]:
    """Return an observation between two decisions without long entries, such as maps.

    The newest observation repeats these entries.
    """
    observation = frame.get("observation")
    if not isinstance(observation, Mapping):
        return dict(frame)
    short = {name: value for name, value in observation.items() if len(to_json(value)) <= MAX_ENTRY_LENGTH}
    return {**frame, "observation": short}


@dataclass
class PlayerConversation:
    """Conversation of one player in one game.

    Turns of user and player alternate. Observations of steps without a question are part of the next turn. All turns
    are JSON.

    Attributes:
        turns: (user's turn, player's answer) of the newest questions, oldest first.
        frames: observations since the last answer, oldest first; the last one is the present one.
        pictures: newest frames of the episode as data URLs, oldest first; the last one shows the present.
        action: last action; None before the first one of an episode.
        steps: number of steps of the episode.
        total: sum of the episode's rewards; NaN if one of them is unknown.
        reward: sum of the rewards since the last observation, or since the start of the episode; None without a step
            since.
        since: number of steps since the last answer.
        last_episode: result of the previous episode, until the first observation of this one; empty if unknown.
        decided: number of answers in the episode.
        shown_from: index of the first answer that is still shown.
        replaced: description of the last action if it replaced an invalid reply; else "".
        lessons: newest lessons of earlier episodes, oldest first.
        unlearnt: whether an episode has ended from which no lesson has been drawn yet.
        before: number of answers in the last completed episode.
        asked_to_talk: whether the present question is for a message instead of an action.
    """

    turns: list[tuple[str, str]] = field(default_factory=list)
    frames: list[dict[str, Any]] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    action: Action | None = None
    steps: int = 0
    total: float = 0.0
    reward: float | None = None
    since: int = 0
    last_episode: dict[str, Any] = field(default_factory=dict)
    decided: int = 0
    shown_from: int = 0
    replaced: str = ""
    lessons: list[str] = field(default_factory=list)
    unlearnt: bool = False
    before: int = 0
    asked_to_talk: bool = False

    def begin(self) -> None:
        """Start a new episode. Turns of the last one stay until a lesson has been drawn from them."""
        if not self.unlearnt:
            self.turns = []
        self.frames, self.action, self.steps, self.total, self.reward = [], None, 0, 0.0, None
        self.pictures = []
        self.since, self.decided, self.shown_from, self.replaced = 0, 0, 0, ""

    def add_observation(self, observation: str | None, legal: Any, show: Sequence[Show]) -> None:
        """Add the present observation, with the additions in `show`.

        Args:
            observation: observation in words; None: there is none.
            legal: legal answers as they are shown (`AnswerFormat.legal_answers`); None: all are legal.
            show: additions to the observation.
        """
        frame: dict[str, Any] = {} if observation is None else {"observation": parse_if_json(observation)}
        # If players take turns, the first observation may come after the first step.
        if self.decided == 0 and not self.frames:
            frame["start"] = True
            if "last_episode" in show and self.last_episode:
                frame["last_episode"] = self.last_episode
            self.last_episode = {}
        if "step" in show:
            frame["step"] = self.steps
        if "reward" in show and self.reward is not None and not math.isnan(self.reward):
            frame["reward"] = round_reward(self.reward)
        if "return" in show and not math.isnan(self.total):
            frame["return"] = round_reward(self.total)
        if "legal_actions" in show and legal is not None:
            frame["legal_actions"] = legal
        self.frames.append(frame)
        self.reward = None

    def add_frame(self, picture: str, keep: int) -> None:
        """Add a frame of the present state; the newest `keep` frames remain."""
        self.pictures = [*self.pictures, picture][-keep:]

    def hear(self, message: str, to: str, heard: Sequence[dict[str, str]]) -> None:
        """Add a round of talk: the player's own message, its recipient, and the messages from others."""
        own_message = {"to": to, "message": message} if to else message
        self.frames[-1] |= ({"you_said": own_message} if message else {}) | ({"heard": list(heard)} if heard else {})

    def question(self) -> str:
        """Return the user's present turn."""
        *earlier, latest = self.frames
        notice = {"no_usable_reply": self.replaced} if self.replaced else {}
        talk = {"talk": True} if self.asked_to_talk else {}
        intermediate = [shorten_observation(frame) for frame in earlier]
        return to_json(
            {**notice, **({"since_your_last_action": intermediate} if intermediate else {}), **latest, **talk}
        )

    def window(self, history: int, sliding: bool) -> int:
        """Return the number of earlier turns to show.

        With `sliding` these are the newest `history` turns. Otherwise their number grows to less than twice as many and
        is then cut to `history`, so that most prompts begin like the previous one.
        """
        n_turns = self.decided - self.shown_from
        if sliding or n_turns >= 2 * history:
            n_turns = min(n_turns, history)
        return min(n_turns, len(self.turns))

    def messages(self, system: str, shown: int) -> tuple[Message, ...]:
        """Return the system message, `shown` earlier turns, and the question."""
        earlier = self.turns[len(self.turns) - shown :]
        turns = [m for question, answer in earlier for m in (message("user", question), message("assistant", answer))]
        images = {IMAGES: list(self.pictures)} if self.pictures else {}
        return (message("system", system), *turns, message("user", self.question()) | images)

    def answer(self, reply: str, action: Action, keep: int, replaced: str = "") -> None:
        """Add a decision, and keep the newest `keep` turns.

        Args:
            reply: the player's answer as it is shown later.
            action: chosen action.
            keep: number of turns to keep.
            replaced: description of the action if it replaced an invalid reply.
        """
        self.turns = [*self.turns, (self.question(), reply)][-keep:] if keep else []
        self.frames, self.action, self.since, self.replaced = [], action, 0, replaced
        self.decided += 1

    def add_reward(self, reward: float) -> None:
        """Add the reward of a step; NaN: unknown."""
        self.reward = reward if self.reward is None else self.reward + reward
        self.total += reward
        self.steps += 1
        self.since += 1

    def end(self, terminated: bool, learn: bool) -> None:
        """End the episode; `learn` says whether a lesson will be drawn from it."""
        score = {} if math.isnan(self.total) else {"return": round_reward(self.total)}
        self.last_episode = {
            **score,
            "steps": self.steps,
            "end": "the game was over" if terminated else "the time was up",
        }
        self.unlearnt, self.before = learn, self.decided

    def state_dict(self) -> State:
        """Return a copy of the conversation as plain data."""
        state = {field.name: copy.deepcopy(getattr(self, field.name)) for field in fields(self)}
        return state | {
            "turns": [list(turn) for turn in self.turns],
            "frames": [to_json(frame) for frame in self.frames],
        }

    @classmethod
    def from_state(cls, state: State) -> PlayerConversation:
        """Return the conversation of a `state_dict`."""
        turns = [(question, answer) for question, answer in state["turns"]]
        frames = [json.loads(frame) for frame in state["frames"]]
        return cls(**copy.deepcopy(state) | {"turns": turns, "frames": frames})


def message(role: str, content: str) -> Message:
    """Return a message of a conversation."""
    return {"role": role, "content": content}


def to_json(value: Any) -> str:
    """Return `value` as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def round_reward(value: float) -> int | float:
    """Round a sum of rewards to four decimals, and to an integer if it is one."""
    value = round(float(value), 4) + 0.0
    return int(value) if value.is_integer() else value
