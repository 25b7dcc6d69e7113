"""Endpoint of a model that is called through its provider's batch API."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from llmrl.core.errors import BudgetExhausted, ConfigError, Interrupted, LLMError, NotAsked
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.batches.batch_api import Answer, Failure
from llmrl.llms.batches.batch_queue import BatchQueue
from llmrl.llms.batches.records import HeldReservation
from llmrl.llms.budget import Reservation
from llmrl.llms.cancellable_calls import PendingCall, RequestBatch
from llmrl.llms.endpoint import STOPPING, Call, Endpoint, Started
from llmrl.llms.litellm_requests import RecordedHttpRequest
from llmrl.llms.retry import TransientError

UNDER_WAY = "its batch is pending; run the same command again to resume it"


@runtime_checkable
class Batched(Protocol):
    """Provider that can be called through batches.

    Attributes:
        batch: whether batches are used.
    """

    batch: bool

    def batch_queue(self, folder: Path) -> BatchQueue:
        """Return the queue of requests; pending batches are recorded next to the cache in `folder`."""
        ...

    def prepare(self, request: ChatRequest) -> RecordedHttpRequest:
        """Return the request as it would be sent individually."""
        ...

    def reply_in(self, request: ChatRequest, answer: Mapping[str, Any]) -> ChatReply:
        """Return the reply in a provider's answer to a request; raise as `Provider.complete`."""
        ...


