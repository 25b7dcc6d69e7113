"""The platform's only client of chat models: it numbers repeats, sums totals and judges replies of a run.

repeats -> endpoint (cache, budget, limits, retries, log, provider) -> totals -> read
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmrl.core.errors import LLMError, NotAsked
from llmrl.core.records import CHOSEN, ChatReply, ChatRequest, State
from llmrl.llms.batches.endpoint import Batched, BatchEndpoint
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache, Mode
from llmrl.llms.call_log import FILE_NAME, CallLog
from llmrl.llms.endpoint import Call, Endpoint, Terms
from llmrl.llms.provider import Provider
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.request_key import RepeatCounter, request_key
from llmrl.llms.retry import Retry
from llmrl.llms.structured import InvalidReply, as_json, read
from llmrl.llms.usage import ReplyTotals
from llmrl.llms.validity import MaxInvalid, Validity

Failures = Literal["stop", "fall_back"]


def connect(
    provider: Provider,
    seed: int,
    cache: Mode,
    cache_dir: str,
    cache_across_seeds: bool,
    failures: Failures,
    retry: Retry,
    limits: RateLimit,
    budget: Budget,
    max_invalid: MaxInvalid | None = None,
    others: Mapping[str, tuple[Provider, RateLimit]] | None = None,
) -> ChatClient:
    """Return the client that a config's `llm` describes; `ChatClient.join_run` ties it to a run later."""
    beside = {name: (other, own.shared(other.quota)) for name, (other, own) in (others or {}).items()}
    return ChatClient(
        provider,
        Cache(Path(cache_dir).expanduser(), cache),
        None,
        retry,
        limits.shared(provider.quota),
        budget,
        failures,
        None if cache_across_seeds else seed,
        max_invalid=max_invalid,
        others=beside,
    )


@dataclass
class FetchedReplies:
    """Outcomes of requests in their order, replies or errors, before they enter the run's totals."""

    calls: Sequence[Call]
    results: Sequence[ChatReply | LLMError]


