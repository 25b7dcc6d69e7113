"""What one player of one game has seen and said in an episode, and the messages made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llmrl.agents.llm_player.answer_format import Action
from llmrl.core.records import State, embedded
from llmrl.llms.images import IMAGES

Show = Literal["step", "reward", "return", "legal_actions", "last_episode"]
"""What an observation is accompanied by."""
LONGEST_BETWEEN = 120
"""Characters of the longest entry of an observation between two decisions."""
SHOWN: tuple[Show, ...] = ("step", "reward", "return", "legal_actions")
"""Of these, what is about the present episode alone: the default."""

Message = dict[str, Any]


def shortened(frame: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was observed between two decisions without long entries, such as maps, which the newest observation
    repeats."""
    seen = frame.get("observation")
    if not isinstance(seen, Mapping):
        return dict(frame)
    short = {name: value for name, value in seen.items() if len(said(value)) <= LONGEST_BETWEEN}
    return {**frame, "observation": short}


@dataclass
class PlayerConversation:
    """One player's side of one game.

    Turns of the user and the player alternate: what was seen in steps that the player was not asked in is told in the
    next turn. All of it is JSON.

    Attributes:
        turns: (what was told, what was answered) of the newest questions, oldest first.
        frames: what was seen since the last answer, oldest first; the last one is the present.
        pictures: the newest frames of the episode as data URLs, oldest first; the last one shows the present.
        action: the last one; None before the first of an episode.
        steps, total: steps of the episode, and the sum of their rewards; NaN as soon as one of them is not known.
        reward: sum of the rewards since the last observation, or since the episode began; None without a step since.
        since: steps since the last answer.
        last_episode: result of the previous episode, until the first observation of this one; empty if unknown.
        decided: how many answers there have been in the episode.
        shown_from: the first of them that is still shown.
        replaced: the last decision, in words, where it was made without a usable reply; "" where the reply counted.
        plan: the newest that the player wrote in the episode; "": none.
        plan_turn: the newest turn in which it stands, by its number in the episode.
        lessons: the newest lessons of earlier episodes, oldest first.
        unlearnt: there is an episode over, of which no lesson has been drawn yet.
        before: how many answers there were in the last episode that is over.
        asked_to_talk: the present question is what to say, and not what to do.
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
    plan: str = ""
    plan_turn: int = 0
    lessons: list[str] = field(default_factory=list)
    unlearnt: bool = False
    before: int = 0
    asked_to_talk: bool = False

    def begin(self) -> None:
        """A new episode; turns of the last one are kept until a lesson has been drawn from them."""
        if not self.unlearnt:
            self.turns = []
        self.frames, self.action, self.steps, self.total, self.reward = [], None, 0, 0.0, None
        self.pictures = []
        self.since, self.decided, self.shown_from, self.replaced = 0, 0, 0, ""
        self.plan, self.plan_turn = "", 0

    def add_observation(self, observation: str | None, legal: Any, show: Sequence[Show]) -> None:
        """Take in what is observed now, in words where it is told in words, and what of the rest is to be shown.

        `legal` are the legal answers as they are shown (`AnswerFormat.legal_answers`); None: all are.
        """
        frame: dict[str, Any] = {} if observation is None else {"observation": embedded(observation)}
        # Where players take turns, the first observation may come after the first step.
        if self.decided == 0 and not self.frames:
            frame["start"] = True
            if "last_episode" in show and self.last_episode:
                frame["last_episode"] = self.last_episode
            self.last_episode = {}
        if "step" in show:
            frame["step"] = self.steps
        if "reward" in show and self.reward is not None and not math.isnan(self.reward):
            frame["reward"] = tidy(self.reward)
        if "return" in show and not math.isnan(self.total):
            frame["return"] = tidy(self.total)
        if "legal_actions" in show and legal is not None:
            frame["legal_actions"] = legal
        self.frames.append(frame)
        self.reward = None

    def add_frame(self, picture: str, keep: int) -> None:
        """Take in a frame of what is to be seen now; the newest `keep` are kept."""
        self.pictures = [*self.pictures, picture][-keep:]

    def hear(self, own: str, to: str, others: Sequence[dict[str, str]]) -> None:
        """Take in a round of talk: what the player said itself, to whom, and what it heard."""
        spoken = {"to": to, "message": own} if to else own
        self.frames[-1] |= ({"you_said": spoken} if own else {}) | ({"heard": list(others)} if others else {})

    def question(self, shown: int = 0) -> str:
        """The present turn of the user, before which `shown` earlier turns are shown."""
        *before, now = self.frames
        told = {"no_usable_reply": self.replaced} if self.replaced else {}
        plan: dict[str, Any] = {"your_plan": self.plan} if self._plan_is_lost(shown) else {}
        plan |= {"talk": True} if self.asked_to_talk else {}
        between = [shortened(frame) for frame in before]
        return said({**told, **({"since_your_last_action": between} if between else {}), **now, **plan})

    def _plan_is_lost(self, shown: int) -> bool:
        """Whether there is a plan, and no turn that is shown has it."""
        return bool(self.plan) and self.plan_turn < self.decided - shown

    def window(self, history: int, sliding: bool) -> int:
        """How many earlier turns are shown: the newest `history` with `sliding`; else they grow to less than twice as
        many and are cut back to `history`, so that most questions begin as the one before did."""
        shown = self.decided - self.shown_from
        if sliding or shown >= 2 * history:
            shown = min(shown, history)
        return min(shown, len(self.turns))

    def messages(self, system: str, shown: int) -> tuple[Message, ...]:
        """The system's, `shown` earlier turns, and the question."""
        earlier = self.turns[len(self.turns) - shown :]
        told = [m for u, a in earlier for m in (message("user", u), message("assistant", a))]
        seen = {IMAGES: list(self.pictures)} if self.pictures else {}
        return (message("system", system), *told, message("user", self.question(shown)) | seen)

    def answer(self, reply: str, action: Action, keep: int, replaced: str = "", plan: str = "") -> None:
        """A decision was made, without the player where it was `replaced`; the newest `keep` turns are kept, and the
        `plan` in the reply, if there is one."""
        shown = self.decided - self.shown_from
        self.turns = [*self.turns, (self.question(shown), reply)][-keep:] if keep else []
        if plan or self._plan_is_lost(shown):
            self.plan, self.plan_turn = plan or self.plan, self.decided
        self.frames, self.action, self.since, self.replaced = [], action, 0, replaced
        self.decided += 1

    def add_reward(self, reward: float) -> None:
        """Add the reward of a step; NaN: unknown."""
        self.reward = reward if self.reward is None else self.reward + reward
        self.total += reward
        self.steps += 1
        self.since += 1

    def end(self, terminated: bool, learn: bool) -> None:
        """The episode is over; `learn`: a lesson is to be drawn from it."""
        known = {} if math.isnan(self.total) else {"return": tidy(self.total)}
        self.last_episode = {
            **known,
            "steps": self.steps,
            "end": "the game was over" if terminated else "the time was up",
        }
        self.unlearnt, self.before = learn, self.decided

    def state_dict(self) -> State:
        """Plain data, copied."""
        return {
            "turns": [list(turn) for turn in self.turns],
            "frames": [said(frame) for frame in self.frames],
            "pictures": list(self.pictures),
            "action": list(self.action) if isinstance(self.action, list) else self.action,
            "steps": self.steps,
            "total": self.total,
            "reward": self.reward,
            "since": self.since,
            "last_episode": dict(self.last_episode),
            "decided": self.decided,
            "shown_from": self.shown_from,
            "replaced": self.replaced,
            "plan": self.plan,
            "plan_turn": self.plan_turn,
            "lessons": list(self.lessons),
            "unlearnt": self.unlearnt,
            "before": self.before,
            "asked_to_talk": self.asked_to_talk,
        }

    @classmethod
    def from_state(cls, state: State) -> PlayerConversation:
        return cls(
            **{
                **state,
                "turns": [(told, answered) for told, answered in state["turns"]],
                "frames": [json.loads(frame) for frame in state["frames"]],
                "pictures": list(state["pictures"]),
                "last_episode": dict(state["last_episode"]),
                "lessons": list(state["lessons"]),
            }
        )


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def said(value: Any) -> str:
    """`value` as JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def tidy(value: float) -> int | float:
    """A sum of rewards without the noise of its last digits."""
    value = round(float(value), 4) + 0.0
    return int(value) if value.is_integer() else value
