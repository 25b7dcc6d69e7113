"""Error that parsers raise for a reply without the requested content."""

from __future__ import annotations

from llmrl.llms.reply_cleaning import strip_control_characters

MAX_REASON_LENGTH = 2000
"""Maximum number of characters of the reason why a reply is invalid."""


class InvalidReply(Exception):  # noqa: N818  (a property of a reply, not an error of the program)
    """Error of a reply that does not have the requested content. The message is sent to the model for a correction."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(strip_control_characters(reason)[:MAX_REASON_LENGTH] or "invalid")