class ChatClient:
    """Chat model (protocol `ChatModel`) made of a provider and the policies around it. Threads may share it.

    Requests may name other models than the chosen one (`ChatRequest.model`). All models share the run's cache, log,
    budget, retries and totals; each has rate limits of its own.

    Two kinds of totals are kept. The *used* totals (`llm/...`) count every reply once, wherever it came from. They are
    saved in checkpoints and do not depend on interruptions. The *spent* totals (`spent/llm_...`) count what was paid
    over all attempts of the run, and depend on the content of the cache.

    Args:
        provider: the chosen model.
        cache, ledger: stores of replies and of calls; None: nothing is stored.
        retry, limits, budget: policies of repeated attempts, of request rates and of spending.
        failures: reaction to a call that failed for good: `stop` raises, `fall_back` returns an empty reply with
            `error` set, which callers treat as invalid.
        stream: seed that selects the sample of the model's answers; None: all seeds share replies.
        stopping: function that says whether the run is to stop; then no request is sent and no reply awaited.
        max_invalid: threshold at which `check_understood` ends the run; None: invalid replies are only counted.
        others: further models and their rate limits, by the name that requests use.

    Attributes:
        provider: provider of the chosen model.
        endpoints: endpoints of all models by name; the chosen model's is `CHOSEN`.
        label: labels of all models, separated by commas.
        overhear: function called with every request whose reply is parsed; None: no function.
    """

    def __init__(
        self,
        provider: Provider,
        cache: Cache | None = None,
        ledger: CallLog | None = None,
        retry: Retry | None = None,
        limits: RateLimit | None = None,
        budget: Budget | None = None,
        failures: Failures = "stop",
        stream: int | None = None,
        stopping: Callable[[], bool] = lambda: False,
        max_invalid: MaxInvalid | None = None,
        others: Mapping[str, tuple[Provider, RateLimit]] | None = None,
    ) -> None:
        self._terms = Terms(cache, None, retry or Retry(), budget or Budget(), stream, stopping)
        self._log_into(ledger)
        models = {CHOSEN: (provider, limits or RateLimit()), **(others or {})}
        self.endpoints = {name: _endpoint(own, limited, self._terms) for name, (own, limited) in models.items()}
        self.provider, self.failures = provider, failures
        self.label = ", ".join(dict.fromkeys(own.label for own, _ in models.values()))
        self.max_invalid, self.validity = max_invalid, Validity()
        self._repeats = RepeatCounter()
        self._lock = threading.Lock()
        self._totals = ReplyTotals()
        self.overhear: Callable[[ChatRequest], None] | None = None

    @property
    def cache(self) -> Cache | None:
        """Store of replies; None: there is none."""
        return self._terms.cache

    @property
    def ledger(self) -> CallLog | None:
        """Log of calls; None: there is none."""
        return self._terms.ledger

    @property
    def budget(self) -> Budget:
        """Spending limits of the run, for all its models together."""
        return self._terms.budget

    @property
    def stream(self) -> int | None:
        """Seed that selects the sample of the models' answers; None: all seeds share one sample."""
        return self._terms.stream

    @property
    def parallel(self) -> bool:
        """Whether every model takes concurrent single requests rather than whole batches (`Provider.parallel`)."""
        return all(endpoint.provider.parallel for endpoint in self.endpoints.values())

    def join_run(self, folder: Path, stopping: Callable[[], bool]) -> None:
        """Log calls into a run's `folder` and charge the budget with what its earlier attempts spent.

        `stopping` says whether the run is to stop."""
        self._log_into(CallLog(folder / FILE_NAME))
        self._terms.stopping = stopping

    def _log_into(self, ledger: CallLog | None) -> None:
        self._terms.ledger = ledger
        if ledger is not None:
            self.budget.spent = ledger.spent_before

    def check(self) -> None:
        """Raise LLMError or ConfigError if a model could never answer or the budget could not be enforced."""
        for endpoint in self.endpoints.values():
            endpoint.check()

    def forget(self) -> None:
        """Neither read nor write the cache from now on."""
        self._terms.cache = None

    def sees(self, model: str = CHOSEN) -> bool:
        """Return whether a model accepts images; true where only its server knows."""
        return self.endpoints[model].provider.sees

    def fits(self, messages: Sequence[Mapping[str, str]], model: str = CHOSEN) -> bool:
        return self.endpoints[model].provider.fits(messages)

    def feeds_thoughts(self, model: str = CHOSEN) -> bool:
        return self.endpoints[model].provider.feed_thoughts

    def label_of(self, model: str = CHOSEN) -> str:
        return self.endpoints[model].provider.label

    def close(self) -> None:
        for endpoint in self.endpoints.values():
            endpoint.provider.close()

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Return the replies in the order of `requests`.

        All requests are tried before an error is raised. By then every reply is in the cache and the ledger.

        Raises:
            BudgetExhausted: some requests could have exceeded the budget and were not sent, or not again.
            Interrupted: the run is to stop, and some requests were not sent, or not again.
            LLMError: with `failures=stop`, some requests failed for good, or are not in the cache (mode `only`).
        """
        fetched = self.fetch(requests)
        self.count(fetched)
        return self.replies(fetched)

    def fetch(self, requests: Sequence[ChatRequest]) -> FetchedReplies:
        """Return what became of `requests`, without counting replies; any thread may call this.

        The caller passes the result to `count` and `replies` where the replies are used. It raises no `LLMError`.
        """
        with self._lock:
            numbered = self._repeats.number(requests)
        identities = {name: endpoint.provider.identity for name, endpoint in self.endpoints.items()}
        calls = [Call(each, request_key(identities[each.model], each, self.stream)) for each in numbered]
        results: list[ChatReply | LLMError | None] = [
            self.endpoints[call.request.model].from_cache(call) for call in calls
        ]
        missing: dict[str, list[int]] = {}
        for i, result in enumerate(results):
            if result is None:
                missing.setdefault(calls[i].request.model, []).append(i)
        for numbers, answers in self._asked(calls, missing):
            for i, answer in zip(numbers, answers, strict=True):
                results[i] = answer
        return FetchedReplies(calls, [result for result in results if result is not None])

    def _asked(
        self, calls: Sequence[Call], numbers: Mapping[str, Sequence[int]]
    ) -> list[tuple[Sequence[int], list[ChatReply | LLMError]]]:
        """Ask all models at once, each for its `calls[i]`, i in `numbers[name]`; return these indices and answers."""
        own = {name: [calls[i] for i in which] for name, which in numbers.items()}
        started = {name: self.endpoints[name].start(which) for name, which in own.items()}
        try:
            return [(numbers[name], self.endpoints[name].wait(which, started[name])) for name, which in own.items()]
        finally:
            # Whatever ends the wait, Ctrl-C too.
            for name, departures in started.items():
                self.endpoints[name].give_up(departures)

    def count(self, fetched: FetchedReplies) -> None:
        """Add fetched replies to the run's totals, parse them, and log the verdicts."""
        with self._lock:
            self._totals.add([result for result in fetched.results if isinstance(result, ChatReply)])
        self._judge(fetched.calls, fetched.results)

    def replies(self, fetched: FetchedReplies) -> list[ChatReply]:
        """Return the fetched replies in the order of their requests; raise as `chat` does."""
        return self._finished(fetched.results)

    def check_understood(self) -> None:
        """Raise TooManyInvalid if too many of the run's replies were invalid (`max_invalid`)."""
        self.validity.check(self.label, self.max_invalid)

    def metrics(self) -> dict[str, float]:
        """Return totals since the start of the run: of `ReplyTotals` (used), of `Validity`, and of `Usage` (spent)."""
        providers = [endpoint.provider for endpoint in self.endpoints.values()]
        priced = all(None not in (each.input_price, each.output_price) for each in providers)
        with self._lock:
            return self._totals.metrics() | self.validity.metrics() | self.budget.spent.metrics(priced)

    def state_dict(self) -> State:
        with self._lock:
            return {
                **self._totals.state_dict(),
                "repeats": self._repeats.state_dict(),
                "validity": self.validity.state_dict(),
            }

    def load_state_dict(self, state: State) -> None:
        with self._lock:
            self._totals.load_state_dict(state)
            self._repeats.load_state_dict(state["repeats"])
            self.validity.load_state_dict(state["validity"])

    def _judge(self, calls: Sequence[Call], results: Sequence[ChatReply | LLMError]) -> None:
        """Parse the replies whose requests have a reader (`ChatRequest.read`), and log the verdicts."""
        verdicts = []
        for call, result in zip(calls, results, strict=True):
            if call.request.read is None or isinstance(result, LLMError):
                continue
            if self.overhear is not None:
                self.overhear(call.request)
            understood, fault = None, ""
            try:
                understood = as_json(read(result, call.request.read))
            except InvalidReply as invalid:
                fault = str(invalid)
            with self._lock:
                self.validity.add(result.text, fault, result.cut)
            verdicts += [] if call.line is None else [call.line._replace(fault=fault, understood=understood)]
        if self.ledger is not None:
            self.ledger.judge(verdicts)

    def _finished(self, results: Sequence[ChatReply | LLMError]) -> list[ChatReply]:
        errors = [result for result in results if isinstance(result, LLMError)]
        for error in errors:
            if isinstance(error, NotAsked):
                raise error from None
        if errors and self.failures == "stop":
            more = f" ({len(errors)} of {len(results)} requests failed)" if len(results) > 1 else ""
            raise LLMError(f"{errors[0]}{more}") from None
        return [r if isinstance(r, ChatReply) else ChatReply("", attempts=0, error=str(r)) for r in results]


def _endpoint(provider: Provider, limits: RateLimit, terms: Terms) -> Endpoint:
    by_batch = isinstance(provider, Batched) and provider.batch
    return (BatchEndpoint if by_batch else Endpoint)(provider, limits, terms)
