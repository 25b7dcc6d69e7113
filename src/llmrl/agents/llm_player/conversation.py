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
from llmrl.llms.images import IMAGES_KEY

ObservationExtra = Literal["step", "reward", "return", "legal_actions", "last_episode"]
"""Names of additions to an observation."""
MAX_INTERMEDIATE_FIELD_LENGTH = 120
"""Maximum characters, as JSON, of a field of an observation between two decisions; longer fields are omitted."""
DEFAULT_OBSERVATION_EXTRAS: tuple[ObservationExtra, ...] = ("step", "reward", "return", "legal_actions")
"""Default additions; they concern only the present episode."""

Message = dict[str, Any]


def shorten_observation(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Return an observation between two decisions without its long fields, such as maps.

    The newest observation shows these fields.
    """
    fields_by_name = observation.get("observation")
    if not isinstance(fields_by_name, Mapping):
        return dict(observation)
    short_fields = {
        name: value for name, value in fields_by_name.items() if len(to_json(value)) <= MAX_INTERMEDIATE_FIELD_LENGTH
    }
    return {**observation, "observation": short_fields}


@dataclass
class PlayerConversation:
    """Conversation of one player in one game.

    Turns of user and player alternate. Observations of steps without a question are part of the next turn. All turns
    are JSON.

    Attributes:
        turns: (user's turn, player's answer) of the newest questions, oldest first.
        observations: observations since the last answer, oldest first; the last one is the present one.
        images: newest frames of the episode as data URLs, oldest first; the last one shows the present.
        action: last action; None before the first one of an episode.
        steps: number of steps of the episode.
        episode_return: sum of the episode's rewards; NaN if one of them is unknown.
        reward: sum of the rewards since the last observation, or since the start of the episode; None if there was no
            step since then.
        steps_since_answer: number of steps since the last answer.
        last_episode: result of the previous episode, kept until the first observation of this one; empty if unknown.
        n_answers: number of answers in the episode.
        first_shown_answer: index of the first answer that is still shown.
        replacement_notice: description of the last action if it replaced an invalid reply; else "".
        lessons: newest lessons of earlier episodes, oldest first.
        needs_lesson: whether an episode has ended from which no lesson has been drawn yet.
        n_previous_answers: number of answers in the last completed episode.
        is_talking: whether the present question is for a message instead of an action.
    """

    turns: list[tuple[str, str]] = field(default_factory=list)
    observations: list[dict[str, Any]] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    action: Action | None = None
    steps: int = 0
    episode_return: float = 0.0
    reward: float | None = None
    steps_since_answer: int = 0
    last_episode: dict[str, Any] = field(default_factory=dict)
    n_answers: int = 0
    first_shown_answer: int = 0
    replacement_notice: str = ""
    lessons: list[str] = field(default_factory=list)
    needs_lesson: bool = False
    n_previous_answers: int = 0
    is_talking: bool = False

    def begin_episode(self) -> None:
        """Start a new episode. Turns of the last one stay until a lesson has been drawn from them."""
        if not self.needs_lesson:
            self.turns = []
        self.observations, self.action, self.steps, self.episode_return, self.reward = [], None, 0, 0.0, None
        self.images = []
        self.steps_since_answer, self.n_answers, self.first_shown_answer, self.replacement_notice = 0, 0, 0, ""

    def add_image(self, image: str, max_images: int) -> None:
        """Add a frame of the present state; the newest `max_images` frames remain."""
        self.images = [*self.images, image][-max_images:]

    def add_observation(self, text: str | None, legal_answers: Any, extras: Sequence[ObservationExtra]) -> None:
        """Add the present observation and the additions to it.

        Args:
            text: observation in words; None: there is none.
            legal_answers: legal answers as they are shown (`AnswerFormat.format_legal_answers`); None: all are legal.
            extras: names of the additions.
        """
        observation: dict[str, Any] = {} if text is None else {"observation": parse_if_json(text)}
        # If players take turns, the first observation may come after the first step.
        if self.n_answers == 0 and not self.observations:
            observation["start"] = True
            if "last_episode" in extras and self.last_episode:
                observation["last_episode"] = self.last_episode
            self.last_episode = {}
        if "step" in extras:
            observation["step"] = self.steps
        if "reward" in extras and self.reward is not None and not math.isnan(self.reward):
            observation["reward"] = round_reward(self.reward)
        if "return" in extras and not math.isnan(self.episode_return):
            observation["return"] = round_reward(self.episode_return)
        if "legal_actions" in extras and legal_answers is not None:
            observation["legal_actions"] = legal_answers
        self.observations.append(observation)
        self.reward = None

    def add_messages(self, sent_text: str, recipient: str, received: Sequence[dict[str, str]]) -> None:
        """Add a round of talk: the player's message, its recipient ("": all), and the others' messages."""
        if sent_text:
            self.observations[-1]["you_said"] = {"to": recipient, "message": sent_text} if recipient else sent_text
        if received:
            self.observations[-1]["heard"] = list(received)

    def render_question(self) -> str:
        """Return the user's present turn."""
        *earlier, newest = self.observations
        notice_field = {"no_usable_reply": self.replacement_notice} if self.replacement_notice else {}
        talk_field = {"talk": True} if self.is_talking else {}
        intermediate_observations = [shorten_observation(observation) for observation in earlier]
        return to_json(
            {
                **notice_field,
                **({"since_your_last_action": intermediate_observations} if intermediate_observations else {}),
                **newest,
                **talk_field,
            }
        )

    def count_shown_turns(self, history: int, sliding: bool) -> int:
        """Return the number of earlier turns to show.

        With `sliding` it is `history`. Otherwise it grows to less than twice as many and is then cut to `history`, so
        that most prompts begin like the previous one.
        """
        n_turns = self.n_answers - self.first_shown_answer
        if sliding or n_turns >= 2 * history:
            n_turns = min(n_turns, history)
        return min(n_turns, len(self.turns))

    def build_messages(self, system: str, n_turns: int) -> tuple[Message, ...]:
        """Return the system message, `n_turns` earlier turns, and the question."""
        turn_messages = [
            m
            for question, answer in self.turns[len(self.turns) - n_turns :]
            for m in (make_message("user", question), make_message("assistant", answer))
        ]
        images = {IMAGES_KEY: list(self.images)} if self.images else {}
        return (make_message("system", system), *turn_messages, make_message("user", self.render_question()) | images)

    def add_answer(self, reply: str, action: Action, max_turns: int, replacement_notice: str = "") -> None:
        """Add a decision, and keep the newest `max_turns` turns.

        Args:
            reply: the player's answer as it is shown later.
            action: chosen action.
            max_turns: number of turns to keep.
            replacement_notice: description of the action if it replaced an invalid reply.
        """
        self.turns = [*self.turns, (self.render_question(), reply)][-max_turns:] if max_turns else []
        self.observations, self.action, self.steps_since_answer = [], action, 0
        self.replacement_notice = replacement_notice
        self.n_answers += 1

    def add_reward(self, reward: float) -> None:
        """Add the reward of a step; NaN: unknown."""
        self.reward = reward if self.reward is None else self.reward + reward
        self.episode_return += reward
        self.steps += 1
        self.steps_since_answer += 1

    def end_episode(self, terminated: bool, needs_lesson: bool) -> None:
        """End the episode; `needs_lesson` says whether a lesson will be drawn from it."""
        return_field = {} if math.isnan(self.episode_return) else {"return": round_reward(self.episode_return)}
        self.last_episode = {
            **return_field,
            "steps": self.steps,
            "end": "the game was over" if terminated else "the time was up",
        }
        self.needs_lesson, self.n_previous_answers = needs_lesson, self.n_answers

    def state_dict(self) -> State:
        """Return a copy of the conversation as plain data."""
        return {field.name: copy.deepcopy(getattr(self, field.name)) for field in fields(self)} | {
            "turns": [list(turn) for turn in self.turns],
            "observations": [to_json(observation) for observation in self.observations],
        }

    @classmethod
    def from_state(cls, state: State) -> PlayerConversation:
        """Return the conversation of a `state_dict`."""
        turns = [(question, answer) for question, answer in state["turns"]]
        observations = [json.loads(observation) for observation in state["observations"]]
        return cls(**copy.deepcopy(state) | {"turns": turns, "observations": observations})


def make_message(role: str, content: str) -> Message:
    """Return a message of a conversation."""
    return {"role": role, "content": content}


def to_json(value: Any) -> str:
    """Return `value` as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def round_reward(value: float) -> int | float:
    """Round a sum of rewards to four decimals, and to an integer if it is one."""
    value = round(float(value), 4) + 0.0
    return int(value) if value.is_integer() else value
