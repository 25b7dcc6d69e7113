"""Policy of a chat model that reads observations in words, reflects, and answers with an action."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from llmrl.agents.llm_player.answer_format import (
    Action,
    AnswerFormat,
    PlayerReply,
    build_reply_schema,
    make_answer_format,
    parse_player_reply,
)
from llmrl.agents.llm_player.conversation import PlayerConversation, to_json
from llmrl.agents.llm_player.lessons import MAX_LESSON_TURNS, LessonRequester
from llmrl.agents.llm_player.player_counts import PlayerCounts
from llmrl.agents.llm_player.player_prompts import PlayerPrompts, PlayerResources, PlayerSettings
from llmrl.agents.llm_player.talk import Talk, TalkMessage
from llmrl.core.errors import IncompatibilityReason, Incompatible
from llmrl.core.model_protocols import ChatModel, ConversationGenerator, run_conversation
from llmrl.core.observers import Transition
from llmrl.core.protocols import Camera
from llmrl.core.records import CHOSEN_MODEL, ChatReply, ChatRequest, Observation, PolicyOutput, State, to_numpy
from llmrl.core.spaces import EnvSpec
from llmrl.llms.images import encode_frame
from llmrl.llms.local.learning import TrajectoryBuffer
from llmrl.llms.structured_query import QueryStats, StructuredQuery

FALLBACK_ANSWER = "(no usable reply)"
"""Answer in the history that replaces an invalid reply; the next turn states the action taken."""
MAX_FORCED_STEPS = 10
"""Maximum number of steps with a single legal action that the next question shows, the newest ones."""

CounterSnapshot = tuple[dict[str, int], ...]
"""Counts of each model's counters, then of each `StructuredQuery` of the policy."""


