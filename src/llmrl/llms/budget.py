"""What a run may spend on language models: calls, tokens, money. A hard limit, not a warning."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.limits import NonNegativeFloat, NonNegativeInt
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.provider import Provider


@dataclass(frozen=True)
class Spent:
    """What a run has paid for: replies that came from a provider, not from a cache.

    Attributes:
        calls: replies paid for.
        attempts: requests sent for them.
        failed: calls that ended without a reply; providers do not charge for those.
        tokens: of prompts and replies, as far as providers told.
        cost: US dollars, as far as prices and tokens are known.
        unknown_tokens, unknown_costs: calls whose tokens or cost are not known.
        seconds: until the replies were there, waits and retries included, added up.
    """

    calls: int = 0
    attempts: int = 0
    failed: int = 0
    tokens: int = 0
    cost: float = 0.0
    unknown_tokens: int = 0
    unknown_costs: int = 0
    seconds: float = 0.0

    def plus(self, reply: ChatReply | None) -> Spent:
        """With one more call; None is one that failed. A replayed reply (no attempts) is not paid."""
        if reply is None:
            return replace(self, failed=self.failed + 1)
        if reply.attempts == 0:
            return self
        return Spent(
            self.calls + 1,
            self.attempts + reply.attempts,
            self.failed,
            self.tokens + (reply.prompt_tokens or 0) + (reply.completion_tokens or 0),
            self.cost + (reply.cost or 0.0),
            self.unknown_tokens + (None in (reply.prompt_tokens, reply.completion_tokens)),
            self.unknown_costs + (reply.cost is None),
            self.seconds + reply.latency,
        )

    def plus_unknown(self, reservation: Reservation) -> Spent:
        """With one more call that was sent, and of which nobody learned what became."""
        return replace(
            self,
            calls=self.calls + 1,
            attempts=self.attempts + 1,
            tokens=self.tokens + reservation.tokens,
            cost=self.cost + reservation.cost,
        )


@dataclass(frozen=True)
class Reservation:
    """The most a call in flight may come to."""

    tokens: int
    cost: float


class Budget:
    """Refuses a call that could exceed the run's limits, counting calls in flight at the most they may come to.

    The most a call may come to is its prompt, by estimate, and `llm.max_tokens` of reply; a model whose reply has no
    limit is counted by its prompt alone, so the last call may then exceed the budget. A call that fails is not counted,
    as providers do not charge for it; one that was abandoned is, at the most it may come to.

    Args:
        calls: replies paid for; None: no limit. The same holds for
        tokens: of prompts and replies together, and
        usd: US dollars.
    """

    def __init__(
        self,
        calls: NonNegativeInt | None = None,
        tokens: NonNegativeInt | None = None,
        usd: NonNegativeFloat | None = None,
    ) -> None:
        self.calls, self.tokens, self.usd = calls, tokens, usd
        self.spent = Spent()
        self._settled = threading.Condition()
        self._reserved: list[Reservation] = []

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

    def reserve(self, request: ChatRequest, provider: Provider, wait: bool) -> Reservation:
        """Set aside what `request` may come to.

        Args:
            request, provider: what is to be asked, and whom.
            wait: other threads have calls in flight: see what they really take before giving up.

        Raises:
            BudgetExhausted: it could exceed a limit.
        """
        prompt, reply = provider.count_tokens(request.messages), provider.max_tokens or 0
        reservation = Reservation(prompt + reply, provider.cost(prompt, reply) or 0.0)
        with self._settled:
            while exceeded := self._exceeded([*self._reserved, reservation]):
                if not (wait and self._reserved):
                    raise BudgetExhausted(*exceeded)
                self._settled.wait()
            self._reserved.append(reservation)
        return reservation

    def settle(self, reservation: Reservation, reply: ChatReply | None) -> None:
        """The call of `reservation` is over; `reply` is None if none came."""
        with self._settled:
            self._reserved.remove(reservation)
            self.spent = self.spent.plus(reply)
            self._settled.notify_all()

    def abandon(self, reservation: Reservation) -> None:
        """Nobody waits for the reply any more, so what became of the call of `reservation` is not known: it counts as
        the most it may come to."""
        with self._settled:
            self._reserved.remove(reservation)
            self.spent = self.spent.plus_unknown(reservation)
            self._settled.notify_all()

    def _exceeded(self, planned: list[Reservation]) -> tuple[str, str] | None:
        """Which limit `planned` calls could exceed, and what a run can do about it, in words; None if none."""
        limits: list[tuple[str, float | None, float, float, str]] = [
            ("calls", self.calls, self.spent.calls, len(planned), ","),
            ("tokens", self.tokens, self.spent.tokens, sum(r.tokens for r in planned), ","),
            ("usd", self.usd, self.spent.cost, sum(r.cost for r in planned), ".4g"),
        ]
        for name, limit, spent, more, form in limits:
            # A thousandth of a cent is no overspending: sums of many small prices round.
            if limit is not None and spent + more > limit + 1e-5 * (name == "usd"):
                return (
                    f"the budget for language models is exhausted: llm.budget.{name}={limit:{form}}, spent "
                    f"{spent:{form}}, and the next call may need {more:{form}}",
                    f"Everything is saved; repeat the command with a larger llm.budget.{name} to go on",
                )
        return None
