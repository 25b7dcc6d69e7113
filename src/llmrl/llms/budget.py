"""Usage of language models by a run, and hard limits on its calls, tokens and US dollars."""

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

CHECK_INTERVAL_SECONDS = 0.1
"""Seconds between two checks, by a thread that waits for budget, whether the run is to stop."""

LATENCY_METRIC = "time/llm_latency"
"""Metric: total seconds of all paid replies."""


@dataclass(frozen=True)
class Reservation:
    """Upper bound of the usage of one attempt, counted until the attempt's outcome is known.

    Attributes:
        tokens: tokens of prompt and longest reply.
        cost: US dollars; None if prices are unknown.
        id: name of the attempt in the call log.
    """

    tokens: int
    cost: float | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])


@dataclass(frozen=True)
class Usage:
    """Usage that a run has paid for, i.e. replies from a provider and not from a cache.

    Attributes:
        calls: replies paid for.
        attempts: requests sent for these replies.
        failed: calls that ended without a reply.
        tokens: tokens of prompts and replies, as far as providers reported them.
        cost: US dollars, as far as prices and tokens are known.
        unknown_tokens, unknown_costs: number of replies whose tokens or cost are unknown.
        seconds: sum of the latencies of these replies, waits and retries included.
        unsettled: attempts whose reply was lost and may have been generated and charged.
        unsettled_tokens, unsettled_cost: amounts reserved for unsettled attempts and for replies without token counts.
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

    def with_reply(self, reply: ChatReply, reservation: Reservation) -> Usage:
        """Return the usage with one more reply and its reservation; a replayed reply (0 attempts) changes nothing."""
        if reply.attempts == 0:
            return self
        has_token_counts = None not in (reply.prompt_tokens, reply.completion_tokens)
        return replace(
            self,
            calls=self.calls + 1,
            attempts=self.attempts + reply.attempts,
            tokens=self.tokens + (reply.prompt_tokens or 0) + (reply.completion_tokens or 0),
            cost=self.cost + (reply.cost or 0.0),
            unknown_tokens=self.unknown_tokens + (not has_token_counts),
            unknown_costs=self.unknown_costs + (reply.cost is None),
            seconds=self.seconds + reply.latency,
            unsettled_tokens=self.unsettled_tokens + (0 if has_token_counts else reservation.tokens),
            unsettled_cost=self.unsettled_cost + (0.0 if reply.cost is not None else reservation.cost or 0.0),
        )

    def with_lost_attempts(self, attempts: Iterable[Reservation]) -> Usage:
        """Return the usage with more `attempts` whose outcome is unknown."""
        reservations = list(attempts)
        return replace(
            self,
            unsettled=self.unsettled + len(reservations),
            unsettled_tokens=self.unsettled_tokens + sum(reservation.tokens for reservation in reservations),
            unsettled_cost=self.unsettled_cost + sum(reservation.cost or 0.0 for reservation in reservations),
        )

    def metrics(self, are_prices_known: bool) -> dict[str, float]:
        """Return totals since the start of the run, without unknown ones.

        Paid: usage/llm_calls, llm_attempts, llm_failed_calls, llm_tokens, llm_cost (USD), and time/llm_latency, the
        sum of latencies in seconds. Possibly also charged: usage/llm_unsettled_calls (attempts whose reply was lost)
        and, if there are unsettled tokens, the upper bounds llm_unsettled_tokens and llm_unsettled_cost.

        Args:
            are_prices_known: whether the model's prices are known.
        """
        metrics = {
            LATENCY_METRIC: self.seconds,
            "usage/llm_calls": float(self.calls),
            "usage/llm_attempts": float(self.attempts),
            "usage/llm_failed_calls": float(self.failed),
            "usage/llm_unsettled_calls": float(self.unsettled),
        }
        if self.unsettled_tokens:
            metrics["usage/llm_unsettled_tokens"] = float(self.unsettled_tokens)
            if are_prices_known:
                metrics["usage/llm_unsettled_cost"] = self.unsettled_cost
        if not self.unknown_tokens:
            metrics["usage/llm_tokens"] = float(self.tokens)
        if not self.unknown_costs:
            metrics["usage/llm_cost"] = self.cost
        return metrics


class Budget:
    """Spending limits of a run. An attempt that could exceed them is refused, counting attempts in flight in full.

    The upper bound of an attempt is one call, the estimated prompt, and the longest reply (`llm.max_tokens` plus
    `llm.thinking_budget`). For a model without a limit on replies only the prompt counts, and the last reply may exceed
    `tokens` and `usd`. Every attempt is counted, retries too: `reserve`, `mark_sent`, and then one of

    - `settle`: the reply came;
    - `release`: nothing was generated (the connection was refused, or the provider refused the request);
    - `abandon`: unknown. The complete reservation stays counted.

    Args:
        calls: maximum number of replies, paid or lost; None: no limit.
        tokens: maximum number of tokens of prompts and replies together; None: no limit.
        usd: maximum cost in US dollars; None: no limit.
        unknown: whether to `count` the reservations of attempts with unknown outcome and of replies without token
            counts, or to `ignore` them, so that limits apply to reported usage only.
    """

    def __init__(
        self,
        calls: NonNegativeInt | None = None,
        tokens: NonNegativeInt | None = None,
        usd: NonNegativeFloat | None = None,
        unknown: Literal["count", "ignore"] = "count",
    ) -> None:
        self.calls, self.tokens, self.usd, self.unknown = calls, tokens, usd, unknown
        self.spent = Usage()
        self._condition = threading.Condition()
        self._open_reservations: dict[str, Reservation] = {}
        self._sent_ids: set[str] = set()

    @property
    def has_limits(self) -> bool:
        """True if there is any limit."""
        return any(limit is not None for limit in (self.calls, self.tokens, self.usd))

    def check(self, provider: Provider) -> None:
        """Raise ConfigError if the budget is in dollars and the model's prices are unknown."""
        if self.usd is not None and None in (provider.input_price, provider.output_price):
            raise ConfigError(
                f"llm.budget.usd={self.usd:g} cannot be enforced: the prices of {provider.label} are unknown. Set "
                "llm.input_price and llm.output_price, or limit llm.budget.calls or llm.budget.tokens"
            )

    def reserve(
        self, request: ChatRequest, provider: Provider, wait: Callable[[float], None] | None = None
    ) -> Reservation:
        """Reserve the upper bound of one attempt at `request`.

        Args:
            request: request of the attempt.
            provider: model that the request is for.
            wait: None: raise at once if the budget does not suffice. Otherwise, wait while other attempts are in
                flight, because they may use less than reserved; `wait(0.0)` is called regularly and raises to end the
                wait.

        Raises:
            BudgetExhausted: the attempt could exceed a limit.
        """
        prompt, reply = provider.count_tokens(request.messages), provider.max_reply_tokens or 0
        reservation = Reservation(prompt + reply, provider.cost(prompt, reply))
        while True:
            with self._condition:
                violation = self._describe_violation([*self._open_reservations.values(), reservation])
                if violation is None:
                    self._open_reservations[reservation.id] = reservation
                    return reservation
                if wait is None or not self._open_reservations:
                    raise BudgetExhausted(*violation)
                self._condition.wait(CHECK_INTERVAL_SECONDS)
            wait(0.0)

    def mark_sent(self, reservation: Reservation) -> None:
        """Mark an attempt as about to be sent. From then on it counts even if this process ends."""
        with self._condition:
            if reservation.id in self._open_reservations:
                self._sent_ids.add(reservation.id)

    def worst_case_usage(self) -> Usage:
        """Return the usage in which all attempts in flight count as lost, as if this process ended now."""
        with self._condition:
            return self.spent.with_lost_attempts(
                reservation for reservation in self._open_reservations.values() if reservation.id in self._sent_ids
            )

    def settle(self, reservation: Reservation, reply: ChatReply) -> bool:
        """Count a reply; return False, and count nothing, if its attempt was released or abandoned before."""
        with self._condition:
            if self._close_reservation(reservation):
                self.spent = self.spent.with_reply(reply, reservation)
                return True
            return False

    def release(self, reservation: Reservation) -> None:
        """Cancel the reservation of an attempt that certainly generated nothing, unless it is settled or abandoned."""
        with self._condition:
            self._close_reservation(reservation)

    def abandon(self, reservation: Reservation) -> None:
        """Count an attempt as lost with the full amount, or release it if it was not sent yet.

        Later calls of `settle` and `release` for it have no effect.
        """
        with self._condition:
            in_flight = reservation.id in self._sent_ids
            if self._close_reservation(reservation) and in_flight:
                self.spent = self.spent.with_lost_attempts([reservation])

    def record_failed_calls(self, calls: int) -> None:
        """Count calls that ended without a reply. The cost of their attempts is counted separately."""
        with self._condition:
            self.spent = replace(self.spent, failed=self.spent.failed + calls)

    def _close_reservation(self, reservation: Reservation) -> bool:
        """Remove a reservation; return whether it was still open, i.e. neither settled, released nor abandoned."""
        self._sent_ids.discard(reservation.id)
        self._condition.notify_all()
        return self._open_reservations.pop(reservation.id, None) is not None

    def _describe_violation(self, reservations: list[Reservation]) -> tuple[str, str] | None:
        """Return the problem and the remedy, one sentence each, if `reservations` could exceed a limit; else None."""
        usage, includes_unknown = self.spent, self.unknown == "count"
        limits: list[tuple[str, float | None, float, float, float, str]] = [
            ("calls", self.calls, usage.calls, usage.unsettled, len(reservations), ","),
            ("tokens", self.tokens, usage.tokens, usage.unsettled_tokens, sum(r.tokens for r in reservations), ","),
            ("usd", self.usd, usage.cost, usage.unsettled_cost, sum(r.cost or 0.0 for r in reservations), ".4g"),
        ]
        for name, limit, spent_amount, unknown, reserved_amount, format_spec in limits:
            total = spent_amount + unknown * includes_unknown
            # The tolerance of a thousandth of a cent covers rounding in sums of many small prices.
            if limit is not None and total + reserved_amount > limit + 1e-5 * (name == "usd"):
                lost_text = (
                    f" and at most {unknown:{format_spec}} for replies that were lost"
                    if unknown and includes_unknown
                    else ""
                )
                return (
                    f"the budget for language models is exhausted: llm.budget.{name}={limit:{format_spec}}, spent "
                    f"{spent_amount:{format_spec}}{lost_text}, and the next call may need "
                    f"{reserved_amount:{format_spec}}",
                    f"Everything is saved; repeat the command with a larger llm.budget.{name} to go on",
                )
        return None
