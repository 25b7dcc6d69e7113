"""Counts of the valid and invalid replies of a run, and a limit on the share of invalid ones."""

from __future__ import annotations

from dataclasses import dataclass

from llmrl.core.errors import TooManyInvalidReplies
from llmrl.core.ranges import PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.core.state_fields import StateFields

N_QUOTED = 3
"""Number of invalid replies, the last ones, that the error message of `Validity.check` quotes."""
MAX_QUOTED_CHARACTERS = 200
"""Maximum number of characters of each quoted reply."""


def validity_warning(n_judged: float | None, share: float | None) -> str:
    """Return a warning if the `share` of invalid replies among `n_judged` replies is above 1/2; else ""."""
    if not n_judged or share is None or share <= 0.5:
        return ""
    if share == 1.0:
        return f"NO REPLY OF THE MODEL WAS VALID: all of its {n_judged:,.0f} replies were invalid"
    return f"{share:.0%} of the model's {n_judged:,.0f} replies were invalid"


@dataclass(frozen=True)
class MaxInvalid:
    """Limit on the share of invalid replies, above which a run ends.

    Attributes:
        share: maximum share of invalid ones among all replies that are parsed, including corrections.
        min_replies: minimum number of replies with which the share is checked.
    """

    share: UnitInterval = 0.5
    min_replies: PositiveInt = 10


class Validity(StateFields):
    """Counter of a run's parsed replies (`n_parsed`), the invalid ones, and the truncated ones of these (`cut`)."""

    _state_fields = ("n_parsed", "invalid", "cut", "last")

    def __init__(self) -> None:
        self.n_parsed, self.invalid, self.cut = 0, 0, 0
        self.last: list[str] = []  # quotations of invalid replies, oldest first

    def add(self, text: str, reason: str, cut: bool = False) -> None:
        """Count a reply.

        Args:
            text: text of the reply.
            reason: reason why the reply is invalid; "" if it is valid.
            cut: whether the reply ended at `llm.max_tokens`.
        """
        self.n_parsed += 1
        if reason:
            self.invalid += 1
            self.cut += cut
            ellipsis = " ..." if len(text) > MAX_QUOTED_CHARACTERS else ""
            # Quoted with `repr`, so that control characters cannot affect a terminal.
            quotation = f"{text[:MAX_QUOTED_CHARACTERS]!r}{ellipsis}: {reason[:MAX_QUOTED_CHARACTERS]!r}"
            self.last = [*self.last, quotation][-N_QUOTED:]

    def add_all(self, state: State) -> None:
        """Add the counts in the state of another counter."""
        self.n_parsed += state["n_parsed"]
        self.invalid += state["invalid"]
        self.cut += state["cut"]

    def check(self, label: str, limit: MaxInvalid | None) -> None:
        """Raise TooManyInvalidReplies if more replies of the model `label` were invalid than `limit` allows."""
        if limit is None or self.n_parsed < limit.min_replies or self.invalid <= limit.share * self.n_parsed:
            return
        quotations = "".join(f"\n  {text}" for text in self.last)
        advice = f" {self.cut} were cut off: raise llm.max_tokens, which thoughts count toward." if self.cut else ""
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
