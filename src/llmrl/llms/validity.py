"""Counts of the valid and invalid replies of a run, and a limit on the share of invalid ones."""

from __future__ import annotations

from dataclasses import dataclass

from llmrl.core.errors import TooManyInvalidReplies
from llmrl.core.ranges import PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.core.state_fields import StateFields

N_QUOTED_REPLIES = 3
"""Number of the most recent invalid replies that the error message of `Validity.check` quotes."""
MAX_QUOTED_CHARACTERS = 200
"""Maximum number of characters of each quoted reply, and of the quoted reason why it is invalid."""


def validity_warning(n_parsed: float | None, invalid_share: float | None) -> str:
    """Return a warning if more than half of `n_parsed` replies are invalid; else, or if a number is None, return ""."""
    if not n_parsed or invalid_share is None or invalid_share <= 0.5:
        return ""
    if invalid_share == 1.0:
        return f"NO REPLY OF THE MODEL WAS VALID: all of its {n_parsed:,.0f} replies were invalid"
    return f"{invalid_share:.0%} of the model's {n_parsed:,.0f} replies were invalid"


@dataclass(frozen=True)
class MaxInvalid:
    """Limit on the share of invalid replies, above which a run ends.

    Attributes:
        share: maximum share of invalid replies among all parsed replies, including replies to requests for correction.
        min_replies: number of parsed replies from which on the share is checked.
    """

    share: UnitInterval = 0.5
    min_replies: PositiveInt = 10


class Validity(StateFields):
    """Counts of a run's parsed replies (`n_parsed`), of `invalid` ones, and of invalid truncated ones (`cut`)."""

    _state_fields = ("n_parsed", "invalid", "cut", "last")

    def __init__(self) -> None:
        self.n_parsed, self.invalid, self.cut = 0, 0, 0
        self.last: list[str] = []  # quotations of invalid replies, oldest first

    def add(self, text: str, reason: str, is_truncated: bool = False) -> None:
        """Count a reply.

        Args:
            text: text of the reply.
            reason: reason why the reply is invalid; "" if it is valid.
            is_truncated: whether the reply ended at `llm.max_tokens`.
        """
        self.n_parsed += 1
        if reason:
            self.invalid += 1
            self.cut += is_truncated
            ellipsis = " ..." if len(text) > MAX_QUOTED_CHARACTERS else ""
            # Quoted with `repr`, so that control characters cannot affect a terminal.
            quotation = f"{text[:MAX_QUOTED_CHARACTERS]!r}{ellipsis}: {reason[:MAX_QUOTED_CHARACTERS]!r}"
            self.last = [*self.last, quotation][-N_QUOTED_REPLIES:]

    def add_counts(self, state: State) -> None:
        """Add the counts in `state`, the `state_dict` of another counter."""
        self.n_parsed += state["n_parsed"]
        self.invalid += state["invalid"]
        self.cut += state["cut"]

    def check(self, label: str, limit: MaxInvalid | None) -> None:
        """Raise TooManyInvalidReplies if more replies of model `label` are invalid than `limit` allows (None: all)."""
        if limit is None or self.n_parsed < limit.min_replies or self.invalid <= limit.share * self.n_parsed:
            return
        quotations = "".join(f"\n  {text}" for text in self.last)
        advice = f" {self.cut} were cut off: raise llm.max_tokens, which also limits thoughts." if self.cut else ""
        raise TooManyInvalidReplies(
            f"{self.invalid} of {self.n_parsed} replies of {label} were invalid, more than llm.max_invalid.share="
            f"{limit.share:g} allows. The run is saved; try another model (llm=) or prompt (prompts=), or run the same "
            "command with a larger share or llm.max_invalid=null to replace invalid replies by fallbacks."
            f"{advice} The last invalid replies:{quotations}"
        )

    def metrics(self) -> dict[str, float]:
        """Return llm/parsed_replies (number) and llm/invalid_share since the start of the run; {} without replies."""
        if not self.n_parsed:
            return {}
        return {"llm/parsed_replies": float(self.n_parsed), "llm/invalid_share": self.invalid / self.n_parsed}
