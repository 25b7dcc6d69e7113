"""Questions to players, with as much of the conversation as the model's context window allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrl.agents.llm_player.conversation import Message, PlayerConversation
from llmrl.agents.llm_player.player_prompts import PlayerPrompts
from llmrl.agents.llm_player.player_settings import PlayerSettings
from llmrl.core.errors import LLMError
from llmrl.core.spaces import EnvSpec
from llmrl.llms.prompts import Prompt
from llmrl.llms.structured_query import Query, StructuredQuery, max_fitting


class PlayerQueries:
    """Questions to the players of a game.

    Args:
        spec: spec of the environment.
        asker: sender of the questions for actions, which counts shortened prompts.
        prompts: prompts of the players.
        settings: options of the players.
        models: model of each player, [n_agents].

    Attributes:
        system: system message of each player without lessons, [n_agents].
    """

    def __init__(
        self,
        spec: EnvSpec,
        asker: StructuredQuery[Any],
        prompts: PlayerPrompts,
        settings: PlayerSettings,
        models: Sequence[str],
    ) -> None:
        self._asker, self._prompts, self._settings, self._models = asker, prompts, settings, models
        self.system = [prompts.system(agent, ()) for agent in range(spec.n_agents)]

    def query(self, seat: PlayerConversation, agent: int, schema: Any, place: str) -> Query:
        """Return a question to a player about its present observation.

        Args:
            seat: conversation of the player.
            agent: index of the player.
            schema: JSON schema of the reply.
            place: place of the question in the run's episodes (`ChatRequest.place`).

        Raises:
            LLMError: not even the observation fits into the context window.
        """
        prompt = self._prompts.system(agent, tuple(seat.lessons)) if seat.lessons else self.system[agent]
        messages = self._fitting_messages(seat, prompt, self._models[agent])
        return Query(messages, prompt.name, prompt.hash, schema, place, self._models[agent])

    def _fitting_messages(self, seat: PlayerConversation, prompt: Prompt, model: str) -> tuple[Message, ...]:
        """Return the messages with as many earlier turns as the model's context window allows."""
        llm, settings = self._asker.llm, self._settings
        max_turns = seat.window(settings.history, settings.sliding_history)
        n_turns = max_fitting(lambda k: llm.fits(seat.messages(prompt.text, k), model), max_turns)
        if n_turns < 0:
            raise LLMError(
                f"the prompt {prompt.name} and one observation exceed the context window of {llm.label_of(model)}; "
                "choose a model with a larger one, or a smaller llm.max_tokens"
            )
        self._asker.counters["trimmed_prompts"] += n_turns < max_turns
        if n_turns < max_turns and not settings.sliding_history:
            n_turns = -(-n_turns // 2)  # otherwise every further question would drop the oldest turn
        seat.shown_from = seat.decided - n_turns
        return seat.messages(prompt.text, n_turns)
