"""What a run may spend on language models: calls, tokens, money. A hard limit, not a warning."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.provider import Provider

LOOK_S = 0.1
"""Seconds after which a thread that waits for others' calls looks whether it still should."""


@dataclass(frozen=True)
class Reservation:
    """The most one attempt may come to, counted from before it is sent until what became of it is known.

    Attributes:
        tokens: of prompt and reply.
        cost: US dollars; None where prices are unknown.
        id: names the attempt in the call log.
    """

    tokens: int
    cost: float | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])


@dataclass(frozen=True)
class Spent:
    """What a run has paid for: replies that came from a provider, not from a cache.

    Attributes:
        calls: replies paid for.
        attempts: requests sent for them.
        failed: calls that ended without a reply.
        tokens: of prompts and replies, as far as providers told.
        cost: US dollars, as far as prices and tokens are known.
        unknown_tokens, unknown_costs: replies whose tokens or cost are not known.
        seconds: until the replies were there, waits and retries included, added up.
        unsettled: attempts whose reply was lost: it may have been generated, and charged, all the same.
        unsettled_tokens, unsettled_cost: what was set aside for these, and for replies that did not tell.
    """

    calls: int = 0
    attempts: int = 0
    failed: int = 0
    tokens: int = 0
    cost: float = 0.0
    unknown_tokens: int = 0
    unknown_costs: int = 0
    seconds: float = 0.0
    unsettled: int = 0
    unsettled_tokens: int = 0
    unsettled_cost: float = 0.0

    def plus(self, reply: ChatReply, reserved: Reservation) -> Spent:
        """With one more reply, for which `reserved` was set aside. A replayed one (no attempts) is not paid."""
        if reply.attempts == 0:
            return self
        told = None not in (reply.prompt_tokens, reply.completion_tokens)
        return replace(
            self,
            calls=self.calls + 1,
            attempts=self.attempts + reply.attempts,
            tokens=self.tokens + (reply.prompt_tokens or 0) + (reply.completion_tokens or 0),
            cost=self.cost + (reply.cost or 0.0),
            unknown_tokens=self.unknown_tokens + (not told),
            unknown_costs=self.unknown_costs + (reply.cost is None),
            seconds=self.seconds + reply.latency,
            unsettled_tokens=self.unsettled_tokens + (0 if told else reserved.tokens),
            unsettled_cost=self.unsettled_cost + (0.0 if reply.cost is not None else reserved.cost or 0.0),
        )

    def lost(self, attempts: Iterable[Reservation]) -> Spent:
        """With `attempts` of which nobody knows what became."""
        lost = list(attempts)
        return replace(
            self,
            unsettled=self.unsettled + len(lost),
            unsettled_tokens=self.unsettled_tokens + sum(each.tokens for each in lost),
            unsettled_cost=self.unsettled_cost + sum(each.cost or 0.0 for each in lost),
        )

    def metrics(self, priced: bool) -> dict[str, float]:
        """Totals since the start of the run; those that are not known are left out.

        spent/llm_calls, llm_attempts, llm_failed_calls, llm_tokens, llm_cost paid; time/llm_latency: seconds of the
        paid ones, added up. What may have been charged besides, at most: spent/llm_unsettled_calls (attempts whose
        reply was lost), and where there are any llm_unsettled_tokens and llm_unsettled_cost, of these and of replies
        that did not tell.

        Args:
            priced: whether the model's prices are known.
        """
        metrics = {
            "time/llm_latency": self.seconds,
            "spent/llm_calls": float(self.calls),
            "spent/llm_attempts": float(self.attempts),
            "spent/llm_failed_calls": float(self.failed),
            "spent/llm_unsettled_calls": float(self.unsettled),
        }
        if self.unsettled_tokens:
            metrics["spent/llm_unsettled_tokens"] = float(self.unsettled_tokens)
            if priced:
                metrics["spent/llm_unsettled_cost"] = self.unsettled_cost
        if not self.unknown_tokens:
            metrics["spent/llm_tokens"] = float(self.tokens)
        if not self.unknown_costs:
            metrics["spent/llm_cost"] = self.cost
        return metrics


