"""The one way to talk to a chat model: log, cache, budget, limits and retries around any provider.

A call passes through the pieces in this order; each is a small class of its own that can be switched off:

    repeats -> cache -> slot (and cache again) -> budget -> retry( rate limit -> provider ) -> cache -> ledger
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from llmrl.core.errors import BudgetExhausted, Interrupted, LLMError, NotAsked
from llmrl.core.records import ChatReply, ChatRequest, State
from llmrl.llms.budget import Budget, Reservation
from llmrl.llms.cache import Cache, Mode
from llmrl.llms.flights import WAIT_SLICE, Departures, Flight
from llmrl.llms.ledger import FILE_NAME, Ledger
from llmrl.llms.limits import Limits
from llmrl.llms.provider import Provider
from llmrl.llms.request_key import Repeats, request_key
from llmrl.llms.retry import Retry, TransientError

Failures = Literal["stop", "fall_back"]

_TOTALS = ("prompt_tokens", "completion_tokens", "cost")


def connect(
    provider: Provider,
    folder: Path | None,
    seed: int,
    cache: Mode,
    cache_dir: str,
    share_replies: bool,
    failures: Failures,
    retry: Retry,
    limits: Limits,
    budget: Budget,
    stopping: Callable[[], bool],
) -> ChatClient:
    """The client that a config's `llm` describes, for the run in `folder` (None: of no run, and logged nowhere)."""
    return ChatClient(
        provider,
        Cache(Path(cache_dir).expanduser(), cache),
        None if folder is None else Ledger(folder / FILE_NAME),
        retry,
        limits,
        budget,
        failures,
        None if share_replies else seed,
        stopping,
    )


class _Call(NamedTuple):
    """A request and the address of its reply."""

    request: ChatRequest
    key: str


