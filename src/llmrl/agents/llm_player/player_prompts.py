"""Settings and prompts of a language player: rules of the game, questions, and requests to correct a reply."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl.agents.llm_player.answer_format import ActionFormat, AnswerFormat
from llmrl.agents.llm_player.conversation import (
    DEFAULT_OBSERVATION_EXTRAS,
    ObservationExtra,
    PlayerConversation,
    to_json,
)
from llmrl.agents.llm_player.talk import RecipientMode, Talk
from llmrl.core.errors import LLMError
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import ChatRequest
from llmrl.core.spaces import EnvSpec
from llmrl.llms.prompts import Prompt, PromptFamily
from llmrl.llms.structured_query import StructuredQuery, find_largest_fit

PROMPTS_DIR = Path(__file__).with_name("prompts")


@dataclass(frozen=True)
class PlayerSettings:
    """Options of `LLMPlayer`: prompts and answers. Ranges are in `conf/agent/llm_player.yaml`.

    Attributes:
        history: minimum number of earlier turns (question and answer) in a prompt, once there are so many.
        sliding_history: whether exactly the newest `history` turns are shown, so that each prompt begins differently;
            otherwise their number grows to less than twice as many and is then cut to `history`.
        action_interval: number of steps for which an action is repeated, as long as it is legal.
        reflection: whether replies begin with a reflection.
        require_reflection: whether a reply without the requested reflection is invalid.
        show: additions to an observation; None: `DEFAULT_OBSERVATION_EXTRAS`.
        show_frames: number of newest frames in a prompt; 0: none.
        frame_size: maximum pixels of the longer side of a frame.
        players: number of players by name of their model, in the order of players, or one name for each player; `llm`
            is the name of the chosen model. None: all players have the chosen model.
        show_text: whether observations are given in words.
        lessons: number of lessons from earlier episodes in a prompt; 0: none are drawn.
        action_format: whether choices are answered by name or by number.
        require_legal: whether an answer must be legal, where the environment reports legal actions.
        decimals: digits after the point of real-valued actions.
        repair_turns: maximum number of requests to correct an invalid reply.
        message_interval: number of steps between rounds in which players send a message before they act; 0: never.
        message_recipients: recipients of a message.
        max_message_length: maximum characters of a message.
        personas: YAML file with a list of texts that describe the players; player k has text k, modulo their number.
    """

    history: NonNegativeInt
    sliding_history: bool
    action_interval: PositiveInt
    reflection: bool
    require_reflection: bool
    show: list[ObservationExtra] | None
    show_frames: NonNegativeInt
    frame_size: PositiveInt
    players: dict[str, PositiveInt] | list[str] | None
    show_text: bool
    lessons: NonNegativeInt
    action_format: ActionFormat
    require_legal: bool
    decimals: NonNegativeInt
    repair_turns: NonNegativeInt
    message_interval: NonNegativeInt
    message_recipients: RecipientMode
    max_message_length: PositiveInt
    personas: str | None

    @property
    def observation_extras(self) -> Sequence[ObservationExtra]:
        """Additions to an observation."""
        return DEFAULT_OBSERVATION_EXTRAS if self.show is None else self.show


@dataclass(frozen=True)
class PlayerResources:
    """Prompt files, models and personas that a player's settings name.

    Attributes:
        prompt_folder: folder of the user's prompts, `player/<name>.j2` in it; None: there are none.
        models: name of each player's model in the run; (): all have the chosen model.
        personas: texts that describe the players; (): there are none.
    """

    prompt_folder: Path | None = None
    models: Sequence[str] = ()
    personas: Sequence[str] = ()


class PlayerPrompts:
    """Prompts of all players of a game.

    Args:
        spec: spec of the environment; its text is the description of the game.
        settings: options of the players.
        resources: personas and user's prompts.
        answers: format of the players' answers.
        decimals: digits after the decimal point of the numbers of an action.
        channels: observation channels that are read.
        talk: rounds of talk; None: there are none.

    Attributes:
        render_system: function from the index of an agent and its lessons to the first message of its questions.
    """

    def __init__(
        self,
        spec: EnvSpec,
        settings: PlayerSettings,
        resources: PlayerResources,
        answers: AnswerFormat,
        decimals: int,
        channels: Sequence[str],
        talk: Talk | None,
    ) -> None:
        self._spec, self._settings, self._resources = spec, settings, resources
        self._answers, self._talk = answers, talk
        self._decimals, self._has_mask = decimals, "action_mask" in channels
        self._prompt_family = PromptFamily("player", PROMPTS_DIR, resources.prompt_folder)
        self.render_system = functools.lru_cache(maxsize=64)(self._render_system_prompt)

    def _render_system_prompt(self, agent: int, lessons: tuple[str, ...]) -> Prompt:
        spec, settings, text = self._spec, self._settings, self._spec.text
        assert text is not None
        personas = self._resources.personas
        examples = [self._answers.to_answer(action) for action in self._answers.choose_example_actions()]
        reflection_field = {"reflection": "..."} if settings.reflection else {}
        return self._prompt_family.render(
            "system",
            goal=text.goal,
            observation=text.observation,
            actions=self._answers.descriptions,
            amount=bool(text.amount),
            numbers=spec.continuous_actions is not None,
            n_agents=spec.n_players,
            agent=spec.player_names[agent],
            reflect=settings.reflection,
            numbered=self._answers.is_numbered,
            frames=settings.show_frames,
            text=settings.show_text,
            show=[name for name in settings.observation_extras if name != "legal_actions" or self._has_mask],
            action_interval=settings.action_interval,
            decimals=self._decimals,
            examples=[to_json({**reflection_field, "action": example}) for example in examples],
            lessons=lessons,
            talk=self._talk
            and {"every": self._talk.interval, "to": self._talk.recipient_mode, "length": self._talk.max_length},
            persona=personas[agent % len(personas)] if personas else "",
        )

    def build_query(
        self,
        conversation: PlayerConversation,
        agent: int,
        model: str,
        structured_query: StructuredQuery[Any],
        schema: Any,
        question_id: str,
    ) -> ChatRequest:
        """Return a question to a player about its present observation.

        It holds as many earlier turns as the model's context window allows.

        Args:
            conversation: conversation of the player.
            agent: index of the player.
            model: model of the player.
            structured_query: sender of the questions for actions, which counts shortened prompts (`trimmed_prompts`).
            schema: JSON schema of the reply.
            question_id: identifier of the question in the run (`ChatRequest.question_id`).

        Raises:
            LLMError: not even the observation fits into the context window.
        """
        prompt = self.render_system(agent, tuple(conversation.lessons))
        llm, settings = structured_query.llm, self._settings
        max_turns = conversation.count_shown_turns(settings.history, settings.sliding_history)
        n_turns = find_largest_fit(lambda k: llm.fits(conversation.build_messages(prompt.text, k), model), max_turns)
        if n_turns < 0:
            raise LLMError(
                f"the prompt {prompt.name} and one observation exceed the context window of {llm.model_label(model)}; "
                "choose a model with a larger one, or a smaller llm.max_tokens"
            )
        structured_query.counters["trimmed_prompts"] += n_turns < max_turns
        if n_turns < max_turns and not settings.sliding_history:
            n_turns = -(-n_turns // 2)  # otherwise every further question would drop the oldest turn
        conversation.first_shown_answer = conversation.n_answers - n_turns
        messages = conversation.build_messages(prompt.text, n_turns)
        return ChatRequest(
            messages, schema, prompt=prompt.name, prompt_hash=prompt.hash, question_id=question_id, model=model
        )

    def render_lesson(self, conversation: PlayerConversation, n_turns: int) -> Prompt:
        """Return the question for a lesson from the `n_turns` newest turns of a completed episode."""
        return self._prompt_family.render(
            "lesson",
            turns=conversation.turns[len(conversation.turns) - n_turns :],
            left_out=max(conversation.n_previous_answers - n_turns, 0),
            end=to_json(conversation.last_episode),
            lessons=conversation.lessons,
        )

    def render_repair(self, reason: str) -> Prompt:
        """Return the request for another reply, with the reason why the previous one is invalid."""
        return self._prompt_family.render("_repair", fault=reason)
