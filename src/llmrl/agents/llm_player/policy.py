"""A chat model as a policy: it is told what there is to see, reflects, and answers with an action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from llmrl.agents.llm_player.answer_format import (
    Action,
    AnswerFormat,
    PlayerReply,
    answers_of,
    read_reply,
    reply_schema,
)
from llmrl.agents.llm_player.conversation import Message, PlayerConversation, said
from llmrl.agents.llm_player.lessons import LESSON_TURNS, Lessons
from llmrl.agents.llm_player.player_counts import PlayerCounts
from llmrl.agents.llm_player.player_prompts import PlayerPrompts
from llmrl.agents.llm_player.player_settings import PlayerSettings
from llmrl.agents.llm_player.talk import Said, Talk
from llmrl.core.errors import Incompatible, LLMError, Misfit
from llmrl.core.model_protocols import ChatModel
from llmrl.core.observers import Transition
from llmrl.core.protocols import Camera
from llmrl.core.records import CHOSEN, ChatReply, Observation, PolicyOutput, State, on_host
from llmrl.core.spaces import EnvSpec
from llmrl.llms.images import picture
from llmrl.llms.prompts import Prompt
from llmrl.llms.structured_query import Conversing, Query, QueryStats, StructuredQuery, conversed, most_that_fit

FALLBACK = "(no usable reply)"
"""Stands in the history where the player said nothing that could be used; what was done is told in the next turn."""
UNASKED = 10
"""Of steps without a choice, which may go on for long, the newest ones that the next question tells."""

Counted = tuple[dict[str, int], ...]
"""Counters of a player, and of its kinds of questions."""


class LLMPolicy:
    """Asks a chat model for the actions of all players of all games that are played, in one batch a step.

    Nobody asks for games that wait. A player who is shown an empty text has nothing to decide (out of the game for a
    while) and takes the first action. One with a single legal action takes it unasked. What is invalid is shown to the
    model again, `repair_turns` times; if nothing valid comes, the last action is taken if it is legal, else the first
    legal one (of several numbers the last ones, else 0), and that is counted. So a reply never ends an experiment; only
    a model that cannot be reached does.

    With `lessons`, a player who begins another episode is first asked what is to be learnt from the last one, and is
    told the newest of these lessons from then on (Reflexion, arXiv 2303.11366).

    Args:
        spec: of the environment.
        llm: the model.
        settings: how it is told, and may answer.

    Raises:
        ConfigError: the environment has not been put into words, or a prompt is wrong.

    Attributes:
        camera: what players are shown of their game; None until somebody plays.
    """

    def __init__(self, spec: EnvSpec, llm: ChatModel, settings: PlayerSettings) -> None:
        if spec.text is None or "text" not in spec.observation:
            raise Incompatible(
                Misfit.INTERFACE,
                f"a player that reads needs the game in words, and env={spec.name} has none: set env.text (a shipped "
                "text, a file, own, auto), or env.observe=[text] where the environment has that option",
            )
        self.spec, self.text, self.llm = spec, spec.text, llm
        self.camera: Camera | None = None
        self.channels: tuple[str, ...] = (
            "text",
            *(name for name in ("action_mask",) if settings.legal_only and name in spec.observation),
            *(name for name in ("pixels",) if settings.show_frames and _is_picture(spec, name)),
        )
        self.settings, repair_turns = settings, settings.repair_turns
        self.must_reflect = settings.reflection and settings.require_reflection
        self.answers: AnswerFormat = answers_of(spec, settings.answer_with, settings.decimals)
        whole = spec.continuous_actions is not None and all(spec.continuous_actions.whole)
        decimals = 0 if whole else settings.decimals
        self.talk: Talk | None = None
        if settings.talk_every:
            self.talk = Talk(spec, settings.talk_every, settings.talk_to, settings.talk_length)
        self.prompts = PlayerPrompts(spec, settings, self.answers, decimals, self.channels, self.talk)
        self.asker: StructuredQuery[PlayerReply] = StructuredQuery(
            llm, "player", self._read, self.prompts.repair, None, repair_turns
        )
        self.speaker: StructuredQuery[Said] = StructuredQuery(
            llm, "talk", lambda reply: Said(reply.text), self.prompts.repair, None, repair_turns
        )
        self.lessons = Lessons(llm, self.prompts, settings.lessons, repair_turns)
        # Turns that are kept: as many as are shown, or as a lesson is drawn from.
        shown = settings.history if settings.sliding_history else max(2 * settings.history - 1, 0)
        self._keep = max(shown, LESSON_TURNS if settings.lessons else 0)
        self._schema = reply_schema(self.answers, settings.reflection, settings.plan)
        self.seats = [[PlayerConversation() for _ in range(spec.n_agents)] for _ in range(spec.n_envs)]
        self.playing = np.zeros(spec.n_envs, dtype=bool)
        self.episodes: Sequence[int] | None = None
        """Numbers of the episodes that the games are in: with them replies belong to a place in an episode, and not to
        whoever asked first. None: equal questions are counted."""
        self.models = tuple(settings.models) or (CHOSEN,) * spec.n_agents
        self.counts = PlayerCounts(self.models)
        # Faults in prompts are found before the first question.
        self.system = [self.prompts.system(agent, ()) for agent in range(spec.n_agents)]
        self.prompts.repair("-")

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """New episodes have begun; games in which none has begun wait."""
        self.playing |= games
        for game in np.flatnonzero(games):
            for seat in self.seats[game]:
                seat.begin()

    def on_step(self, transition: Transition) -> None:
        """What the last actions led to."""
        step, ended = transition.step, transition.ended
        reward, terminated = on_host(step.reward), np.asarray(step.terminated)
        for game in np.flatnonzero(self.playing):
            for agent, seat in enumerate(self.seats[game]):
                seat.add_reward(float(reward[game, agent]))
                if ended[game]:
                    seat.end(bool(terminated[game]), self.settings.lessons > 0)
        self.playing &= ~ended

    def act(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Actions [n_envs, n_agents], or [n_envs, n_agents, a], with a note on each.

        Raises:
            LLMError: the model could not be reached, or may not be paid any more.
        """
        return conversed(self.acting(observation), self.llm.chat)

    def acting(self, observation: dict[str, Any]) -> Conversing[PolicyOutput]:
        """`act` for who sends the requests elsewhere: yields them, is sent their replies, and returns the actions."""
        notes: list[list[dict[str, Any]]] = [[{} for _ in row] for row in self.seats]
        yield from self._learning(notes)
        asked: list[tuple[int, int]] = []
        legal: list[list[bool] | None] = []
        reading: list[tuple[int, int]] = []
        for game in np.flatnonzero(self.playing).tolist():
            views = self._views(observation, game)
            for agent, seat in enumerate(self.seats[game]):
                text, mask = str(observation["text"][game, agent]), self._mask(observation, game, agent)
                if not text:
                    # Asked as soon as there is something to decide again.
                    seat.action, seat.since = self.answers.fallback(None, mask), self.settings.action_every
                    continue
                told = text if self.settings.show_text else None
                legal_answers = None if mask is None else self.answers.legal_answers(mask)
                seat.add_observation(told, legal_answers, self.settings.show)
                if views:
                    seat.add_frame(views[agent], self.settings.show_frames)
                reading.append((game, agent))
                forced = mask is not None and sum(mask) == 1
                if forced:
                    # Asked as soon as there is a choice again.
                    seat.action, seat.since = self.answers.fallback(None, mask), self.settings.action_every
                    seat.frames = seat.frames[-UNASKED:]
                if not forced and self._asks(seat, mask):
                    asked.append((game, agent))
                    legal.append(mask)
                else:
                    assert seat.action is not None
                    notes[game][agent] |= {"action": self.answers.shown(seat.action), "asked": False}
                    notes[game][agent] |= {"reflection": ""} if forced else {}
                    notes[game][agent] |= self._who(self.models[agent])
        yield from self._talking(reading, observation["text"], notes)
        questions = [self._question(g, a) for g, a in asked]
        parsers = [lambda reply, mask=mask: self._read(reply, mask) for mask in legal]
        decisions = (yield from self.asker.asking(questions, parsers)) if questions else []
        for (game, agent), mask, decision, took in zip(asked, legal, decisions, self.asker.asked, strict=False):
            notes[game][agent] |= self._decide(self.seats[game][agent], decision, mask, took, self.models[agent])
        return PolicyOutput(self._actions(), notes=notes)

    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        """Zeros: it knows no values."""
        return torch.zeros(self.spec.n_envs, self.spec.n_agents)

    def metrics(self) -> dict[str, float]:
        """Return what players count: `player/decisions`, `player/lessons`, `player/messages` (without silence);
        `player/invalid_rate`, of all replies; `player/failed_calls`, questions that got no reply;
        `player/fallback_rate`, decisions without a valid reply; the two rates of each model, too, as
        `player/<model>/...`, where players are several; and `llm/...` of `StructuredQuery.metrics`, of all kinds of
        questions together.
        """
        others = (self.lessons.asker.metrics(), self.speaker.metrics())
        both = {name: x + sum(other[name] for other in others) for name, x in self.asker.metrics().items()}
        return both | self.counts.metrics(
            bool(self.settings.lessons), bool(self.settings.models), talks=self.talk is not None
        )

    @property
    def carried(self) -> tuple[str, ...]:
        """What goes from an episode to the next one of the same game: "last_episode", "lessons", or nothing."""
        told = ("last_episode",) if "last_episode" in self.settings.show else ()
        return (*told, *(("lessons",) if self.settings.lessons else ()))

    def one_game(self) -> LLMPolicy:
        """The same player for one game by itself, with counters of its own."""
        return LLMPolicy(replace(self.spec, n_envs=1), self.llm, self.settings)

    def counted(self) -> Counted:
        """What was counted since the last time that this was asked for."""
        found = tuple(dict(counters) for counters in self._counters)
        for counters in self._counters:
            counters.update(dict.fromkeys(counters, 0))
        return found

    def add(self, counted: Counted) -> None:
        """Count what another one counted."""
        for counters, more in zip(self._counters, counted, strict=True):
            counters.update({name: x + more[name] for name, x in counters.items()})

    @property
    def _counters(self) -> tuple[dict[str, int], ...]:
        return *self.counts.each, self.asker.counters, self.lessons.asker.counters, self.speaker.counters

    def state_dict(self) -> State:
        return {
            "seats": [[seat.state_dict() for seat in row] for row in self.seats],
            "playing": self.playing.copy(),
            "counts": self.counts.state_dict(),
            "asker": self.asker.state_dict(),
            "pupil": self.lessons.asker.state_dict(),
            "speaker": self.speaker.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.seats = [[PlayerConversation.from_state(seat) for seat in row] for row in state["seats"]]
        self.playing = np.array(state["playing"])
        self.counts.load_state_dict(state["counts"])
        self.asker.load_state_dict(state["asker"])
        self.lessons.asker.load_state_dict(state["pupil"])
        self.speaker.load_state_dict(state["speaker"])

    def _asks(self, seat: PlayerConversation, mask: Sequence[bool] | None) -> bool:
        if seat.action is None or seat.since >= self.settings.action_every or seat.decided == 0:
            return True
        return isinstance(seat.action, int) and mask is not None and not mask[seat.action]

    def _views(self, observation: dict[str, Any], game: int) -> list[str]:
        """What each player of a game is shown of it now: what it observes in pixels, or what the camera takes where it
        observes none; [] where players are shown nothing."""
        if not self.settings.show_frames:
            return []
        if "pixels" in self.channels:
            frames = [np.asarray(on_host(view)) for view in observation["pixels"][game]]
        else:
            assert self.camera is not None
            frames = list(self.camera(game))
        return [picture(frame, self.settings.frame_size) for frame in frames]

    def _question(self, game: int, agent: int) -> Query:
        seat = self.seats[game][agent]
        return self._asked_of(game, agent, seat.decided, self._schema)

    def _asked_of(self, game: int, agent: int, what: object, schema: Any) -> Query:
        """Return a question to a player about what it sees now; `what` names it among the questions of an episode."""
        seat, model = self.seats[game][agent], self.models[agent]
        prompt = self.prompts.system(agent, tuple(seat.lessons)) if seat.lessons else self.system[agent]
        messages = self._fitting(seat, prompt, model)
        return Query(messages, prompt.name, prompt.hash, schema, self._place(game, agent, what), model)

    def _place(self, game: int, agent: int, what: object) -> str:
        return "" if self.episodes is None else f"episode {self.episodes[game]}, player {self._seat(agent)}, {what}"

    def _seat(self, agent: int) -> int:
        """Return which player of the whole game an agent is, from 0."""
        return self.spec.seats[agent] if self.spec.seats else agent

    def _fitting(self, seat: PlayerConversation, prompt: Prompt, model: str) -> tuple[Message, ...]:
        """The messages with as many earlier turns as the model's context window takes."""
        whole = seat.window(self.settings.history, self.settings.sliding_history)
        shown = most_that_fit(lambda k: self.llm.fits(seat.messages(prompt.text, k), model), whole)
        if shown < 0:
            raise LLMError(
                f"the prompt {prompt.name} and one observation do not fit into the context window of "
                f"{self.llm.label_of(model)}; "
                "choose a model with a longer one, or a smaller llm.max_tokens"
            )
        self.asker.counters["trimmed_prompts"] += shown < whole
        if shown < whole and not self.settings.sliding_history:
            shown = -(-shown // 2)  # room to grow: else the oldest turn would go with every question
        seat.shown_from = seat.decided - shown
        return seat.messages(prompt.text, shown)

    def _decide(
        self,
        seat: PlayerConversation,
        decision: PlayerReply | None,
        mask: Sequence[bool] | None,
        took: QueryStats,
        model: str,
    ) -> dict[str, Any]:
        """Take a decision, or what is done in its place; the note on it."""
        made = decision or PlayerReply(self.answers.fallback(seat.action, mask))
        shown = self.answers.shown(made.action)
        plan = {"plan": made.plan} if self.settings.plan and made.plan else {}
        if decision is None:
            replaced = f"your last reply could not be used; done instead: {said(shown)}"
            seat.answer(FALLBACK, made.action, self._keep, replaced)
        else:
            reflected = {"reflection": made.reflection} if self.settings.reflection else {}
            answer = said({**reflected, **plan, "action": shown})
            seat.answer(answer, made.action, self._keep, plan=plan.get("plan", ""))
        self.counts.decided(model, decision is None)
        self.counts.took(model, took)
        return {
            "reflection": made.reflection,
            **plan,
            "action": shown,
            "asked": True,
            "valid": decision is not None,
            "reply": took.text,
            **self._who(model),
            **_took(took),
        }

    def _talking(
        self, reading: Sequence[tuple[int, int]], texts: Any, notes: list[list[dict[str, Any]]]
    ) -> Conversing[None]:
        """Let players who are `reading` [(game, agent)] speak where there is a round of talk, and hear each other."""
        talk = self.talk
        if talk is None:
            return
        speaking = [(g, a) for g, a in reading if talk.due(self.seats[g][a].steps)]
        if not speaking:
            return
        for g, a in speaking:
            self.seats[g][a].asked_to_talk = True
        questions = [self._asked_of(g, a, f"talk {self.seats[g][a].steps}", talk.schema()) for g, a in speaking]
        parsers = [lambda reply, agent=a: talk.read(reply.text, agent, reply.cut) for _, a in speaking]
        replies = yield from self.speaker.asking(questions, parsers)
        said: dict[int, list[Said | None]] = {g: [None] * self.spec.n_agents for g, _ in speaking}
        for (g, a), message_, took in zip(speaking, replies, self.speaker.asked, strict=True):
            said[g][a] = message_ or Said("")
            self.seats[g][a].asked_to_talk = False
            self.counts.spoke(self.models[a], message_)
            self.counts.took(self.models[a], took)
            notes[g][a] |= {"said": (message_ or Said("")).text, "talk_took": _took(took)}
        for g, round_ in said.items():
            for a, entries in enumerate(talk.heard(round_, [str(text) for text in texts[g]])):
                if (own := round_[a]) is not None:
                    self.seats[g][a].hear(own.text, own.to, entries)

    def _learning(self, notes: list[list[dict[str, Any]]]) -> Conversing[None]:
        """Draw a lesson from each episode that a player leaves behind for another one."""
        if not self.settings.lessons:
            return
        pupils = [
            (game, agent)
            for game in np.flatnonzero(self.playing).tolist()
            for agent, seat in enumerate(self.seats[game])
            if seat.unlearnt
        ]
        drawn = yield from self.lessons.drawing(
            [(self.seats[g][a], a, self.models[a], self._place(g, a, "lesson")) for g, a in pupils]
        )
        for (game, agent), (_, lesson, took) in zip(pupils, drawn, strict=False):
            if lesson is not None:
                self.counts.learnt(self.models[agent])
            self.counts.took(self.models[agent], took)
            notes[game][agent] |= {"lesson": lesson or "", "lesson_took": _took(took)}

    def _read(self, reply: ChatReply, legal: Sequence[bool] | None = None) -> PlayerReply:
        return read_reply(reply.text, self.answers, legal, self.must_reflect, reply.cut)

    def _mask(self, observation: dict[str, Any], game: int, agent: int) -> list[bool] | None:
        if "action_mask" not in self.channels:
            return None
        mask: list[bool] = np.asarray(observation["action_mask"][game, agent]).astype(bool).tolist()
        # Where all are legal, or the environment knows of none, there is nothing to tell.
        return mask if any(mask) and not all(mask) else None

    def _actions(self) -> torch.Tensor:
        """Of all games; those that wait do anything."""
        numbers = self.spec.continuous_actions
        blank: Action = 0 if numbers is None else self.answers.fallback(None, None)
        actions = [[blank if seat.action is None else seat.action for seat in row] for row in self.seats]
        return torch.tensor(actions, dtype=torch.int64 if numbers is None else torch.float32)

    def _who(self, model: str) -> dict[str, Any]:
        """Who speaks, for the note on a step; said where players are several models."""
        return {"model": self.llm.label_of(model)} if self.settings.models else {}


def _is_picture(spec: EnvSpec, name: str) -> bool:
    """Whether a channel holds pictures as they can be shown."""
    channel = spec.observation.get(name)
    return channel is not None and channel.dtype == "uint8" and len(channel.shape) == 3 and channel.shape[-1] == 3


def _took(asked: QueryStats) -> dict[str, Any]:
    return {
        "replies": asked.replies,
        "invalid": asked.invalid,
        "failed": asked.failed,
        "prompt_tokens": asked.prompt_tokens,
        "completion_tokens": asked.completion_tokens,
        "cost": asked.cost,
    }