class LLMPolicy:
    """Policy that requests the actions of all players of all active games from a chat model, in one batch per step.

    Inactive games are not part of the batch. A player with an empty text has nothing to decide (it is temporarily out
    of the game) and takes the first legal action; a player with a single legal action takes it. An invalid reply is
    returned to the model up to `repair_turns` times. If no reply is valid, the last action is repeated if it is legal,
    else the first legal action is taken (for continuous actions the last numbers, else 0), and this is counted. So no
    reply ends an experiment; only an unreachable model or an exhausted budget does.

    With `lessons`, a player that starts another episode is first asked for a lesson from the last one. Its prompts
    contain the newest lessons (Reflexion, arXiv 2303.11366).

    Args:
        spec: spec of the environment.
        llm: the model.
        settings: options of the players.
        resources: models, personas and user's prompts; None: none of them.
        trajectory_buffer: buffer of sampled replies and their rewards for a learner; None: nothing is recorded.
        adapters: name of the adapter of each player (`ChatRequest.adapter`); (): there are none.

    Raises:
        ConfigError: the environment has no description in words, or a prompt template is invalid.

    Attributes:
        active_mask: whether an episode is in progress in each game, [n_envs] bool.
        conversations: conversation of each player in each game, by game and player.
        camera: function that renders the frames in prompts; None until a game is played.
        episodes: number of each game's present episode, with which questions are identified; None: questions have no
            identifier, and equal ones are distinguished by counting them.
    """

    def __init__(
        self,
        spec: EnvSpec,
        llm: ChatModel,
        settings: PlayerSettings,
        resources: PlayerResources | None = None,
        trajectory_buffer: TrajectoryBuffer | None = None,
        adapters: Sequence[str] = (),
    ) -> None:
        if spec.text is None or "text" not in spec.observation:
            raise Incompatible(
                IncompatibilityReason.INTERFACE,
                f"a language player needs observations in words, but env={spec.name} has none; set env.text (an "
                "included text, a file, own, auto), or env.observe=[text] if the environment has that option",
            )
        self.spec, self.env_description, self.llm = spec, spec.text, llm
        self._is_recording = trajectory_buffer is not None
        self._trajectory_buffer = trajectory_buffer or TrajectoryBuffer(is_paused=True)
        self.camera: Camera | None = None
        self.channels: tuple[str, ...] = (
            "text",
            *(name for name in ("action_mask",) if settings.require_legal and name in spec.observation),
            *(name for name in ("pixels",) if settings.show_frames and _is_image_channel(spec, name)),
        )
        self.settings, self.resources, repair_turns = settings, resources or PlayerResources(), settings.repair_turns
        self.requires_reflection = settings.reflection and settings.require_reflection
        self.answers: AnswerFormat = make_answer_format(spec, settings.action_format, settings.decimals)
        all_integer = spec.continuous_actions is not None and all(spec.continuous_actions.is_integer)
        decimals = 0 if all_integer else settings.decimals
        self.talk: Talk | None = None
        if settings.message_interval:
            self.talk = Talk(spec, settings.message_interval, settings.message_recipients, settings.max_message_length)
        self.prompts = PlayerPrompts(spec, settings, self.resources, self.answers, decimals, self.channels, self.talk)
        self.structured_query: StructuredQuery[PlayerReply] = StructuredQuery(
            llm, "player", self._parse_reply, self.prompts.render_repair, None, repair_turns
        )
        self.talk_query: StructuredQuery[TalkMessage] = StructuredQuery(
            llm, "talk", lambda reply: TalkMessage(reply.text), self.prompts.render_repair, None, repair_turns
        )
        self.lesson_requester = LessonRequester(llm, self.prompts, settings.lessons, repair_turns)
        # The keys are those in the state of the policy.
        self._queries: dict[str, StructuredQuery[Any]] = {
            "structured_query": self.structured_query,
            "pupil": self.lesson_requester.structured_query,
            "speaker": self.talk_query,
        }
        # Number of turns to keep: as many as are shown, or are needed for a lesson.
        max_shown_turns = settings.history if settings.sliding_history else max(2 * settings.history - 1, 0)
        self._max_stored_turns = max(max_shown_turns, MAX_LESSON_TURNS if settings.lessons else 0)
        self._reply_schema = build_reply_schema(self.answers, settings.reflection)
        self.conversations = [[PlayerConversation() for _ in range(spec.n_agents)] for _ in range(spec.n_envs)]
        self.active_mask = np.zeros(spec.n_envs, dtype=bool)
        self.episodes: Sequence[int] | None = None
        self.models = tuple(self.resources.models) or (CHOSEN_MODEL,) * spec.n_agents
        self.adapters = tuple(adapters) or ("",) * spec.n_agents
        self.counts = PlayerCounts(self.models)
        # Raises if a prompt template is invalid, before the first question.
        for agent in range(spec.n_agents):
            self.prompts.render_system(agent, ())
        self.prompts.render_repair("-")

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """Start new episodes in `games`; games without an episode are inactive."""
        self.active_mask |= games
        game_indices = np.flatnonzero(games).tolist()
        self._trajectory_buffer.begin_episodes(game_indices)
        for game in game_indices:
            for conversation in self.conversations[game]:
                conversation.begin_episode()

    def on_step(self, transition: Transition) -> None:
        """Add the results of the last actions to conversations and trajectories."""
        step, done = transition.step, transition.ended
        reward, terminated = to_numpy(step.reward), np.asarray(step.terminated)
        for game in np.flatnonzero(self.active_mask).tolist():
            for agent, conversation in enumerate(self.conversations[game]):
                conversation.add_reward(float(reward[game, agent]))
                self._trajectory_buffer.add_reward(game, agent, float(reward[game, agent]))
                if done[game]:
                    conversation.end_episode(bool(terminated[game]), self.settings.lessons > 0)
            if done[game]:
                self._trajectory_buffer.end_episode(game)
        self.active_mask &= ~done

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
        return run_conversation(self.act_as_conversation(observation), self.llm.chat)

    def act_as_conversation(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> ConversationGenerator[PolicyOutput]:
        """Return a generator that yields requests, receives their replies, and returns the output of `act`."""
        notes: list[list[dict[str, Any]]] = [[{} for _ in players] for players in self.conversations]
        yield from self._request_lessons(notes)
        queried_players: list[tuple[int, int, list[bool] | None]] = []
        observing_players: list[tuple[int, int]] = []
        for game in np.flatnonzero(self.active_mask).tolist():
            images = self._encode_frames(observation, game)
            for agent, conversation in enumerate(self.conversations[game]):
                text, mask = str(observation["text"][game, agent]), self._get_legal_mask(observation, game, agent)
                has_single_action = mask is not None and sum(mask) == 1
                if has_single_action or not text:
                    conversation.action = self.answers.choose_fallback(None, mask)
                    # The player is asked as soon as it has a choice again.
                    conversation.steps_since_answer = self.settings.action_interval
                if not text:
                    continue
                legal_answers = None if mask is None else self.answers.format_legal_answers(mask)
                shown_text = text if self.settings.show_text else None
                conversation.add_observation(shown_text, legal_answers, self.settings.observation_extras)
                if images:
                    conversation.add_image(images[agent], self.settings.show_frames)
                observing_players.append((game, agent))
                if has_single_action:
                    conversation.observations = conversation.observations[-MAX_FORCED_STEPS:]
                elif self._needs_query(conversation, mask):
                    queried_players.append((game, agent, mask))
                    continue
                assert conversation.action is not None
                notes[game][agent] |= {
                    "action": self.answers.to_answer(conversation.action),
                    "has_request": False,
                    **({"reflection": ""} if has_single_action else {}),
                    **self._make_model_field(agent),
                }
        yield from self._exchange_messages(observing_players, observation["text"], notes)
        queries = [
            self._make_query(game, agent, self.conversations[game][agent].n_answers, self._reply_schema)
            for game, agent, _ in queried_players
        ]
        parsers = [functools.partial(self._parse_reply, legal_mask=mask) for *_, mask in queried_players]
        decisions = (yield from self.structured_query.ask_generator(queries, parsers)) if queries else []
        for (game, agent, mask), decision, stats in zip(
            queried_players, decisions, self.structured_query.query_stats, strict=False
        ):
            self._record_replies(game, agent, str(observation["text"][game, agent]), stats)
            notes[game][agent] |= self._apply_decision(game, agent, decision, mask, stats)
        actions = self._collect_actions()
        # Rollouts need these fields; the learner of a chat model uses the log-probabilities of tokens instead.
        zeros = torch.zeros(actions.shape[:2]) if self._is_recording else None
        return PolicyOutput(actions, log_prob=zeros, value=zeros, notes=notes)

    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return zeros, because the policy estimates no values."""
        return torch.zeros(self.spec.n_envs, self.spec.n_agents)

    def metrics(self) -> dict[str, float]:
        """Return the players' counts and rates, and `llm/...` of `StructuredQuery.metrics` for all questions together.

        Counts: `player/decisions`, `player/lessons`, `player/messages` (non-empty ones), and `player/failed_calls`
        (questions without a reply). Rates: `player/invalid_rate` among all replies, and `player/fallback_rate`,
        decisions without a valid reply. With several models, there are also both rates of each model, as
        `player/<model>/...`.
        """
        query_metrics = [query.metrics() for query in self._queries.values()]
        totals = {name: sum(metrics[name] for metrics in query_metrics) for name in query_metrics[0]}
        return totals | self.counts.metrics(
            bool(self.settings.lessons), self.talk is not None, bool(self.resources.models)
        )

    @property
    def carried_states(self) -> tuple[str, ...]:
        """Names of the states that an episode passes on to the next one of the same game, see `LLMPlayer`."""
        has_outcome = "last_episode" in self.settings.observation_extras
        return (*["last_episode"] * has_outcome, *["lessons"] * bool(self.settings.lessons))

    def make_single_game(self) -> LLMPolicy:
        """Return a new policy for one game, with the same options and its own counters."""
        return LLMPolicy(replace(self.spec, n_envs=1), self.llm, self.settings, self.resources)

    def take_counts(self) -> CounterSnapshot:
        """Return the counts since the last call, and reset them."""
        counts = tuple(dict(counters) for counters in self._counters)
        for counters in self._counters:
            counters.update(dict.fromkeys(counters, 0))
        return counts

    def add_counts(self, other_counts: CounterSnapshot) -> None:
        """Add the counts of another policy."""
        for counters, counts in zip(self._counters, other_counts, strict=True):
            counters.update({name: x + counts[name] for name, x in counters.items()})

    @property
    def _counters(self) -> tuple[dict[str, int], ...]:
        """All counters, which may be changed in place."""
        return (*self.counts.counts_by_model.values(), *(query.counters for query in self._queries.values()))

    def state_dict(self) -> State:
        return {
            "conversations": [[x.state_dict() for x in players] for players in self.conversations],
            "playing": self.active_mask.copy(),
            "counts": self.counts.state_dict(),
            **{name: query.state_dict() for name, query in self._queries.items()},
        }

    def load_state_dict(self, state: State) -> None:
        self.conversations = [[PlayerConversation.from_state(x) for x in players] for players in state["conversations"]]
        self.active_mask = np.array(state["playing"])
        self.counts.load_state_dict(state["counts"])
        for name, query in self._queries.items():
            query.load_state_dict(state[name])

    def _needs_query(self, conversation: PlayerConversation, mask: Sequence[bool] | None) -> bool:
        """Return whether a player must be asked for an action now."""
        action, n_steps = conversation.action, conversation.steps_since_answer
        if action is None or n_steps >= self.settings.action_interval or conversation.n_answers == 0:
            return True
        return isinstance(action, int) and mask is not None and not mask[action]

    def _encode_frames(self, observation: dict[str, Any], game: int) -> list[str]:
        """Return the frames for the prompts of a game's players, as PNG data URLs; [] if prompts have no frames.

        These are observations in pixels or, without such observations, the camera's frames.
        """
        if not self.settings.show_frames:
            return []
        if "pixels" in self.channels:
            frames = [np.asarray(to_numpy(pixels)) for pixels in observation["pixels"][game]]
        else:
            assert self.camera is not None
            frames = list(self.camera(game))
        return [encode_frame(frame, self.settings.frame_size) for frame in frames]

    def _make_query(self, game: int, agent: int, question_label: object, schema: Any) -> ChatRequest:
        """Return a question to a player about its present observation.

        `question_label` identifies the question within the episode.
        """
        conversation, model = self.conversations[game][agent], self.models[agent]
        question_id = self._format_question_id(game, agent, question_label)
        query = self.prompts.build_query(conversation, agent, model, self.structured_query, schema, question_id)
        return replace(query, adapter=self.adapters[agent])

    def _format_question_id(self, game: int, agent: int, question_label: object) -> str:
        """Return the identifier of a question in the run (`ChatRequest.question_id`); "" if `episodes` is None."""
        if self.episodes is None:
            return ""
        player = self.spec.seats[agent] if self.spec.seats else agent
        return f"episode {self.episodes[game]}, player {player}, {question_label}"

    def _apply_decision(
        self, game: int, agent: int, decision: PlayerReply | None, mask: Sequence[bool] | None, stats: QueryStats
    ) -> dict[str, Any]:
        """Apply a decision, or the fallback if it is None, and return the note on it."""
        conversation = self.conversations[game][agent]
        reply = decision or PlayerReply(self.answers.choose_fallback(conversation.action, mask))
        answer = self.answers.to_answer(reply.action)
        if decision is None:
            replacement_notice = f"your last reply could not be used; done instead: {to_json(answer)}"
            conversation.add_answer(FALLBACK_ANSWER, reply.action, self._max_stored_turns, replacement_notice)
        else:
            reflection = {"reflection": reply.reflection} if self.settings.reflection else {}
            conversation.add_answer(to_json({**reflection, "action": answer}), reply.action, self._max_stored_turns)
        self.counts.count(self.models[agent], stats, decisions=1, fallbacks=decision is None)
        return {
            "reflection": reply.reflection,
            "action": answer,
            "has_request": True,
            "valid": decision is not None,
            "reply": stats.text,
            **self._make_model_field(agent),
            **stats.counts,
        }

    def _record_replies(self, game: int, agent: int, observation: str, stats: QueryStats) -> None:
        """Add the replies to a question to the player's trajectory."""
        for sample, is_valid in stats.samples:
            step = self.conversations[game][agent].steps
            self._trajectory_buffer.add_reply(game, agent, sample, observation, is_valid, step)

    def _exchange_messages(
        self, observing_players: Sequence[tuple[int, int]], texts: Any, notes: list[list[dict[str, Any]]]
    ) -> ConversationGenerator[None]:
        """Let the players in `observing_players`, pairs (game, agent), exchange messages if a round of talk is due."""
        talk = self.talk
        if talk is None:
            return
        speakers = [
            (game, agent)
            for game, agent in observing_players
            if talk.is_round_due(self.conversations[game][agent].steps)
        ]
        queries = []
        for game, agent in speakers:
            conversation = self.conversations[game][agent]
            conversation.is_talking = True
            queries.append(self._make_query(game, agent, f"talk {conversation.steps}", talk.build_schema()))
        parsers = [
            lambda reply, agent=agent: talk.parse_reply(reply.text, agent, reply.is_truncated) for _, agent in speakers
        ]
        replies = (yield from self.talk_query.ask_generator(queries, parsers)) if queries else []
        sent: dict[int, list[TalkMessage | None]] = {game: [None] * self.spec.n_agents for game, _ in speakers}
        for (game, agent), reply, stats in zip(speakers, replies, self.talk_query.query_stats, strict=False):
            self._record_replies(game, agent, f"talk: {texts[game, agent]}", stats)
            message = reply or TalkMessage("")
            sent[game][agent] = message
            self.conversations[game][agent].is_talking = False
            self.counts.count(self.models[agent], stats, messages=bool(message.text))
            notes[game][agent] |= {"message": message.text, "message_cost": stats.counts}
        received = yield from talk.exchange(sent)
        for game, messages in sent.items():
            for conversation, sent_message, received_messages in zip(
                self.conversations[game], messages, received[game], strict=True
            ):
                if sent_message is not None:
                    conversation.add_messages(sent_message.text, sent_message.recipient, received_messages)

    def _request_lessons(self, notes: list[list[dict[str, Any]]]) -> ConversationGenerator[None]:
        """Request a lesson on the completed episode of each player that starts another one."""
        if not self.settings.lessons:
            return
        lesson_players = [
            (game, agent)
            for game in np.flatnonzero(self.active_mask).tolist()
            for agent, conversation in enumerate(self.conversations[game])
            if conversation.needs_lesson
        ]
        question_ids = [self._format_question_id(game, agent, "lesson") for game, agent in lesson_players]
        requests = [
            (self.conversations[game][agent], agent, self.models[agent], self.adapters[agent], question_id)
            for (game, agent), question_id in zip(lesson_players, question_ids, strict=True)
        ]
        lessons = yield from self.lesson_requester.request_lessons(requests)
        for (game, agent), (lesson, stats) in zip(lesson_players, lessons, strict=True):
            self.counts.count(self.models[agent], stats, lessons=lesson is not None)
            notes[game][agent] |= {"lesson": lesson or "", "lesson_cost": stats.counts}

    def _parse_reply(self, reply: ChatReply, legal_mask: Sequence[bool] | None = None) -> PlayerReply:
        return parse_player_reply(reply.text, self.answers, legal_mask, self.requires_reflection, reply.is_truncated)

    def _get_legal_mask(self, observation: dict[str, Any], game: int, agent: int) -> list[bool] | None:
        """Return the legal actions of a player; None if all are legal or unknown."""
        if "action_mask" not in self.channels:
            return None
        mask: list[bool] = np.asarray(observation["action_mask"][game, agent]).astype(bool).tolist()
        # A mask with all or no legal actions is not shown.
        return mask if any(mask) and not all(mask) else None

    def _collect_actions(self) -> torch.Tensor:
        """Return the actions of all games; those of inactive games are arbitrary."""
        is_discrete = self.spec.continuous_actions is None
        default_action: Action = 0 if is_discrete else self.answers.choose_fallback(None, None)
        actions = [
            [default_action if x.action is None else x.action for x in players] for players in self.conversations
        ]
        return torch.tensor(actions, dtype=torch.int64 if is_discrete else torch.float32)

    def _make_model_field(self, agent: int) -> dict[str, Any]:
        """Return the label of a player's model for a note; {} if all players are the same model."""
        return {"model": self.llm.model_label(self.models[agent])} if self.resources.models else {}


def _is_image_channel(spec: EnvSpec, name: str) -> bool:
    """Return whether a channel contains images that can be shown."""
    channel = spec.observation.get(name)
    return channel is not None and channel.dtype == "uint8" and len(channel.shape) == 3 and channel.shape[-1] == 3
