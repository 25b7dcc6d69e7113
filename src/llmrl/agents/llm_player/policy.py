"""Policy of a chat model that is shown observations in words, reflects, and answers with an action."""

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
    make_answer_format,
    read_reply,
    reply_schema,
)
from llmrl.agents.llm_player.conversation import PlayerConversation, to_json
from llmrl.agents.llm_player.lessons import LESSON_TURNS, Lessons
from llmrl.agents.llm_player.player_counts import PlayerCounts
from llmrl.agents.llm_player.player_prompts import PlayerPrompts
from llmrl.agents.llm_player.player_settings import PlayerContent, PlayerSettings
from llmrl.agents.llm_player.talk import Talk, TalkMessage
from llmrl.core.errors import Incompatible, Misfit
from llmrl.core.model_protocols import ChatModel, ConversationGenerator, run_conversation
from llmrl.core.observers import Transition
from llmrl.core.protocols import Camera
from llmrl.core.records import CHOSEN, ChatReply, Observation, PolicyOutput, State, on_host
from llmrl.core.spaces import EnvSpec
from llmrl.llms.images import encode_frame
from llmrl.llms.local.trajectories import TrajectoryBuffer
from llmrl.llms.structured_query import Query, QueryStats, StructuredQuery

FALLBACK = "(no usable reply)"
"""Answer in the history that replaces an invalid reply; the next turn states the action taken."""
MAX_UNASKED_STEPS = 10
"""Maximum number of steps without a choice that the next question shows, the newest ones."""

Counters = tuple[dict[str, int], ...]
"""Counters of a player, and of its types of questions."""