class Budget:
    """Refuses an attempt that could exceed the run's limits, counting those in flight at the most they may come to.

    The most an attempt may come to is one call, its prompt, by estimate, and the longest reply (`llm.max_tokens`, and
    `llm.thinking_budget` beside it). A model whose reply has no limit is counted by its prompt alone, so the last reply
    may then exceed `tokens` and `usd`. Each attempt is counted, a second one for the same reply too: `reserve`, `sent`,
    and then one of

    - `settle`: the reply came;
    - `release`: nothing was generated (the connection was refused, or the provider refused the request);
    - `abandon`: nobody knows. All of it stays counted.

    Args:
        calls: replies paid for, and lost ones; None: no limit. The same holds for
        tokens: of prompts and replies together, and
        usd: US dollars.
        unknown: whether to `count` what was set aside for attempts of unknown fate, and for replies that did not tell
            their tokens, or to `ignore` them: the limits then hold for replies that came, as far as they told.
    """

    def __init__(
        self,
        calls: NonNegativeInt | None = None,
        tokens: NonNegativeInt | None = None,
        usd: NonNegativeFloat | None = None,
        unknown: Literal["count", "ignore"] = "count",
    ) -> None:
        self.calls, self.tokens, self.usd, self.unknown = calls, tokens, usd, unknown
        self.spent = Spent()
        self._settled = threading.Condition()
        self._reserved: dict[str, Reservation] = {}
        self._sent: set[str] = set()

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return any(limit is not None for limit in (self.calls, self.tokens, self.usd))

    def check(self, provider: Provider) -> None:
        """Raises ConfigError if the budget is in dollars and the model's prices are not known."""
        if self.usd is not None and None in (provider.input_price, provider.output_price):
            raise ConfigError(
                f"llm.budget.usd={self.usd:g} cannot be held: the prices of {provider.label} are unknown. Set "
                "llm.input_price and llm.output_price, or limit llm.budget.calls or llm.budget.tokens"
            )

    def reserve(
        self, request: ChatRequest, provider: Provider, wait: Callable[[float], None] | None = None
    ) -> Reservation:
        """Set aside what one attempt at `request` may come to.

        Args:
            request, provider: what is to be asked, and whom.
            wait: other threads have attempts in flight: see what they really take before giving up. Called with 0.0
                every now and then; raises if there is no point in waiting any longer.

        Raises:
            BudgetExhausted: it could exceed a limit.
        """
        prompt, reply = provider.count_tokens(request.messages), provider.longest_reply or 0
        reservation = Reservation(prompt + reply, provider.cost(prompt, reply))
        while True:
            with self._settled:
                exceeded = self._exceeded([*self._reserved.values(), reservation])
                if exceeded is None:
                    self._reserved[reservation.id] = reservation
                    return reservation
                if wait is None or not self._reserved:
                    raise BudgetExhausted(*exceeded)
                self._settled.wait(LOOK_S)
            wait(0.0)

    def sent(self, reservation: Reservation) -> None:
        """The attempt is about to be sent: if this process ends now, it counts."""
        with self._settled:
            if reservation.id in self._reserved:
                self._sent.add(reservation.id)

    def account(self) -> Spent:
        """What was spent if this process ends now: attempts in flight are lost."""
        with self._settled:
            return self.spent.lost(each for each in self._reserved.values() if each.id in self._sent)

    def settle(self, reservation: Reservation, reply: ChatReply) -> bool:
        """The reply came. False if the attempt had been given up: it stays counted as it was then."""
        with self._settled:
            if self._taken_back(reservation):
                self.spent = self.spent.plus(reply, reservation)
                return True
            return False

    def release(self, reservation: Reservation) -> None:
        """Nothing was generated, for certain; does nothing for an attempt that is settled or given up."""
        with self._settled:
            self._taken_back(reservation)

    def abandon(self, reservation: Reservation | None = None) -> None:
        """Count `reservation`, or all attempts that were sent and not settled, whole: nobody knows what became of them.

        Attempts that were not sent yet are released. What is said of them later changes nothing.
        """
        with self._settled:
            for each in list(self._reserved.values()) if reservation is None else [reservation]:
                was_sent = each.id in self._sent
                if self._taken_back(each) and was_sent:
                    self.spent = self.spent.lost([each])

    def failed(self, calls: int) -> None:
        """So many calls ended without a reply, whatever their attempts came to."""
        with self._settled:
            self.spent = replace(self.spent, failed=self.spent.failed + calls)

    def _taken_back(self, reservation: Reservation) -> bool:
        """Remove a reservation; whether it was still there."""
        self._sent.discard(reservation.id)
        self._settled.notify_all()
        return self._reserved.pop(reservation.id, None) is not None

    def _exceeded(self, planned: list[Reservation]) -> tuple[str, str] | None:
        """Which limit `planned` attempts could exceed, and what a run can do about it, in words; None if none."""
        spent, lost = self.spent, self.unknown == "count"
        limits: list[tuple[str, float | None, float, float, float, str]] = [
            ("calls", self.calls, spent.calls, spent.unsettled, len(planned), ","),
            ("tokens", self.tokens, spent.tokens, spent.unsettled_tokens, sum(r.tokens for r in planned), ","),
            ("usd", self.usd, spent.cost, spent.unsettled_cost, sum(r.cost or 0.0 for r in planned), ".4g"),
        ]
        for name, limit, known, unknown, more, form in limits:
            counted = known + unknown * lost
            # A thousandth of a cent is no overspending: sums of many small prices round.
            if limit is not None and counted + more > limit + 1e-5 * (name == "usd"):
                maybe = f" and at most {unknown:{form}} for replies that were lost" if unknown and lost else ""
                return (
                    f"the budget for language models is exhausted: llm.budget.{name}={limit:{form}}, spent "
                    f"{known:{form}}{maybe}, and the next call may need {more:{form}}",
                    f"Everything is saved; repeat the command with a larger llm.budget.{name} to go on",
                )
        return None
