"""One model as a run asks it: budget, limits, retries, cache and log around a provider.

A call passes through the pieces in this order; each is a small class of its own that can be switched off:

    cache -> slot (and cache again) -> retry( budget -> rate limit -> ledger ("asked") -> provider ) -> cache -> ledger
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmrl.core.errors import BudgetExhausted, Interrupted, LLMError, NotAsked
from llmrl.core.records import ChatReply, ChatRequest, impossible
from llmrl.core.secrets import redact
from llmrl.llms.budget import Budget, Reservation
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog, Verdict
from llmrl.llms.cancellable_calls import WAIT_SLICE, PendingCall, RequestBatch
from llmrl.llms.provider import Provider
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.reading.reply_cleaning import writable
from llmrl.llms.retry import Retry, TransientError

logger = logging.getLogger(__name__)

Started = RequestBatch[Any] | None
"""Requests that were sent; None: who waits for them has them answered."""
STOPPING = "the run is to stop; the language model is asked no more"
LOST = "nobody waited for the reply any more"
"""Why nobody knows what became of an attempt."""


@dataclass
class Terms:
    """On which terms a run asks models; those of one run share them.

    Attributes:
        cache, ledger: where replies and calls are kept; None: nowhere.
        retry, budget: the policies.
        stream: whose sample of a model's answers to take: the run's seed, or None to share replies between seeds.
        stopping: whether the run is to stop: then no further request is sent, and nothing is waited for.
    """

    cache: Cache | None
    ledger: CallLog | None
    retry: Retry
    budget: Budget
    stream: int | None
    stopping: Callable[[], bool]


@dataclass
class Call:
    """A request and the address of its reply; `line` is what the call log has of it, once that is written."""

    request: ChatRequest
    key: str
    line: Verdict | None = None


class Endpoint:
    """A provider, asked on a run's terms and within its own limits. Threads may share it."""

    def __init__(self, provider: Provider, limits: RateLimit, terms: Terms) -> None:
        self.provider, self.limits, self.terms, self.label = provider, limits, terms, provider.label
        self._believing = True

    def check(self) -> None:
        """Raises LLMError or ConfigError if the model could never answer, or the budget could not be held."""
        self.terms.budget.check(self.provider)
        if self.terms.cache is None or self.terms.cache.mode != "only":
            self.provider.check()

    def from_cache(self, call: Call) -> ChatReply | LLMError | None:
        """The kept reply; None if the provider is to be asked."""
        if self.terms.cache is None:
            return None
        start = time.perf_counter()
        result: ChatReply | LLMError | None = self.terms.cache.get(call.key)
        if isinstance(result, ChatReply):
            took = time.perf_counter() - start
            result = replace(result, text=writable(result.text), thoughts=writable(result.thoughts), latency=took)
        elif self.terms.cache.mode == "only":
            result = self.terms.cache.missing(call.request)
        if result is not None:
            self._record(call, result)
        return result

    def start(self, calls: Sequence[Call]) -> Started:
        """Send requests, as many at once as the limits allow; None for a model of this process, which is asked by who
        waits for it."""
        if not self.provider.parallel:
            return None
        return RequestBatch(lambda i, flight: self._one(calls[i], flight), len(calls), self.limits.concurrency)

    def wait(self, calls: Sequence[Call], started: Started) -> list[ChatReply | LLMError]:
        """The answers to requests that were started."""
        if started is None:
            return self._batch(calls)
        started.wait(self.terms.stopping)
        self.give_up(started)
        return [Interrupted(STOPPING) if answer is None else answer for answer in list(started.answers)]

    def give_up(self, started: Started, why: str = LOST) -> None:
        """Wait no more for replies, whose fate is unknown from then on, and what they may come to spent; threads that
        were to try again give up."""
        if started is None:
            return
        for flight, answer in zip(started.flights, list(started.answers), strict=True):
            if answer is None and not flight.abandoned and flight.abandon():
                self._unanswered(list(flight.reservations), False, why)

    def _one(self, call: Call, flight: PendingCall) -> ChatReply | LLMError:
        """Ask the provider for one reply, as often as it takes."""
        try:
            with self.limits.slot(lambda seconds: self._wait(seconds, flight)):
                self._wait(0.0, flight)
                # Another process may have asked the same while this request waited for its turn.
                kept = self.from_cache(call)
                if kept is not None:
                    return kept
                return self._ask([call], flight)[0]
        except LLMError as error:
            if not flight.abandoned:  # whose file this was may have been given back
                self._record(call, error)
            return error

    def _batch(self, calls: Sequence[Call]) -> list[ChatReply | LLMError]:
        """Ask the provider for many replies in one call."""
        reservations: list[Reservation] = []
        refused: LLMError | None = None
        try:
            for call in calls:
                reservations.append(self.terms.budget.reserve(call.request, self.provider))
        except BudgetExhausted as error:
            refused = error
        results: list[ChatReply | LLMError] = []
        asked = calls[: len(reservations)]
        try:
            with self.limits.slot():
                results += self._ask(asked, PendingCall(), reservations) if asked else []
        except LLMError as error:
            results += [error] * len(asked)
        results += [refused] * (len(calls) - len(asked)) if refused else []
        for call, result in zip(calls, results, strict=True):
            if isinstance(result, LLMError):
                self._record(call, result)
        return results

    def _ask(
        self, calls: Sequence[Call], flight: PendingCall, reservations: Sequence[Reservation] = ()
    ) -> list[ChatReply]:
        """Replies of the provider, paid, kept and logged; `reservations` are those of the first attempt, if there are
        any already. Each further attempt needs its own."""
        start, attempt = time.perf_counter(), 0

        def once() -> tuple[list[ChatReply], Sequence[Reservation]]:
            nonlocal attempt
            attempt += 1
            held = reservations if reservations and attempt == 1 else self._reserve(calls, flight)
            return self._attempt(calls, held, attempt, start, flight), held

        try:
            (replies, paid), _ = self.terms.retry(once, lambda seconds: self._wait(seconds, flight))
        except NotAsked:
            raise
        except LLMError:
            self.terms.budget.failed(len(calls))
            raise
        if flight.lost:
            # It is paid: who asks again is to find it.
            for call, reply in zip(calls, replies, strict=True):
                self._put(call, reply)
            raise Interrupted("nobody waits for the reply any more")
        return [self._keep(call, reply, one) for call, reply, one in zip(calls, replies, paid, strict=True)]

    def _reserve(self, calls: Sequence[Call], flight: PendingCall) -> list[Reservation]:
        """What one attempt at all `calls` may come to, set aside.

        Raises:
            BudgetExhausted: it could exceed a limit; nothing is set aside.
        """
        wait = (lambda seconds: self._wait(seconds, flight)) if self.provider.parallel else None
        held: list[Reservation] = []
        try:
            for call in calls:
                held.append(self.terms.budget.reserve(call.request, self.provider, wait))
        except LLMError:
            for reservation in held:
                self.terms.budget.release(reservation)
            raise
        return held

    def _attempt(
        self, calls: Sequence[Call], held: Sequence[Reservation], attempt: int, start: float, flight: PendingCall
    ) -> list[ChatReply]:
        """One attempt, whose reservations are settled, released or abandoned when it is over, however it ends; by who
        waited for it, where that is no longer so."""
        announced = departed = False
        flight.reservations = held
        try:
            took = self.limits.start(
                sum(reservation.tokens for reservation in held), lambda seconds: self._wait(seconds, flight)
            )
            self._wait(0.0, flight)
            announced = True
            self._announce(calls, held, attempt)
            flight.start()
            departed = True
            replies = self._replies([call.request for call in calls], attempt, start)
        except BaseException as error:
            flight.finish()
            if not flight.lost:
                refused = not departed or (isinstance(error, LLMError) and error.refused)
                why = str(error) if isinstance(error, LLMError) else type(error).__name__
                self._unanswered(held, refused, why, announced)
            raise
        flight.finish()
        counts = [(reply.prompt_tokens, reply.completion_tokens) for reply in replies]
        for reservation, reply in zip(held, replies, strict=True):
            self.terms.budget.settle(reservation, reply)
        took(sum(a + b for a, b in counts if a is not None and b is not None) or sum(one.tokens for one in held))
        return replies

    def _announce(self, calls: Sequence[Call], held: Sequence[Reservation], attempt: int) -> None:
        """Write down what is about to be sent: whatever happens from now on, it counts."""
        for call, reservation in zip(calls, held, strict=True):
            self.terms.budget.sent(reservation)
            if self.terms.ledger is not None and self.provider.remote:
                self.terms.ledger.asked(
                    call.key,
                    self.label,
                    self.terms.stream,
                    call.request,
                    attempt,
                    reservation,
                    self.terms.budget,
                )

    def _replies(self, requests: Sequence[ChatRequest], attempt: int, start: float) -> list[ChatReply]:
        """What the provider says to one attempt at `requests`, with cost, latency since `start`, and attempts."""
        try:
            given = self.provider.complete(requests)
        except TransientError as error:
            if error.retry_after is not None and error.retry_after <= self.terms.retry.longest_retry_after:
                self.limits.hold(error.retry_after)
            raise
        return [self._taken(reply, attempt, start) for reply in given]

    def _taken(self, reply: ChatReply, attempt: int, start: float) -> ChatReply:
        """A reply with cost, latency since `start`, and attempts."""
        reply = self._believed(reply)
        return replace(
            reply,
            # Before anybody reads them: what is written down is what the run went by.
            text=redact(writable(reply.text)),
            finish=redact(writable(reply.finish)),
            thoughts=redact(writable(reply.thoughts)),
            cost=self._cost(reply),
            latency=time.perf_counter() - start,
            # A replayed reply says 0: nothing was sent for it.
            attempts=attempt if reply.attempts else 0,
        )

    def _unanswered(self, held: Collection[Reservation], refused: bool, why: str, announced: bool = True) -> None:
        """Settle an attempt that ended without a reply: `refused`, nothing was generated for certain; else lost."""
        refused = refused or not self.provider.remote
        for reservation in held:
            (self.terms.budget.release if refused else self.terms.budget.abandon)(reservation)
        if announced and self.terms.ledger is not None and self.provider.remote:
            self.terms.ledger.unanswered(held, "refused" if refused else "lost", why, self.terms.budget)

    def _believed(self, reply: ChatReply) -> ChatReply:
        """The reply without numbers that none can have: they are unknown, and take nothing from what was spent."""
        wrong = impossible(reply)
        if wrong and self._believing:
            self._believing = False
            said = ", ".join(f"{name}={getattr(reply, name)!r}" for name in wrong)
            logger.warning("%s tells of a reply with %s, which is taken for unknown (told once)", self.label, said)
        unknown: dict[str, Any] = dict.fromkeys(wrong)
        return replace(reply, **unknown) if wrong else reply

    def _cost(self, reply: ChatReply) -> float | None:
        if reply.cost is not None:
            return reply.cost
        counts = (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens, reply.cache_write_tokens)
        return self.provider.cost(*counts)

    def _keep(self, call: Call, reply: ChatReply, paid: Reservation) -> ChatReply:
        try:
            reply = self._put(call, reply)
        finally:
            # It is paid, whether or not it could be kept.
            self._record(call, reply, paid if self.provider.remote else None)
        return reply

    def _put(self, call: Call, reply: ChatReply) -> ChatReply:
        """Into the cache; what is found there from now on."""
        if self.terms.cache is None:
            return reply
        return self.terms.cache.put(call.key, self.provider.identity, call.request, reply)

    def _record(self, call: Call, result: ChatReply | LLMError, paid: Reservation | None = None) -> None:
        if self.terms.ledger is not None and not isinstance(result, NotAsked):
            identity = self.provider.identity
            call.line = self.terms.ledger.record(
                call.key,
                self.label,
                identity,
                self.terms.stream,
                call.request,
                result,
                self.terms.budget,
                paid,
            )

    def _wait(self, seconds: float, flight: PendingCall) -> None:
        """Wait, but not on after the run is asked to stop. In slices: a signal's handler can wake nobody safely."""
        end = time.monotonic() + seconds
        while True:
            if flight.abandoned or self.terms.stopping():
                raise Interrupted(STOPPING)
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, WAIT_SLICE))
