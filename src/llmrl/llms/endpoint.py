"""Calls of a run to one model: cache, rate limits, retries, budget and call log of a provider.

A call passes through these steps, of which `slot` and `pause` are rate limits:

    cache -> slot, cache again -> retry(budget -> pause -> call log of the attempt -> provider) -> cache -> call log
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmrl.core.errors import BudgetExhausted, CallInterrupted, CallNotMade, LLMError
from llmrl.core.records import ChatReply, find_impossible_fields
from llmrl.core.secrets import redact
from llmrl.llms.budget import Budget, Reservation
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import Call, CallLog
from llmrl.llms.cancellable_calls import STOP_CHECK_SECONDS, PendingCall, RequestBatch
from llmrl.llms.provider import Provider
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.reply_cleaning import replace_surrogates
from llmrl.llms.retry import Retry, TransientError

logger = logging.getLogger(__name__)

SentBatch = RequestBatch[Any] | None
"""Batch that `start_batch` returned; None: a model in this process computes the replies in `wait_for_batch`."""
STOPPING_REASON = "the run is stopping, so no further requests are sent to the language model"
ABANDONED_REASON = "the call was abandoned before its reply arrived"
"""Logged reason why the outcome of an abandoned attempt is unknown."""


@dataclass
class SharedServices:
    """Objects that all models of a run share.

    Attributes:
        cache: cache of replies; None: no cache.
        call_log: log of calls; None: no log.
        retry: number of retries, and delays between attempts.
        budget: spending limits.
        should_stop: function that returns whether the run is to stop; then no request is sent and no reply awaited.
    """

    cache: Cache | None
    call_log: CallLog | None
    retry: Retry
    budget: Budget
    should_stop: Callable[[], bool]


class Endpoint:
    """Thread-safe provider with rate limits and the shared services of a run."""

    def __init__(self, provider: Provider, limits: RateLimit, services: SharedServices) -> None:
        self.provider, self.limits, self.services, self.label = provider, limits, services, provider.label
        self._has_warned_of_impossible_counts = False

    def check(self) -> None:
        """Raise LLMError or ConfigError if the model cannot be used or the budget cannot be enforced."""
        self.services.budget.check_prices(self.provider)
        if self.services.cache is None or self.services.cache.mode != "only":
            self.provider.check()

    def read_cache(self, call: Call) -> ChatReply | LLMError | None:
        """Return the cached reply, or an error if it is missing in mode `only`; None if the provider must be called."""
        if self.services.cache is None:
            return None
        start_time = time.perf_counter()
        result: ChatReply | LLMError | None = self.services.cache.get(call.key)
        if isinstance(result, ChatReply):
            text, thoughts = replace_surrogates(result.text), replace_surrogates(result.thoughts)
            result = replace(result, text=text, thoughts=thoughts, latency=time.perf_counter() - start_time)
        elif self.services.cache.mode == "only":
            result = self.services.cache.make_missing_reply_error(call.request)
        if result is not None:
            self._log_call(call, result)
        return result

    def start_batch(self, calls: Sequence[Call]) -> SentBatch:
        """Send requests in threads, as many at once as the limits allow; return None for a model in this process."""
        if not self.provider.remote:
            return None
        return RequestBatch(
            lambda i, pending_call: self._request_reply(calls[i], pending_call), len(calls), self.limits.concurrency
        )

    def wait_for_batch(self, calls: Sequence[Call], batch: SentBatch) -> list[ChatReply | LLMError]:
        """Return the replies or errors of `calls`, whose batch `start_batch` returned."""
        if batch is None:
            return self._complete_locally(calls)
        batch.wait(self.services.should_stop)
        self.abandon_batch(batch)
        return [CallInterrupted(STOPPING_REASON) if answer is None else answer for answer in list(batch.answers)]

    def abandon_batch(self, batch: SentBatch) -> None:
        """Count attempts in flight as lost, and let the sending threads make no further attempts."""
        if batch is None:
            return
        for pending_call, answer in zip(batch.pending_calls, list(batch.answers), strict=True):
            if answer is None and not pending_call.is_abandoned and pending_call.abandon():
                assert pending_call.reservation is not None
                self._settle_failed_attempt(pending_call.reservation, is_free=False, reason=ABANDONED_REASON)

    def _complete_locally(self, calls: Sequence[Call]) -> list[ChatReply | LLMError]:
        """Return the replies of a model in this process, which gets one batch: all requests that the budget allows."""
        start_time = time.perf_counter()
        reservations: list[Reservation] = []
        results: list[ChatReply | LLMError] = []
        refusal: LLMError | None = CallInterrupted(STOPPING_REASON) if self.services.should_stop() else None
        try:
            if refusal is None:
                for call in calls:
                    reservations.append(self.services.budget.reserve(call.request, self.provider))
        except BudgetExhausted as error:
            refusal = error
        affordable_calls = calls[: len(reservations)]
        try:
            answers = self.provider.complete([call.request for call in affordable_calls]) if affordable_calls else []
            replies = [self._finalize_reply(reply, n_attempts=1, start_time=start_time) for reply in answers]
            for reply, reservation in zip(replies, reservations, strict=True):
                self.services.budget.settle(reservation, reply)
            results += [self._cache_and_log(call, reply) for call, reply in zip(affordable_calls, replies, strict=True)]
        except LLMError as error:
            self.services.budget.record_failed_calls(len(affordable_calls))
            results += [error] * len(affordable_calls)
        finally:
            for reservation in reservations:
                self.services.budget.release(reservation)
        results += [refusal] * (len(calls) - len(affordable_calls)) if refusal else []
        for call, result in zip(calls, results, strict=True):
            if isinstance(result, LLMError):
                self._log_call(call, result)
        return results

    def _request_reply(self, call: Call, pending_call: PendingCall) -> ChatReply | LLMError:
        """Return the reply of the provider, or the error after all retries; cache and log it."""
        try:
            with self.limits.hold_slot(functools.partial(self._wait_unless_stopped, pending_call=pending_call)):
                self._wait_unless_stopped(0.0, pending_call)
                # Another process may have cached the reply to an equal request while this one waited for a slot.
                reply = self.read_cache(call)
                return self._request_with_retries(call, pending_call) if reply is None else reply
        except LLMError as error:
            if not pending_call.is_abandoned:  # the run may have ended after it abandoned the call
                self._log_call(call, error)
            return error

    def _request_with_retries(self, call: Call, pending_call: PendingCall) -> ChatReply:
        """Return the reply to the first successful attempt; raise the error of the last attempt."""
        start_time = time.perf_counter()
        try:
            reply, reservation = self.services.retry(
                lambda number: self._make_attempt(call, number, start_time, pending_call),
                functools.partial(self._wait_unless_stopped, pending_call=pending_call),
            )
        except CallNotMade:
            raise
        except LLMError:
            self.services.budget.record_failed_calls(1)
            raise
        if pending_call.is_lost:
            self._cache_reply(call, reply)  # because it is paid, and a later run can use it
            raise CallInterrupted("the call was abandoned")
        return self._cache_and_log(call, reply, reservation)

    def _make_attempt(
        self, call: Call, attempt_number: int, start_time: float, pending_call: PendingCall
    ) -> tuple[ChatReply, Reservation]:
        """Make one attempt; at its end, settle, release or abandon its reservation.

        If the call was abandoned during the attempt, `abandon_batch` has already abandoned the reservation. If the
        server sends Retry-After, all further requests to this model are paused.
        """
        wait = functools.partial(self._wait_unless_stopped, pending_call=pending_call)
        reservation = self.services.budget.reserve(call.request, self.provider, wait)
        is_logged = is_sent = False
        pending_call.reservation = reservation
        try:
            self.limits.wait_for_pause(wait)
            wait(0.0)
            is_logged = True
            # The attempt is counted and logged before it is sent, so that it counts even if this process is killed.
            self.services.budget.mark_sent(reservation)
            if self.services.call_log is not None:
                self.services.call_log.record_attempt(call, attempt_number, reservation, self.services.budget)
            pending_call.start_attempt()
            is_sent = True
            [provider_reply] = self.provider.complete([call.request])
            reply = self._finalize_reply(provider_reply, attempt_number, start_time)
        except BaseException as error:
            retry_after = error.retry_after if isinstance(error, TransientError) else None
            if retry_after is not None and retry_after <= self.services.retry.max_retry_after:
                self.limits.start_pause(retry_after)
            pending_call.finish_attempt()
            if not pending_call.is_lost:
                is_free = not is_sent or (isinstance(error, LLMError) and error.refused)
                reason = str(error) if isinstance(error, LLMError) else type(error).__name__
                self._settle_failed_attempt(reservation, is_free, reason, is_logged)
            raise
        pending_call.finish_attempt()
        self.services.budget.settle(reservation, reply)
        return reply, reservation

    def _finalize_reply(self, reply: ChatReply, n_attempts: int, start_time: float) -> ChatReply:
        """Return a reply with cost, latency since `start_time` (`time.perf_counter`), and number of attempts.

        None replaces impossible counts, so that they do not change the budget.
        """
        impossible_fields = find_impossible_fields(reply)
        if impossible_fields and not self._has_warned_of_impossible_counts:
            self._has_warned_of_impossible_counts = True
            logger.warning(
                "%s reported a reply with the impossible counts %s; they are treated as unknown (logged once)",
                self.label,
                ", ".join(f"{name}={getattr(reply, name)!r}" for name in impossible_fields),
            )
        unknown_counts: dict[str, Any] = dict.fromkeys(impossible_fields)
        reply = replace(reply, **unknown_counts)
        counts = (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens, reply.cache_write_tokens)
        return replace(
            reply,
            # Texts are redacted before they are parsed, so that the log contains exactly the texts that the run used.
            text=redact(replace_surrogates(reply.text)),
            finish=redact(replace_surrogates(reply.finish)),
            thoughts=redact(replace_surrogates(reply.thoughts)),
            cost=self.provider.cost(*counts) if reply.cost is None else reply.cost,
            latency=time.perf_counter() - start_time,
            # A replayed reply has 0 attempts, because nothing was sent.
            attempts=n_attempts if reply.attempts else 0,
        )

    def _settle_failed_attempt(
        self, reservation: Reservation, is_free: bool, reason: str, is_logged: bool = True
    ) -> None:
        """Release the reservation of a failed attempt if it certainly cost nothing (`is_free`), else abandon it.

        If the attempt is in the call log (`is_logged`), its outcome and `reason` are logged.
        """
        (self.services.budget.release if is_free else self.services.budget.abandon)(reservation)
        if is_logged and self.services.call_log is not None:
            self.services.call_log.record_attempt_outcome(
                reservation, "refused" if is_free else "lost", reason, self.services.budget
            )

    def _cache_and_log(self, call: Call, reply: ChatReply, reservation: Reservation | None = None) -> ChatReply:
        """Cache and log a paid reply; return it with the texts that are in the cache."""
        try:
            reply = self._cache_reply(call, reply)
        finally:
            # The reply is paid even if it could not be cached.
            self._log_call(call, reply, reservation)
        return reply

    def _cache_reply(self, call: Call, reply: ChatReply) -> ChatReply:
        """Cache a reply; return it with the texts that are in the cache, perhaps those of an earlier reply."""
        if self.services.cache is None:
            return reply
        return self.services.cache.put(call.key, self.provider.identity, call.request, reply)

    def _log_call(self, call: Call, result: ChatReply | LLMError, reservation: Reservation | None = None) -> None:
        """Write a call to the log, if there is one and the call was sent; store its verdict in `call`."""
        if self.services.call_log is not None and not isinstance(result, CallNotMade):
            identity = self.provider.identity
            call.verdict = self.services.call_log.record_call(call, identity, result, self.services.budget, reservation)

    def _wait_unless_stopped(self, seconds: float, pending_call: PendingCall) -> None:
        """Wait for `seconds`; raise CallInterrupted if the run is to stop or the call is abandoned.

        The thread sleeps for at most `STOP_CHECK_SECONDS` at once, because a signal handler cannot wake it safely.
        """
        end = time.monotonic() + seconds
        while True:
            if pending_call.is_abandoned or self.services.should_stop():
                raise CallInterrupted(STOPPING_REASON)
            remaining_seconds = end - time.monotonic()
            if remaining_seconds <= 0:
                return
            time.sleep(min(remaining_seconds, STOP_CHECK_SECONDS))