class ChatClient:
    """A chat model (protocol `ChatModel`) made of a provider and the policies around it. Threads may share it.

    Two kinds of totals are kept. What the run *used* (`llm/...`) counts every reply once, wherever it came from, goes
    back with a checkpoint, and is the same however often the run was interrupted. What it *spent* (`spent/llm_...`)
    counts what was really paid, over all attempts of the run, and depends on what the cache held.

    Args:
        provider: the model.
        cache, ledger: where replies and calls are kept; None: nowhere.
        retry, limits, budget: the policies.
        failures: what to do about a call that failed for good: `stop` raises, `fall_back` returns an empty reply with
            `error` set, which whoever asked treats as an invalid one.
        stream: whose sample of the model's answers to take: the run's seed, or None to share replies between seeds.
        stopping: whether the run is to stop: then no further request is sent, and those under way are abandoned if
            they are not answered in `LAST_REPLIES_S`. What an abandoned one may come to counts as spent.
    """

    def __init__(
        self,
        provider: Provider,
        cache: Cache | None = None,
        ledger: Ledger | None = None,
        retry: Retry | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
        failures: Failures = "stop",
        stream: int | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.provider, self.label, self.failures, self.stream = provider, provider.label, failures, stream
        self.cache, self.ledger = cache, ledger
        self.retry, self.limits, self.budget = retry or Retry(), limits or Limits(), budget or Budget()
        if ledger is not None:
            self.budget.spent = ledger.spent_before
        self._repeats = Repeats()
        self._lock = threading.Lock()
        self._stopping = stopping
        self._used = {"calls": 0.0, **dict.fromkeys(_TOTALS, 0.0)}
        # Totals that miss a number are not zero but unknown, and stay so.
        self._unknown = dict.fromkeys(_TOTALS, False)

    def check(self) -> None:
        """Raises LLMError or ConfigError if the model could never answer, or its budget could not be held."""
        self.budget.check(self.provider)
        if self.cache is None or self.cache.mode != "only":
            self.provider.check()

    def fits(self, messages: Sequence[Mapping[str, str]]) -> bool:
        return self.provider.fits(messages)

    def close(self) -> None:
        self.provider.close()

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Replies in the order of `requests`.

        All requests are tried before an error is raised, and every reply is in the cache and the ledger by then.

        Raises:
            BudgetExhausted: some of them could have exceeded the budget and were not sent.
            Interrupted: the run is to stop, and some were not sent, or not again.
            LLMError: some failed for good (`failures=stop`), or are not in the cache (mode `only`).
        """
        with self._lock:
            numbered = self._repeats.number(requests)
        identity = self.provider.identity
        calls = [_Call(request, request_key(identity, request, self.stream)) for request in numbered]
        results: list[ChatReply | LLMError | None] = [self._from_cache(call) for call in calls]
        missing = [i for i, result in enumerate(results) if result is None]
        for i, answer in zip(missing, self._from_provider([calls[i] for i in missing]), strict=True):
            results[i] = answer
        complete = [result for result in results if result is not None]
        self._count(complete)
        return self._finished(complete)

    def metrics(self) -> dict[str, float]:
        """Totals since the start of the run; those that are not known are left out.

        llm/calls, llm/prompt_tokens, llm/completion_tokens, llm/cost (USD) used; spent/llm_calls, llm_attempts,
        llm_failed_calls, llm_tokens, llm_cost paid; time/llm_latency: seconds of the paid ones, added up.
        """
        with self._lock:
            used, spent = dict(self._used), self.budget.spent
            metrics = {f"llm/{name}": used[name] for name in ("calls", *_TOTALS) if not self._unknown.get(name)}
        metrics |= {
            "time/llm_latency": spent.seconds,
            "spent/llm_calls": float(spent.calls),
            "spent/llm_attempts": float(spent.attempts),
            "spent/llm_failed_calls": float(spent.failed),
        }
        if not spent.unknown_tokens:
            metrics["spent/llm_tokens"] = float(spent.tokens)
        if not spent.unknown_costs:
            metrics["spent/llm_cost"] = spent.cost
        return metrics

    def state_dict(self) -> State:
        with self._lock:
            return {"used": dict(self._used), "unknown": dict(self._unknown), "repeats": self._repeats.state_dict()}

    def load_state_dict(self, state: State) -> None:
        with self._lock:
            self._used, self._unknown = dict(state["used"]), dict(state["unknown"])
            self._repeats.load_state_dict(state["repeats"])

    def _from_cache(self, call: _Call) -> ChatReply | LLMError | None:
        """The kept reply; None if the provider is to be asked."""
        if self.cache is None:
            return None
        start = time.perf_counter()
        result: ChatReply | LLMError | None = self.cache.get(call.key)
        if isinstance(result, ChatReply):
            result = replace(result, latency=time.perf_counter() - start)
        elif self.cache.mode == "only":
            result = self.cache.missing(call.request)
        if result is not None:
            self._record(call, result)
        return result

    def _from_provider(self, calls: Sequence[_Call]) -> list[ChatReply | LLMError]:
        if not self.provider.parallel:
            return self._batch(calls)
        asked = Departures(lambda i, flight: self._one(calls[i], flight), len(calls), self.limits.concurrency)
        try:
            asked.wait(self._stopping)
        finally:
            # Whatever ends the wait, Ctrl-C too: threads that were to try again give up.
            answers = [
                self._abandon(call, flight) if answer is None else answer
                for call, flight, answer in zip(calls, asked.flights, list(asked.answers), strict=True)
            ]
        return answers

    def _abandon(self, call: _Call, flight: Flight) -> LLMError:
        """Wait no more for a reply, whose fate is unknown from then on, and what it may come to spent."""
        if flight.abandon():
            for reservation in flight.reservations:
                self.budget.abandon(reservation)
            self._record(call, LLMError("nobody waited for the reply any more; what it may come to counts as spent"))
        return Interrupted("the run is to stop; the language model is asked no more")

    def _one(self, call: _Call, flight: Flight) -> ChatReply | LLMError:
        """Ask the provider for one reply, as often as it takes."""
        try:
            with self.limits.slot():
                self._wait(0.0, flight)
                # Another process may have asked the same while this request waited for its turn.
                kept = self._from_cache(call)
                if kept is not None:
                    return kept
                reservation = self.budget.reserve(call.request, self.provider, wait=True)
                return self._ask([call], [reservation], flight)[0]
        except LLMError as error:
            if not flight.abandoned:  # whose file this was may have been given back
                self._record(call, error)
            return error

    def _batch(self, calls: Sequence[_Call]) -> list[ChatReply | LLMError]:
        """Ask the provider for many replies in one call."""
        reservations: list[Reservation] = []
        refused: LLMError | None = None
        try:
            for call in calls:
                reservations.append(self.budget.reserve(call.request, self.provider, wait=False))
        except BudgetExhausted as error:
            refused = error
        results: list[ChatReply | LLMError] = []
        asked = calls[: len(reservations)]
        try:
            with self.limits.slot():
                results += self._ask(asked, reservations, Flight()) if asked else []
        except LLMError as error:
            results += [error] * len(asked)
        results += [refused] * (len(calls) - len(asked)) if refused else []
        for call, result in zip(calls, results, strict=True):
            if isinstance(result, LLMError):
                self._record(call, result)
        return results

    def _ask(self, calls: Sequence[_Call], reservations: Sequence[Reservation], flight: Flight) -> list[ChatReply]:
        """Replies of the provider, paid, kept and logged."""
        requests = [call.request for call in calls]
        flight.reservations = reservations
        tokens = sum(reservation.tokens for reservation in reservations)
        start = time.perf_counter()
        replies: list[ChatReply] = []
        try:
            given, attempts = self.retry(
                lambda: self._attempt(requests, tokens, flight), lambda seconds: self._wait(seconds, flight)
            )
            latency = time.perf_counter() - start
            replies += [
                replace(
                    reply,
                    text=_writable(reply.text),
                    finish=_writable(reply.finish),
                    cost=self._cost(reply),
                    latency=latency,
                    # A replayed reply says 0: nothing was sent for it.
                    attempts=attempts if reply.attempts else 0,
                )
                for reply in given
            ]
        finally:
            awaited = flight.land()
            # What is lost counts as spent already.
            for i, reservation in enumerate(() if flight.lost else reservations):
                self.budget.settle(reservation, replies[i] if replies else None)
        if not awaited:
            # It is paid: who asks again is to find it.
            for call, reply in zip(calls, replies, strict=True):
                self._put(call, reply)
            raise Interrupted("nobody waits for the reply any more")
        return [self._keep(call, reply) for call, reply in zip(calls, replies, strict=True)]

    def _cost(self, reply: ChatReply) -> float | None:
        if reply.cost is not None:
            return reply.cost
        return self.provider.cost(reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)

    def _attempt(self, requests: Sequence[ChatRequest], tokens: int, flight: Flight) -> list[ChatReply]:
        took = self.limits.start(tokens, lambda seconds: self._wait(seconds, flight))
        self._wait(0.0, flight)
        flight.depart()
        try:
            replies = self.provider.complete(requests)
        except TransientError as error:
            flight.fail()
            if error.retry_after is not None and error.retry_after <= self.retry.longest_retry_after:
                self.limits.hold(error.retry_after)
            raise
        counts = [(reply.prompt_tokens, reply.completion_tokens) for reply in replies]
        took(sum(a + b for a, b in counts if a is not None and b is not None) or tokens)
        return replies

    def _keep(self, call: _Call, reply: ChatReply) -> ChatReply:
        reply = self._put(call, reply)
        self._record(call, reply)
        return reply

    def _put(self, call: _Call, reply: ChatReply) -> ChatReply:
        """Into the cache; what is found there from now on."""
        if self.cache is None:
            return reply
        return self.cache.put(call.key, self.provider.identity, call.request, reply)

    def _record(self, call: _Call, result: ChatReply | LLMError) -> None:
        if self.ledger is not None and not isinstance(result, NotAsked):
            identity = self.provider.identity
            self.ledger.record(call.key, self.label, identity, self.stream, call.request, result, self.budget)

    def _count(self, results: Sequence[ChatReply | LLMError]) -> None:
        """In the order of the requests, not of arrival: a sum of rounded numbers depends on it."""
        replies = [result for result in results if isinstance(result, ChatReply)]
        with self._lock:
            self._used["calls"] += len(replies)
            for reply in replies:
                for name in _TOTALS:
                    value = getattr(reply, name)
                    self._unknown[name] |= value is None
                    self._used[name] += value or 0.0

    def _finished(self, results: Sequence[ChatReply | LLMError]) -> list[ChatReply]:
        errors = [result for result in results if isinstance(result, LLMError)]
        for error in errors:
            if isinstance(error, NotAsked):
                raise error from None
        if errors and self.failures == "stop":
            more = f" ({len(errors)} of {len(results)} requests failed)" if len(results) > 1 else ""
            raise LLMError(f"{errors[0]}{more}") from None
        return [r if isinstance(r, ChatReply) else ChatReply("", attempts=0, error=str(r)) for r in results]

    def _wait(self, seconds: float, flight: Flight) -> None:
        """Wait, but not on after the run is asked to stop. In slices: a signal's handler can wake nobody safely."""
        end = time.monotonic() + seconds
        while True:
            if flight.abandoned or self._stopping():
                raise Interrupted("the run is to stop; the language model is asked no more")
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, WAIT_SLICE))


def _writable(text: str) -> str:
    """Half of a surrogate pair cannot be written to a file."""
    return text.encode("utf-8", errors="replace").decode()
