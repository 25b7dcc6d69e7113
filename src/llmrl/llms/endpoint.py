"""Calls of a run to one model: budget, limits, retries, cache and log around a provider.

A call passes through the parts in this order; each is a small class that can be disabled:

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
from llmrl.llms.call_log import CallLog, LoggedCall, Verdict
from llmrl.llms.cancellable_calls import WAIT_SLICE, PendingCall, RequestBatch
from llmrl.llms.provider import Provider
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.reply_cleaning import replace_surrogates
from llmrl.llms.retry import Retry, TransientError

logger = logging.getLogger(__name__)

Started = RequestBatch[Any] | None
"""Requests that were sent; None: they are sent when the caller waits for them."""
STOPPING = "the run is stopping, so no further requests are sent to the language model"
ABANDONED = "the call was abandoned before its reply arrived"
"""Reason why the outcome of an attempt is unknown."""


@dataclass
class Terms:
    """Policies and stores that all models of a run share.

    Attributes:
        cache: cache of replies; None: no cache.
        ledger: log of calls; None: no log.
        retry: policy of repeated attempts.
        budget: spending limits.
        stream: seed that selects the sample of a model's answers; None: all seeds share replies.
        stopping: function that returns whether the run is to stop; then no request is sent and no reply awaited.
    """

    cache: Cache | None
    ledger: CallLog | None
    retry: Retry
    budget: Budget
    stream: int | None
    stopping: Callable[[], bool]


@dataclass
class Call:
    """Request and the cache key of its reply. `line` is the verdict of its logged call; None until it is logged."""

    request: ChatRequest
    key: str
    line: Verdict | None = None


class Endpoint:
    """Provider with the policies of a run and its own rate limits. Threads may share it."""

    def __init__(self, provider: Provider, limits: RateLimit, terms: Terms) -> None:
        self.provider, self.limits, self.terms, self.label = provider, limits, terms, provider.label
        self._warns_of_counts = True

    def check(self) -> None:
        """Raise LLMError or ConfigError if the model could never answer, or the budget could not be enforced."""
        self.terms.budget.check(self.provider)
        if self.terms.cache is None or self.terms.cache.mode != "only":
            self.provider.check()

    def from_cache(self, call: Call) -> ChatReply | LLMError | None:
        """Return the cached reply, or its absence as an error in mode `only`; None if the provider must be called."""
        if self.terms.cache is None:
            return None
        start = time.perf_counter()
        result: ChatReply | LLMError | None = self.terms.cache.get(call.key)
        if isinstance(result, ChatReply):
            latency = time.perf_counter() - start
            result = replace(
                result,
                text=replace_surrogates(result.text),
                thoughts=replace_surrogates(result.thoughts),
                latency=latency,
            )
        elif self.terms.cache.mode == "only":
            result = self.terms.cache.missing(call.request)
        if result is not None:
            self._log(call, result)
        return result

    def start(self, calls: Sequence[Call]) -> Started:
        """Send requests, as many concurrently as the limits allow.

        Return None for a model in this process, which runs when `wait` is called.
        """
        if not self.provider.parallel:
            return None
        return RequestBatch(
            lambda i, pending_call: self._request_one(calls[i], pending_call), len(calls), self.limits.concurrency
        )

    def wait(self, calls: Sequence[Call], started: Started) -> list[ChatReply | LLMError]:
        """Return the answers to requests that were started."""
        if started is None:
            return self._request_batch(calls)
        started.wait(self.terms.stopping)
        self.give_up(started)
        return [Interrupted(STOPPING) if answer is None else answer for answer in list(started.answers)]

    def give_up(self, started: Started, reason: str = ABANDONED) -> None:
        """Stop waiting for replies, and count attempts in flight as lost.

        The sending threads make no further attempts.
        """
        if started is None:
            return
        for pending_call, answer in zip(started.pending_calls, list(started.answers), strict=True):
            if answer is None and not pending_call.abandoned and pending_call.abandon():
                self._settle_failure(list(pending_call.reservations), False, reason)

    def _request_one(self, call: Call, pending_call: PendingCall) -> ChatReply | LLMError:
        """Request one reply, with retries."""
        try:
            with self.limits.slot(lambda seconds: self._wait(seconds, pending_call)):
                self._wait(0.0, pending_call)
                # Another process may have sent an equal request while this one waited for a slot.
                reply = self.from_cache(call)
                if reply is not None:
                    return reply
                return self._request([call], pending_call)[0]
        except LLMError as error:
            if not pending_call.abandoned:  # otherwise the call log may be closed
                self._log(call, error)
            return error

    def _request_batch(self, calls: Sequence[Call]) -> list[ChatReply | LLMError]:
        """Request many replies in one call of the provider."""
        reservations: list[Reservation] = []
        refusal: LLMError | None = None
        try:
            for call in calls:
                reservations.append(self.terms.budget.reserve(call.request, self.provider))
        except BudgetExhausted as error:
            refusal = error
        results: list[ChatReply | LLMError] = []
        affordable = calls[: len(reservations)]
        try:
            with self.limits.slot():
                results += self._request(affordable, PendingCall(), reservations) if affordable else []
        except LLMError as error:
            results += [error] * len(affordable)
        results += [refusal] * (len(calls) - len(affordable)) if refusal else []
        for call, result in zip(calls, results, strict=True):
            if isinstance(result, LLMError):
                self._log(call, result)
        return results

    def _request(
        self, calls: Sequence[Call], pending_call: PendingCall, reservations: Sequence[Reservation] = ()
    ) -> list[ChatReply]:
        """Return paid, cached and logged replies of the provider.

        `reservations` are those of the first attempt, if they exist already; each further attempt makes its own.
        """
        start, attempt = time.perf_counter(), 0

        def attempt_request() -> tuple[list[ChatReply], Sequence[Reservation]]:
            nonlocal attempt
            attempt += 1
            attempt_reservations = reservations if reservations and attempt == 1 else self._reserve(calls, pending_call)
            return self._attempt(calls, attempt_reservations, attempt, start, pending_call), attempt_reservations

        try:
            (replies, charges), _ = self.terms.retry(attempt_request, lambda seconds: self._wait(seconds, pending_call))
        except NotAsked:
            raise
        except LLMError:
            self.terms.budget.count_failed(len(calls))
            raise
        if pending_call.lost:
            # The reply is paid, so it is cached for a later request.
            for call, reply in zip(calls, replies, strict=True):
                self._cache(call, reply)
            raise Interrupted("the call was abandoned")
        return [self._store(call, reply, charge) for call, reply, charge in zip(calls, replies, charges, strict=True)]

    def _reserve(self, calls: Sequence[Call], pending_call: PendingCall) -> list[Reservation]:
        """Reserve the maximum usage of one attempt at all `calls`.

        Raises:
            BudgetExhausted: it could exceed a limit; nothing is reserved.
        """
        wait = (lambda seconds: self._wait(seconds, pending_call)) if self.provider.parallel else None
        reservations: list[Reservation] = []
        try:
            for call in calls:
                reservations.append(self.terms.budget.reserve(call.request, self.provider, wait))
        except LLMError:
            for reservation in reservations:
                self.terms.budget.release(reservation)
            raise
        return reservations

    def _attempt(
        self,
        calls: Sequence[Call],
        reservations: Sequence[Reservation],
        attempt: int,
        start: float,
        pending_call: PendingCall,
    ) -> list[ChatReply]:
        """Make one attempt; settle, release or abandon its reservations when it ends.

        If the call was abandoned, the waiting thread has done this already.
        """
        in_log = in_flight = False
        pending_call.reservations = reservations
        try:
            correct = self.limits.start(
                sum(reservation.tokens for reservation in reservations),
                lambda seconds: self._wait(seconds, pending_call),
            )
            self._wait(0.0, pending_call)
            in_log = True
            self._announce(calls, reservations, attempt)
            pending_call.start()
            in_flight = True
            replies = self._replies([call.request for call in calls], attempt, start)
        except BaseException as error:
            pending_call.finish()
            if not pending_call.lost:
                is_free = not in_flight or (isinstance(error, LLMError) and error.refused)
                reason = str(error) if isinstance(error, LLMError) else type(error).__name__
                self._settle_failure(reservations, is_free, reason, in_log)
            raise
        pending_call.finish()
        counts = [(reply.prompt_tokens, reply.completion_tokens) for reply in replies]
        for reservation, reply in zip(reservations, replies, strict=True):
            self.terms.budget.settle(reservation, reply)
        correct(
            sum(x + y for x, y in counts if x is not None and y is not None)
            or sum(reservation.tokens for reservation in reservations)
        )
        return replies

    def _announce(self, calls: Sequence[Call], reservations: Sequence[Reservation], attempt: int) -> None:
        """Count and log attempts before they are sent, so that they count even if this process ends."""
        for call, reservation in zip(calls, reservations, strict=True):
            self.terms.budget.mark_sent(reservation)
            if self.terms.ledger is not None and self.provider.remote:
                self.terms.ledger.announce(self._logged_call(call), attempt, reservation, self.terms.budget)

    def _replies(self, requests: Sequence[ChatRequest], attempt: int, start: float) -> list[ChatReply]:
        """Call the provider once; return replies with cost, latency since `start`, and number of attempts."""
        try:
            replies = self.provider.complete(requests)
        except TransientError as error:
            if error.retry_after is not None and error.retry_after <= self.terms.retry.max_retry_after:
                self.limits.hold(error.retry_after)
            raise
        return [self._complete_reply(reply, attempt, start) for reply in replies]

    def _complete_reply(self, reply: ChatReply, attempt: int, start: float) -> ChatReply:
        """Return a reply with cost, latency since `start`, and number of attempts."""
        reply = self._drop_impossible_counts(reply)
        return replace(
            reply,
            # Redacted before they are parsed, so that the log has exactly the texts that the run used.
            text=redact(replace_surrogates(reply.text)),
            finish=redact(replace_surrogates(reply.finish)),
            thoughts=redact(replace_surrogates(reply.thoughts)),
            cost=self._cost(reply),
            latency=time.perf_counter() - start,
            # A replayed reply has 0 attempts, because nothing was sent.
            attempts=attempt if reply.attempts else 0,
        )

    def _settle_failure(
        self, reservations: Collection[Reservation], is_free: bool, reason: str, in_log: bool = True
    ) -> None:
        """Settle an attempt that ended without a reply.

        Its reservations are released if it certainly cost nothing (`is_free`), else they count as lost.
        """
        is_free = is_free or not self.provider.remote
        for reservation in reservations:
            (self.terms.budget.release if is_free else self.terms.budget.abandon)(reservation)
        if in_log and self.terms.ledger is not None and self.provider.remote:
            self.terms.ledger.record_outcome(reservations, "refused" if is_free else "lost", reason, self.terms.budget)

    def _drop_impossible_counts(self, reply: ChatReply) -> ChatReply:
        """Return a reply in which impossible numbers are replaced by None, so that they do not change the budget."""
        impossible_fields = impossible(reply)
        if impossible_fields and self._warns_of_counts:
            self._warns_of_counts = False
            counts = ", ".join(f"{name}={getattr(reply, name)!r}" for name in impossible_fields)
            logger.warning(
                "%s reported a reply with the impossible counts %s; they are treated as unknown (logged once)",
                self.label,
                counts,
            )
        unknown: dict[str, Any] = dict.fromkeys(impossible_fields)
        return replace(reply, **unknown) if impossible_fields else reply

    def _cost(self, reply: ChatReply) -> float | None:
        """Return the cost of a reply in US dollars, as reported or from its token counts; None if unknown."""
        if reply.cost is not None:
            return reply.cost
        counts = (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens, reply.cache_write_tokens)
        return self.provider.cost(*counts)

    def _store(self, call: Call, reply: ChatReply, reservation: Reservation) -> ChatReply:
        """Cache and log a paid reply, and return it as it is in the cache."""
        try:
            reply = self._cache(call, reply)
        finally:
            # The reply is paid even if it could not be cached.
            self._log(call, reply, reservation if self.provider.remote else None)
        return reply

    def _cache(self, call: Call, reply: ChatReply) -> ChatReply:
        """Cache a reply, and return it as it is in the cache."""
        if self.terms.cache is None:
            return reply
        return self.terms.cache.put(call.key, self.provider.identity, call.request, reply)

    def _log(self, call: Call, result: ChatReply | LLMError, reservation: Reservation | None = None) -> None:
        """Write a call to the log, unless it was not sent."""
        if self.terms.ledger is not None and not isinstance(result, NotAsked):
            log_call, identity = self._logged_call(call), self.provider.identity
            call.line = self.terms.ledger.record(log_call, identity, result, self.terms.budget, reservation)

    def _logged_call(self, call: Call) -> LoggedCall:
        return LoggedCall(call.key, self.label, self.terms.stream, call.request)

    def _wait(self, seconds: float, pending_call: PendingCall) -> None:
        """Wait, but raise Interrupted if the run is to stop.

        Waits are short, because signal handlers cannot wake threads safely.
        """
        end = time.monotonic() + seconds
        while True:
            if pending_call.abandoned or self.terms.stopping():
                raise Interrupted(STOPPING)
            remaining = end - time.monotonic()
            if remaining <= 0:
                return
            time.sleep(min(remaining, WAIT_SLICE))