class BatchEndpoint(Endpoint):
    """Endpoint whose concurrent calls wait for batches in one thread (see `Endpoint`).

    A run that stops leaves its batches pending. Their reservations count as lost until the resumed run finds the
    batches (`BatchQueue.reservation_of`) and reclaims the reservations. The limits of `Endpoint` apply to single
    requests; a batch has none.
    """

    provider: Any  # Provider and Batched
    _shared_queue: BatchQueue | None = None
    _lost_ids: set[str] | None = None

    def check(self) -> None:
        super().check()
        if self.terms.cache is None or self.terms.cache.mode in ("off", "read"):
            raise ConfigError(
                "llm.batch=true needs llm.cache=readwrite, because pending batches are recorded next to the cache so "
                "that a stopped run can resume them"
            )

    @property
    def _batch_queue(self) -> BatchQueue:
        """Queue of the provider's account, which other runs of this process share."""
        if self._shared_queue is None:
            assert self.terms.cache is not None
            self._shared_queue = self.provider.batch_queue(self.terms.cache.folder)
        return self._shared_queue

    def start(self, calls: Sequence[Call]) -> Started:
        return RequestBatch(lambda _, pending_call: self._answer_all(calls, pending_call), 1, 1)

    def wait(self, calls: Sequence[Call], started: Started) -> list[ChatReply | LLMError]:
        assert started is not None
        started.wait(self.terms.stopping)
        self.give_up(started)
        [answers] = started.answers
        return [Interrupted(STOPPING)] * len(calls) if answers is None else answers

    def give_up(self, started: Started, reason: str = UNDER_WAY) -> None:
        super().give_up(started, reason)

    def _answer_all(self, calls: Sequence[Call], pending_call: PendingCall) -> list[ChatReply | LLMError]:
        """Return the answers to calls, in as many consecutive batches as necessary."""
        start = time.perf_counter()
        results: dict[int, ChatReply | LLMError] = {}
        failures: Counter[str] = Counter()
        while True:
            # Another run may have fetched a reply by now. Equal requests are sent once.
            pending = {i: call for i, call in enumerate(calls) if i not in results}
            results |= {i: reply for i, call in pending.items() if (reply := self.from_cache(call)) is not None}
            unanswered = {call.key: i for i, call in pending.items() if i not in results}
            if not unanswered:
                break
            try:
                if attempt := max(failures[key] for key in unanswered):
                    self._wait(self.terms.retry.delay(attempt), pending_call)
                answers = self._answer_batch(
                    {key: calls[i] for key, i in unanswered.items()}, failures, pending_call, start
                )
            except LLMError as error:
                answers = {key: self._failed(calls[i], error, pending_call) for key, i in unanswered.items()}
            results |= {unanswered[key]: answer for key, answer in answers.items()}
        return [results[i] for i in range(len(calls))]

    def _answer_batch(
        self, calls: Mapping[str, Call], failures: Counter[str], pending_call: PendingCall, start: float
    ) -> dict[str, ChatReply | LLMError]:
        """Return the answers of one batch to some of `calls`, by cache key.

        `failures` counts the failed attempts of calls that are to be retried.
        """
        self._batch_queue.read_files()
        results: dict[str, ChatReply | LLMError] = {}
        reservations: dict[str, Reservation] = {}
        done_keys: list[str] = []
        answers: Mapping[str, Answer] = {}
        pending_call.reservations = reservations.values()
        pending_call.start()
        try:
            self._reserve_calls(calls, reservations, failures, pending_call)
            answers = self._send_and_wait(calls, reservations, pending_call)
            for key in list(reservations):
                result = self._receive(
                    answers.get(key), calls[key], reservations[key], failures[key] + 1, start, pending_call
                )
                del reservations[key]
                if key in answers:
                    done_keys.append(key)
                    failures[key] += result is None
                if result is not None:
                    results[key] = result
        except BaseException as error:
            pending_call.finish()
            if not pending_call.lost:
                self._settle_rest(reservations, error)
            raise
        finally:
            self._batch_queue.done(done_keys)
            self._batch_queue.release(answers)
        pending_call.finish()
        return results

    def _reserve_calls(
        self,
        calls: Mapping[str, Call],
        reservations: dict[str, Reservation],
        failures: Mapping[str, int],
        pending_call: PendingCall,
    ) -> None:
        """Reserve the maximum cost of calls in `reservations`.

        Reservations of calls that are already in a batch are reclaimed. For the others, as many are made as the budget
        allows; the remaining calls wait until replies have shown their real cost.

        Raises:
            BudgetExhausted: the budget allows none of them.
        """
        for key, call in calls.items():
            if (previous := self._reclaim(call)) is not None:
                reservations[key] = previous
        for key, call in calls.items():
            if key in reservations:
                continue
            wait = None if reservations else lambda seconds: self._wait(seconds, pending_call)
            try:
                reservations[key] = self.terms.budget.reserve(call.request, self.provider, wait)
            except BudgetExhausted:
                if not reservations:
                    raise
                return
            self._announce([call], [reservations[key]], failures[key] + 1)

    def _reclaim(self, call: Call) -> Reservation | None:
        """Return this run's earlier reservation for a call in a pending batch; None if there is none."""
        previous, ledger = self._batch_queue.reservation_of(call.key), self.terms.ledger
        if previous is None or ledger is None or previous.log != str(ledger.path.absolute()):
            return None
        if self._lost_ids is None:
            self._lost_ids = ledger.lost_attempts()
        if previous.id not in self._lost_ids:
            return None
        self._lost_ids.discard(previous.id)
        reservation = Reservation(previous.tokens, previous.cost, previous.id)
        self.terms.budget.reclaim(reservation)
        return reservation

    def _send_and_wait(
        self, calls: Mapping[str, Call], reservations: Mapping[str, Reservation], pending_call: PendingCall
    ) -> Mapping[str, Answer]:
        """Send the calls that are in no batch yet, and wait for all answers."""

        def wait(seconds: float) -> None:
            self._wait(seconds, pending_call)

        log = "" if self.terms.ledger is None else str(self.terms.ledger.path.absolute())
        requests = {key: self.provider.prepare(calls[key].request) for key in reservations}
        entries = {
            key: (requests[key], HeldReservation(reservation.id, reservation.tokens, reservation.cost, log))
            for key, reservation in reservations.items()
        }
        self.terms.retry(lambda: self._batch_queue.send(entries, wait), wait)
        return self._batch_queue.answers(requests, wait)

    def _settle_rest(self, reservations: Mapping[str, Reservation], error: BaseException) -> None:
        """Settle the reservations of calls that are given up.

        A call that is in no batch was certainly not generated.
        """
        for key, reservation in reservations.items():
            in_batch = self._batch_queue.reservation_of(key) is not None
            self._settle_failure([reservation], not in_batch, UNDER_WAY if in_batch else str(error))

    def _receive(
        self,
        answer: Answer | None,
        call: Call,
        reservation: Reservation,
        attempt: int,
        start: float,
        pending_call: PendingCall,
    ) -> ChatReply | LLMError | None:
        """Return the paid, cached and logged reply of an answer, or the error if it has none.

        None means that the call must be retried, or that the reply is in the cache because another caller has fetched
        it.
        """
        can_retry = attempt <= self.terms.retry.retries
        if answer is None:
            self._settle_failure([reservation], True, "another run has fetched the reply")
            return None
        if isinstance(answer, Failure):
            self._settle_failure([reservation], True, answer.message)
            return (
                None
                if answer.passing and can_retry
                else self._failed(call, LLMError(f"{self.label}: {answer.message}"), pending_call)
            )
        try:
            reply = self._complete_reply(self.provider.reply_in(call.request, answer), attempt, start)
        except LLMError as error:
            self._settle_failure([reservation], False, str(error))
            return None if isinstance(error, TransientError) and can_retry else self._failed(call, error, pending_call)
        if not self.terms.budget.settle(reservation, reply):
            return self._cache(call, reply)  # the call was abandoned, and its reservation is settled
        return self._store(call, reply, reservation)

    def _failed(self, call: Call, error: LLMError, pending_call: PendingCall) -> LLMError:
        """Record the error of a call, unless the call was abandoned, and return it."""
        if not pending_call.abandoned:  # otherwise the call log may be closed
            self._log(call, error)
            self.terms.budget.count_failed(not isinstance(error, NotAsked))
        return error
