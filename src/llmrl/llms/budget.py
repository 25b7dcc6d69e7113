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
"""Interval, in seconds, at which a thread that waits for budget checks whether the run is to stop."""

LATENCY_METRIC = "time/llm_latency"
"""Name of the metric with the sum of the latencies of all paid replies, in seconds."""


@dataclass(frozen=True)
class Reservation:
    """Upper bound of the usage of one attempt, which the budget counts until the outcome is known.

    Attributes:
        tokens: number of tokens of the prompt and of a reply of maximum length.
        cost: cost of these tokens in US dollars; None if prices are unknown.
        id: identifier of the attempt in the call log.
    """

    tokens: int
    cost: float | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])


@dataclass(frozen=True)
class Usage:
    """Paid usage of a run; replies from a cache are not included.

    Attributes:
        calls: number of paid replies.
        attempts: number of requests sent for these replies.
        failed: number of calls that ended without a reply.
        tokens: tokens of prompts and replies, of replies with known counts.
        cost: US dollars, of replies with known prices and counts.
        unknown_tokens, unknown_costs: number of replies whose tokens or cost are unknown.
        seconds: sum of the latencies of the paid replies, including waits and retries.
        unsettled: number of attempts with unknown outcome, whose reply may have been generated and charged.
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
        """Return the usage plus one reply; `reservation` replaces its unknown counts. Replayed replies are free."""
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

    def with_lost_attempts(self, reservations: Iterable[Reservation]) -> Usage:
        """Return the usage plus the reservations of attempts whose outcome is unknown."""
        lost = list(reservations)
        return replace(
            self,
            unsettled=self.unsettled + len(lost),
            unsettled_tokens=self.unsettled_tokens + sum(reservation.tokens for reservation in lost),
            unsettled_cost=self.unsettled_cost + sum(reservation.cost or 0.0 for reservation in lost),
        )

    def metrics(self, are_prices_known: bool) -> dict[str, float]:
        """Return the known totals since the start of the run.

        Paid: usage/llm_calls, llm_attempts, llm_failed_calls, llm_tokens, llm_cost (USD), and time/llm_latency, the
        sum of latencies in seconds. Possibly charged: usage/llm_unsettled_calls (attempts with unknown outcome) and, if
        above 0, the upper bounds llm_unsettled_tokens and, if `are_prices_known`, llm_unsettled_cost.
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
    """Spending limits of a run, which refuse an attempt if it and the attempts in flight could exceed a limit.

    The upper bound of an attempt is one call, the estimated tokens of the prompt, and `llm.max_tokens` plus
    `llm.thinking_budget` tokens of the reply. Without `llm.max_tokens` only the prompt counts, so the last reply may
    exceed `tokens` and `usd`. Every attempt, including retries, calls `reserve`, `mark_sent`, and then one of

    - `settle`: the reply arrived;
    - `release`: nothing was generated (the connection failed, or the provider refused the request);
    - `abandon`: the outcome is unknown. The complete reservation stays counted.

    Args:
        calls: maximum number of paid replies and attempts with unknown outcome; None: no limit.
        tokens: maximum number of tokens of prompts and replies together; None: no limit.
        usd: maximum cost in US dollars; None: no limit.
        unknown: treatment of reservations of attempts with unknown outcome and of replies without token counts: `count`
            or `ignore`, with which limits apply only to reported usage.
    """

    def __init__(
        self,
        calls: NonNegativeInt | None = None,
        tokens: NonNegativeInt | None = None,
        usd: NonNegativeFloat | None = None,
        unknown: Literal["count", "ignore"] = "count",
    ) -> None:
        self.calls, self.tokens, self.usd, self.unknown = calls, tokens, usd, unknown
        self.usage = Usage()
        self._condition = threading.Condition()
        self._open_reservations: dict[str, Reservation] = {}
        self._sent_ids: set[str] = set()

    @property
    def has_limits(self) -> bool:
        """True if there is at least one limit."""
        return any(limit is not None for limit in (self.calls, self.tokens, self.usd))

    def check_prices(self, provider: Provider) -> None:
        """Raise ConfigError if there is a limit in US dollars and the model's prices are unknown."""
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
            provider: model that gets the request.
            wait: function that is called with 0.0 in short intervals while the budget does not suffice but other
                attempts, which may use less than reserved, are in flight; it may raise to end the wait. None: raise at
                once if the budget does not suffice.

        Raises:
            BudgetExhausted: the attempt could exceed a limit.
        """
        n_prompt_tokens, n_reply_tokens = provider.count_tokens(request.messages), provider.max_reply_tokens or 0
        reservation = Reservation(n_prompt_tokens + n_reply_tokens, provider.cost(n_prompt_tokens, n_reply_tokens))
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
        """Mark an attempt as sent, immediately before it is sent, so that `compute_worst_case_usage` includes it."""
        with self._condition:
            if reservation.id in self._open_reservations:
                self._sent_ids.add(reservation.id)

    def compute_worst_case_usage(self) -> Usage:
        """Return the usage if all attempts in flight are counted as lost, as after a kill of this process."""
        with self._condition:
            return self.usage.with_lost_attempts(
                reservation for reservation in self._open_reservations.values() if reservation.id in self._sent_ids
            )

    def settle(self, reservation: Reservation, reply: ChatReply) -> bool:
        """Count a reply and return True; if its reservation is already closed, only return False."""
        with self._condition:
            if self._close_reservation(reservation):
                self.usage = self.usage.with_reply(reply, reservation)
                return True
            return False

    def release(self, reservation: Reservation) -> None:
        """Cancel the reservation of an attempt that certainly generated nothing, if it is still open."""
        with self._condition:
            self._close_reservation(reservation)

    def abandon(self, reservation: Reservation) -> None:
        """Count the full reservation of an attempt as unsettled, or cancel it if the attempt was not sent.

        Later calls of `settle` and `release` for this reservation have no effect.
        """
        with self._condition:
            was_sent = reservation.id in self._sent_ids
            if self._close_reservation(reservation) and was_sent:
                self.usage = self.usage.with_lost_attempts([reservation])

    def record_failed_calls(self, n_calls: int) -> None:
        """Add `n_calls` to the number of calls that ended without a reply; their attempts are counted separately."""
        with self._condition:
            self.usage = replace(self.usage, failed=self.usage.failed + n_calls)

    def _close_reservation(self, reservation: Reservation) -> bool:
        """Remove a reservation; return whether it was open, i.e. neither settled, released nor abandoned."""
        self._sent_ids.discard(reservation.id)
        self._condition.notify_all()
        return self._open_reservations.pop(reservation.id, None) is not None

    def _describe_violation(self, reservations: list[Reservation]) -> tuple[str, str] | None:
        """Return problem and remedy, one sentence each, if usage plus `reservations` exceeds a limit, else None."""
        usage, includes_unknown = self.usage, self.unknown == "count"
        limits: list[tuple[str, float | None, float, float, float, str]] = [
            ("calls", self.calls, usage.calls, usage.unsettled, len(reservations), ","),
            ("tokens", self.tokens, usage.tokens, usage.unsettled_tokens, sum(r.tokens for r in reservations), ","),
            ("usd", self.usd, usage.cost, usage.unsettled_cost, sum(r.cost or 0.0 for r in reservations), ".4g"),
        ]
        for name, limit, spent_amount, unsettled_amount, reserved_amount, format_spec in limits:
            total = spent_amount + unsettled_amount * includes_unknown
            # The tolerance of 1e-5 US dollars is for rounding errors in sums of many small prices.
            if limit is not None and total + reserved_amount > limit + 1e-5 * (name == "usd"):
                lost_text = (
                    f" and at most {unsettled_amount:{format_spec}} for replies that were lost"
                    if unsettled_amount and includes_unknown
                    else ""
                )
                return (
                    f"the budget for language models is exhausted: llm.budget.{name}={limit:{format_spec}}, spent "
                    f"{spent_amount:{format_spec}}{lost_text}, and the next call may need "
                    f"{reserved_amount:{format_spec}}",
                    f"Everything is saved; repeat the command with a larger llm.budget.{name} to go on",
                )
        return None
