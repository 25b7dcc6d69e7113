"""Questions of a search that belong to one conversation: each tells what came of the reply before it."""

from __future__ import annotations

from typing import Any

from llmrl.core.records import State
from llmrl.llms.prompts import Prompt
from llmrl.llms.reading.reply_cleaning import clean_reply
from llmrl.llms.structured_query import QUOTED_REPLY, Query, QueryStats

Messages = tuple[dict[str, Any], ...]


class SearchConversation:
    """The messages of the conversation that is going on.

    A question begins with all of the one before it, byte for byte, so that providers can keep that. After `turns`
    questions a new conversation begins, whose first question shows the table as it is then, so messages do not grow
    for ever.

    Args:
        turns: questions of a conversation, >= 1; 1: each is by itself.
    """

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self._messages: Messages = ()
        self._asked = 0

    @property
    def goes_on(self) -> bool:
        """Whether the next question belongs to the conversation, and is not the first of another one."""
        return 0 < self._asked < self.turns

    def question(self, told: Prompt) -> Query:
        """The next question of the conversation, which says what `told` does."""
        return Query((*self._messages, _message("user", told.text)), told.name, told.hash)

    def answered(self, question: Prompt | Query, asked: QueryStats) -> None:
        """Take down what was asked and the last reply to it; without any reply the conversation ends.

        Of a reply that had to be corrected the corrected one stands. Thoughts are no part of it.
        """
        if not asked.replies or self.turns == 1:
            self._messages, self._asked = (), 0
            return
        first = isinstance(question, Prompt)
        before = (_message("user", question.text),) if isinstance(question, Prompt) else question.messages
        text = (
            clean_reply(asked.text).text[:QUOTED_REPLY].strip() or "(empty reply)"
        )  # some providers refuse an empty turn
        self._messages = (*before, _message("assistant", text))
        self._asked = 1 if first else self._asked + 1

    def state_dict(self) -> State:
        return {"messages": [dict(message) for message in self._messages], "asked": self._asked}

    def load_state_dict(self, state: State) -> None:
        self._messages = tuple(dict(message) for message in state["messages"])
        self._asked = state["asked"]


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