class LLMPolicy:
    """Policy that requests the actions of all players of all active games from a chat model, in one batch per step.

    Inactive games are not part of the batch. A player with an empty text has nothing to decide (it is temporarily out
    of the game) and takes the first action; a player with a single legal action takes it. An invalid reply is returned
    to the model up to `repair_turns` times. If no reply is valid, the last action is repeated if it is legal, else the
    first legal action is taken (for continuous actions the last numbers, else 0), and this is counted. Therefore a
    reply never ends an experiment, only an unreachable model does.

    With `lessons`, a player that starts another episode is first asked for a lesson from the last one, and is shown the
    newest lessons from then on (Reflexion, arXiv 2303.11366).

    Args:
        spec: spec of the environment.
        llm: the model.
        settings: options of the players.
        content: models, personas and user's prompts; None: none of them.
        recorder: recorder of sampled replies and their rewards for a learner; None: nothing is recorded.
        adapters: name of the adapter of each player (`ChatRequest.adapter`); (): there are none.

    Raises:
        ConfigError: the environment has no description in words, or a prompt is wrong.

    Attributes:
        camera: function that renders the frames players are shown; None until a game is played.
    """

    def __init__(
        self,
        spec: EnvSpec,
        llm: ChatModel,
        settings: PlayerSettings,
        content: PlayerContent | None = None,
        recorder: TrajectoryBuffer | None = None,
        adapters: Sequence[str] = (),
    ) -> None:
        if spec.text is None or "text" not in spec.observation:
            raise Incompatible(
                Misfit.INTERFACE,
                f"a language player needs observations in words, but env={spec.name} has none; set env.text (an "
                "included text, a file, own, auto), or env.observe=[text] if the environment has that option",
            )
        self.spec, self.text, self.llm, self._recorder = spec, spec.text, llm, recorder
        self.camera: Camera | None = None
        self.channels: tuple[str, ...] = (
            "text",
            *(name for name in ("action_mask",) if settings.require_legal and name in spec.observation),
            *(name for name in ("pixels",) if settings.show_frames and _is_picture(spec, name)),
        )
        self.settings, self.content, repair_turns = settings, content or PlayerContent(), settings.repair_turns
        self.must_reflect = settings.reflection and settings.require_reflection
        self.answers: AnswerFormat = make_answer_format(spec, settings.action_format, settings.decimals)
        all_integer = spec.continuous_actions is not None and all(spec.continuous_actions.whole)
        decimals = 0 if all_integer else settings.decimals
        self.talk: Talk | None = None
        if settings.message_interval:
            self.talk = Talk(spec, settings.message_interval, settings.message_recipients, settings.max_message_length)
        self.prompts = PlayerPrompts(spec, settings, self.content, self.answers, decimals, self.channels, self.talk)
        self.structured_query: StructuredQuery[PlayerReply] = StructuredQuery(
            llm, "player", self._read, self.prompts.repair, None, repair_turns
        )
        self.speaker: StructuredQuery[TalkMessage] = StructuredQuery(
            llm, "talk", lambda reply: TalkMessage(reply.text), self.prompts.repair, None, repair_turns
        )
        self.lessons = Lessons(llm, self.prompts, settings.lessons, repair_turns)
        # Number of turns to keep: as many as are shown, or are needed for a lesson.
        max_turns = settings.history if settings.sliding_history else max(2 * settings.history - 1, 0)
        self._keep = max(max_turns, LESSON_TURNS if settings.lessons else 0)
        self._schema = reply_schema(self.answers, settings.reflection)
        self.seats = [[PlayerConversation() for _ in range(spec.n_agents)] for _ in range(spec.n_envs)]
        self.playing = np.zeros(spec.n_envs, dtype=bool)
        self.episodes: Sequence[int] | None = None
        """Numbers of the games' present episodes, which identify questions by their place in an episode.

        None: equal questions are distinguished by counting them.
        """
        self.models = tuple(self.content.models) or (CHOSEN,) * spec.n_agents
        self.adapters = tuple(adapters) or ("",) * spec.n_agents
        self.counts = PlayerCounts(self.models)
        # Raises if a prompt is wrong, before the first question.
        for agent in range(spec.n_agents):
            self.prompts.system(agent, ())
        self.prompts.repair("-")

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """Start new episodes in `games`; games without an episode are inactive."""
        self.playing |= games
        if self._recorder is not None:
            self._recorder.begin(np.flatnonzero(games).tolist())
        for game in np.flatnonzero(games):
            for seat in self.seats[game]:
                seat.begin()

    def on_step(self, transition: Transition) -> None:
        """Add the results of the last actions."""
        step, done = transition.step, transition.ended
        reward, terminated = on_host(step.reward), np.asarray(step.terminated)
        for game in np.flatnonzero(self.playing):
            for agent, seat in enumerate(self.seats[game]):
                seat.add_reward(float(reward[game, agent]))
                if self._recorder is not None:
                    self._recorder.add_reward(int(game), agent, float(reward[game, agent]))
                if done[game]:
                    seat.end(bool(terminated[game]), self.settings.lessons > 0)
            if self._recorder is not None and done[game]:
                self._recorder.end(int(game))
        self.playing &= ~done

    def act(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Return actions [n_envs, n_agents], or [n_envs, n_agents, a], with a note on each.

        Raises:
            LLMError: the model could not be reached, or the budget is exhausted.
        """
        return run_conversation(self.acting(observation), self.llm.chat)

    def acting(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> ConversationGenerator[PolicyOutput]:
        """Do the same as `act` as a generator that yields requests, receives their replies, and returns the actions."""
        notes: list[list[dict[str, Any]]] = [[{} for _ in players] for players in self.seats]
        yield from self._learning(notes)
        pending: list[tuple[int, int]] = []
        legal: list[list[bool] | None] = []
        observers: list[tuple[int, int]] = []
        for game in np.flatnonzero(self.playing).tolist():
            views = self._frames(observation, game)
            for agent, seat in enumerate(self.seats[game]):
                text, mask = str(observation["text"][game, agent]), self._mask(observation, game, agent)
                if not text:
                    # The player is asked as soon as it has something to decide again.
                    seat.action, seat.since = self.answers.fallback(None, mask), self.settings.action_interval
                    continue
                frame_text = text if self.settings.show_text else None
                legal_answers = None if mask is None else self.answers.legal_answers(mask)
                seat.add_observation(frame_text, legal_answers, self.settings.observation_extras)
                if views:
                    seat.add_frame(views[agent], self.settings.show_frames)
                observers.append((game, agent))
                is_forced = mask is not None and sum(mask) == 1
                if is_forced:
                    # The player is asked as soon as it has a choice again.
                    seat.action, seat.since = self.answers.fallback(None, mask), self.settings.action_interval
                    seat.frames = seat.frames[-MAX_UNASKED_STEPS:]
                if not is_forced and self._must_ask(seat, mask):
                    pending.append((game, agent))
                    legal.append(mask)
                else:
                    assert seat.action is not None
                    notes[game][agent] |= {"action": self.answers.as_json(seat.action), "asked": False}
                    notes[game][agent] |= {"reflection": ""} if is_forced else {}
                    notes[game][agent] |= self._speaker_fields(self.models[agent])
        yield from self._talking(observers, observation["text"], notes)
        questions = [
            self._make_query(game, agent, self.seats[game][agent].decided, self._schema) for game, agent in pending
        ]
        parsers = [lambda reply, mask=mask: self._read(reply, mask) for mask in legal]
        decisions = (yield from self.structured_query.ask_generator(questions, parsers)) if questions else []
        for (game, agent), mask, decision, stats in zip(
            pending, legal, decisions, self.structured_query.query_stats, strict=False
        ):
            self._record(game, agent, str(observation["text"][game, agent]), stats)
            notes[game][agent] |= self._apply_decision(
                self.seats[game][agent], decision, mask, stats, self.models[agent]
            )
        actions = self._actions()
        # Rollouts of learners hold these; the learner of a chat model uses the log-probabilities of tokens instead.
        zeros = None if self._recorder is None else torch.zeros(actions.shape[:2])
        return PolicyOutput(actions, log_prob=zeros, value=zeros, notes=notes)

    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return zeros, because the policy estimates no values."""
        return torch.zeros(self.spec.n_envs, self.spec.n_agents)

    def metrics(self) -> dict[str, float]:
        """Return the players' counts and rates, and `llm/...` of `StructuredQuery.metrics` for all questions together.

        Counts: `player/decisions`, `player/lessons`, `player/messages` (non-empty ones), and `player/failed_calls`
            (questions
        without a reply). Rates: `player/invalid_rate` among all replies, and `player/fallback_rate`, decisions without
        a valid reply. With several models, there are also both rates of each model, as `player/<model>/...`.
        """
        other_metrics = (self.lessons.structured_query.metrics(), self.speaker.metrics())
        all_metrics = {
            name: x + sum(other[name] for other in other_metrics) for name, x in self.structured_query.metrics().items()
        }
        return all_metrics | self.counts.metrics(
            bool(self.settings.lessons), bool(self.content.models), talk=self.talk is not None
        )

    @property
    def carried(self) -> tuple[str, ...]:
        """Names of what an episode passes on to the next one of the same game.

        These are "last_episode" and "lessons", or nothing.
        """
        episode_extras = ("last_episode",) if "last_episode" in self.settings.observation_extras else ()
        return (*episode_extras, *(("lessons",) if self.settings.lessons else ()))

    def one_game(self) -> LLMPolicy:
        """Return the same player for a single game, with separate counters."""
        return LLMPolicy(replace(self.spec, n_envs=1), self.llm, self.settings, self.content)

    def counted(self) -> Counters:
        """Return the counts since the last call, and reset them."""
        snapshot = tuple(dict(counters) for counters in self._counters)
        for counters in self._counters:
            counters.update(dict.fromkeys(counters, 0))
        return snapshot

    def add(self, counted: Counters) -> None:
        """Add the counts of another policy."""
        for counters, counts in zip(self._counters, counted, strict=True):
            counters.update({name: x + counts[name] for name, x in counters.items()})

    @property
    def _counters(self) -> tuple[dict[str, int], ...]:
        """All counters, which may be changed in place."""
        return (
            *self.counts.counters,
            self.structured_query.counters,
            self.lessons.structured_query.counters,
            self.speaker.counters,
        )

    def state_dict(self) -> State:
        return {
            "seats": [[seat.state_dict() for seat in players] for players in self.seats],
            "playing": self.playing.copy(),
            "counts": self.counts.state_dict(),
            "structured_query": self.structured_query.state_dict(),
            "pupil": self.lessons.structured_query.state_dict(),
            "speaker": self.speaker.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.seats = [[PlayerConversation.from_state(seat) for seat in players] for players in state["seats"]]
        self.playing = np.array(state["playing"])
        self.counts.load_state_dict(state["counts"])
        self.structured_query.load_state_dict(state["structured_query"])
        self.lessons.structured_query.load_state_dict(state["pupil"])
        self.speaker.load_state_dict(state["speaker"])

    def _must_ask(self, seat: PlayerConversation, mask: Sequence[bool] | None) -> bool:
        """Return whether a player must be asked for an action now."""
        if seat.action is None or seat.since >= self.settings.action_interval or seat.decided == 0:
            return True
        return isinstance(seat.action, int) and mask is not None and not mask[seat.action]

    def _frames(self, observation: dict[str, Any], game: int) -> list[str]:
        """Return what each player of a game is shown now, as PNG data URLs.

        These are its observations in pixels or, without such observations, the camera's frames; [] if players are shown
        no frames.
        """
        if not self.settings.show_frames:
            return []
        if "pixels" in self.channels:
            frames = [np.asarray(on_host(view)) for view in observation["pixels"][game]]
        else:
            assert self.camera is not None
            frames = list(self.camera(game))
        return [encode_frame(frame, self.settings.frame_size) for frame in frames]

    def _make_query(self, game: int, agent: int, label: object, schema: Any) -> Query:
        """Return a question to a player about its present observation.

        `label` identifies the question within the episode.
        """
        place = self._place(game, agent, label)
        query = self.prompts.query(
            self.seats[game][agent], agent, self.models[agent], self.structured_query, schema, place
        )
        return replace(query, adapter=self.adapters[agent])

    def _place(self, game: int, agent: int, label: object) -> str:
        """Return the place of a question in the run's episodes; "" if episodes are not numbered."""
        if self.episodes is None:
            return ""
        player = self.spec.seats[agent] if self.spec.seats else agent
        return f"episode {self.episodes[game]}, player {player}, {label}"

    def _apply_decision(
        self,
        seat: PlayerConversation,
        decision: PlayerReply | None,
        mask: Sequence[bool] | None,
        stats: QueryStats,
        model: str,
    ) -> dict[str, Any]:
        """Take the decision of a reply or its fallback, and return the note on it."""
        reply = decision or PlayerReply(self.answers.fallback(seat.action, mask))
        action_text = self.answers.as_json(reply.action)
        if decision is None:
            notice = f"your last reply could not be used; done instead: {to_json(action_text)}"
            seat.answer(FALLBACK, reply.action, self._keep, notice)
        else:
            reflection = {"reflection": reply.reflection} if self.settings.reflection else {}
            seat.answer(to_json({**reflection, "action": action_text}), reply.action, self._keep)
        self.counts.count(model, stats, decisions=1, fallbacks=decision is None)
        return {
            "reflection": reply.reflection,
            "action": action_text,
            "asked": True,
            "valid": decision is not None,
            "reply": stats.text,
            **self._speaker_fields(model),
            **_stats_row(stats),
        }

    def _record(self, game: int, agent: int, observation: str, stats: QueryStats) -> None:
        """Add the replies to a question to the player's trajectory."""
        if self._recorder is not None:
            step = self.seats[game][agent].steps
            for sample, is_valid in stats.samples:
                self._recorder.add_reply(game, agent, sample, observation, is_valid, step)

    def _talking(
        self, observers: Sequence[tuple[int, int]], texts: Any, notes: list[list[dict[str, Any]]]
    ) -> ConversationGenerator[None]:
        """Let the players in `observers`, pairs (game, agent), exchange messages if a round of talk is due."""
        talk = self.talk
        if talk is None:
            return
        speaking = [(game, agent) for game, agent in observers if talk.due(self.seats[game][agent].steps)]
        for game, agent in speaking:
            self.seats[game][agent].asked_to_talk = True
        questions = [
            self._make_query(game, agent, f"talk {self.seats[game][agent].steps}", talk.schema())
            for game, agent in speaking
        ]
        parsers = [lambda reply, agent=agent: talk.read(reply.text, agent, reply.cut) for _, agent in speaking]
        replies = (yield from self.speaker.ask_generator(questions, parsers)) if questions else []
        game_messages: dict[int, list[TalkMessage | None]] = {game: [None] * self.spec.n_agents for game, _ in speaking}
        for (game, agent), message, stats in zip(speaking, replies, self.speaker.query_stats, strict=False):
            self._record(game, agent, f"talk: {texts[game, agent]}", stats)
            game_messages[game][agent] = message or TalkMessage("")
            self.seats[game][agent].asked_to_talk = False
            self.counts.count(self.models[agent], stats, messages=message is not None and bool(message.text))
            notes[game][agent] |= {"said": (message or TalkMessage("")).text, "talk_took": _stats_row(stats)}
        heard = yield from talk.exchange(game_messages)
        for game, messages in game_messages.items():
            for agent, heard_messages in enumerate(heard[game]):
                if (utterance := messages[agent]) is not None:
                    self.seats[game][agent].hear(utterance.text, utterance.to, heard_messages)

    def _learning(self, notes: list[list[dict[str, Any]]]) -> ConversationGenerator[None]:
        """Draw a lesson from each completed episode of players that start another one."""
        if not self.settings.lessons:
            return
        pupils = [
            (game, agent)
            for game in np.flatnonzero(self.playing).tolist()
            for agent, seat in enumerate(self.seats[game])
            if seat.unlearnt
        ]
        lessons = yield from self.lessons.draw(
            [
                (
                    self.seats[game][agent],
                    agent,
                    self.models[agent],
                    self.adapters[agent],
                    self._place(game, agent, "lesson"),
                )
                for game, agent in pupils
            ]
        )
        for (game, agent), (_, lesson, stats) in zip(pupils, lessons, strict=False):
            self.counts.count(self.models[agent], stats, lessons=lesson is not None)
            notes[game][agent] |= {"lesson": lesson or "", "lesson_took": _stats_row(stats)}

    def _read(self, reply: ChatReply, legal: Sequence[bool] | None = None) -> PlayerReply:
        return read_reply(reply.text, self.answers, legal, self.must_reflect, reply.cut)

    def _mask(self, observation: dict[str, Any], game: int, agent: int) -> list[bool] | None:
        """Return the legal actions of a player; None if all are legal or unknown."""
        if "action_mask" not in self.channels:
            return None
        mask: list[bool] = np.asarray(observation["action_mask"][game, agent]).astype(bool).tolist()
        # A mask with all or no legal actions is not shown.
        return mask if any(mask) and not all(mask) else None

    def _actions(self) -> torch.Tensor:
        """Return the actions of all games; those of inactive games are arbitrary."""
        numbers = self.spec.continuous_actions
        default_action: Action = 0 if numbers is None else self.answers.fallback(None, None)
        actions = [
            [default_action if seat.action is None else seat.action for seat in players] for players in self.seats
        ]
        return torch.tensor(actions, dtype=torch.int64 if numbers is None else torch.float32)

    def _speaker_fields(self, model: str) -> dict[str, Any]:
        """Return the label of the speaking model for a note; {} if all players are the same model."""
        return {"model": self.llm.label_of(model)} if self.content.models else {}


def _is_picture(spec: EnvSpec, name: str) -> bool:
    """Return whether a channel contains images that can be shown."""
    channel = spec.observation.get(name)
    return channel is not None and channel.dtype == "uint8" and len(channel.shape) == 3 and channel.shape[-1] == 3


def _stats_row(stats: QueryStats) -> dict[str, Any]:
    """Return the statistics of a question for a note."""
    return {
        "replies": stats.replies,
        "invalid": stats.invalid,
        "failed": stats.failed,
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.completion_tokens,
        "cost": stats.cost,
    }
