"""How many replies of a run could be read, and how many invalid ones end it."""

from __future__ import annotations

from dataclasses import dataclass

from llmrl.core.errors import TooManyInvalid
from llmrl.core.ranges import PositiveInt, UnitInterval
from llmrl.core.records import State

QUOTED = 3
"""Invalid replies that are quoted when they end a run, the last ones, and"""
QUOTED_CHARACTERS = 200
"""characters of each."""


def validity_warning(judged: float | None, share: float | None) -> str:
    """What there is to say of results where a `share` of `judged` replies was invalid; "" where most were read."""
    if not judged or share is None or share <= 0.5:
        return ""
    if share == 1.0:
        return f"NOTHING THE MODEL SAID WAS UNDERSTOOD: all of its {judged:,.0f} replies were invalid"
    return f"{share:.0%} of the model's {judged:,.0f} replies were invalid"


@dataclass(frozen=True)
class MaxInvalid:
    """The share of invalid replies that ends a run.

    Attributes:
        share: of all replies that must have a form, repairs included; more than this is too many.
        after: replies before the share is looked at.
    """

    share: UnitInterval = 0.5
    after: PositiveInt = 10


class Validity:
    """Counts a run's replies that must have a form, since its start, and the invalid ones among them."""

    def __init__(self) -> None:
        self.judged, self.invalid, self.cut = 0, 0, 0
        self.last: list[str] = []  # what is quoted of invalid replies, oldest first

    def add(self, text: str, fault: str, cut: bool = False) -> None:
        """Count a reply.

        Args:
            text: reply.
            fault: what is wrong with it; "": nothing.
            cut: whether it reached `llm.max_tokens`.
        """
        self.judged += 1
        if fault:
            self.invalid += 1
            self.cut += cut
            end = " ..." if len(text) > QUOTED_CHARACTERS else ""
            # As Python would write it: nothing in it can move a terminal's cursor.
            quoted = f"{text[:QUOTED_CHARACTERS]!r}{end}: {fault[:QUOTED_CHARACTERS]!r}"
            self.last = [*self.last, quoted][-QUOTED:]

    def add_all(self, state: State) -> None:
        """Count what another has counted, whose state this is."""
        self.judged += state["judged"]
        self.invalid += state["invalid"]
        self.cut += state["cut"]

    def check(self, label: str, limit: MaxInvalid | None) -> None:
        """Raises TooManyInvalid if more replies of the model `label` were invalid than `limit` allows."""
        if limit is None or self.judged < limit.after or self.invalid <= limit.share * self.judged:
            return
        quoted = "".join(f"\n  {text}" for text in self.last)
        cut = f" {self.cut} were cut off: raise llm.max_tokens, which thoughts count toward." if self.cut else ""
        raise TooManyInvalid(
            f"{self.invalid} of {self.judged} replies of {label} could not be read, more than llm.max_invalid.share="
            f"{limit.share:g} allows. What was there before them is saved. Another model (llm=) or another prompt "
            "(prompts=) may work; with llm.max_invalid=null, or a larger share, the same command goes on and puts "
            f"fallbacks in their place.{cut} The last of them:{quoted}"
        )

    def metrics(self) -> dict[str, float]:
        """llm/judged_replies: those that had to have a form; llm/invalid_share: of these, the invalid ones. Counted
        since the start of the run; nothing where there is none."""
        if not self.judged:
            return {}
        return {"llm/judged_replies": float(self.judged), "llm/invalid_share": self.invalid / self.judged}

    def state_dict(self) -> State:
        return {"judged": self.judged, "invalid": self.invalid, "cut": self.cut, "last": list(self.last)}

    def load_state_dict(self, state: State) -> None:
        self.judged, self.invalid, self.cut = state["judged"], state["invalid"], state["cut"]
        self.last = list(state["last"])
