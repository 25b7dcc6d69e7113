"""Client of chat models: counter of repeated requests, totals of usage, and parsing of the replies of a run.

Order of a request: counter of repeats, endpoint (cache, budget, limits, retries, log, provider), totals, parser.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Literal, TypeVar

from llmrl.core.errors import CallNotMade, LLMError
from llmrl.core.records import CHOSEN_MODEL, ChatReply, ChatRequest, State
from llmrl.core.threads import daemon_thread
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache, CacheMode, RepeatCounter, request_key
from llmrl.llms.call_log import FILE_NAME as CALL_LOG_NAME
from llmrl.llms.call_log import Call, CallLog
from llmrl.llms.endpoint import Endpoint, SharedServices
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.provider import Provider
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.retry import Retry
from llmrl.llms.structured import apply_parser, as_json
from llmrl.llms.usage import ReplyTotals
from llmrl.llms.validity import MaxInvalid, Validity

FailurePolicy = Literal["stop", "fall_back"]
Caller = TypeVar("Caller")


@dataclass(frozen=True)
class ClientPolicies:
    """Policies for the calls of a run.

    Attributes:
        retry: policy of repeated attempts.
        limits: rate limits of the chosen model.
        budget: spending limits.
        failures: reaction to a call that failed permanently: `stop` raises, `fall_back` returns an empty reply with
            `error` set, which callers treat as invalid.
        max_invalid: threshold at which `check_invalid_rate` ends the run; None: invalid replies are only counted.
    """

    retry: Retry = field(default_factory=Retry)
    limits: RateLimit = field(default_factory=RateLimit)
    budget: Budget = field(default_factory=Budget)
    failures: FailurePolicy = "stop"
    max_invalid: MaxInvalid | None = None


@dataclass(frozen=True, kw_only=True)
class ClientSettings(ClientPolicies):
    """Options of a client in a config's `llm`; meanings, units and ranges are in `conf/train.yaml`."""

    cache: CacheMode
    cache_dir: str
    share_cache: bool


def build_client(
    settings: ClientSettings,
    provider: Provider,
    seed: int,
    additional_models: Mapping[str, tuple[Provider, RateLimit]] | None = None,
) -> ChatClient:
    """Return the client for the `llm` settings of a config. `ChatClient.join_run` adds the run's call log later.

    Replies of a model that learns are not cached, because its weights change.
    """
    cache = None if provider.learners is not None else Cache(Path(settings.cache_dir).expanduser(), settings.cache)
    return ChatClient(
        provider,
        cache,
        policies=replace(settings, limits=settings.limits.shared(provider.rate_limit_account)),
        sample_seed=None if settings.share_cache else seed,
        additional_models={
            name: (additional_provider, limits.shared(additional_provider.rate_limit_account))
            for name, (additional_provider, limits) in (additional_models or {}).items()
        },
    )


@dataclass
class FetchedReplies:
    """Replies or errors of requests, in order, before they are added to the run's totals."""

    calls: Sequence[Call]
    results: Sequence[ChatReply | LLMError]


class ChatClient:
    """Chat model (protocol `ChatModel`) made of a provider and the policies around it. Threads may share it.

    Requests may name other models than the chosen one (`ChatRequest.model`). All models share the run's cache, log,
    budget, retries and totals; each has its own rate limits.

    There are two kinds of totals. The *used* totals (`llm/...`) count every reply once, whether paid or cached. They
    are saved in checkpoints and do not depend on interruptions. The *spent* totals (`usage/llm_...`) count what was
    paid over all attempts of the run, and depend on the content of the cache.

    Args:
        provider: the chosen model.
        cache: cache of replies; None: no cache.
        call_log: log of calls; None: no log.
        policies: policies for calls; None: the default ones.
        stream: seed that selects the sample of the model's answers; None: all seeds share replies.
        should_stop: function that returns whether the run is to stop; then no request is sent and no reply awaited.
        additional_models: further models and their rate limits, by the name that requests use.

    Attributes:
        provider: provider of the chosen model.
        services: cache, log and policies of all models.
        endpoints: endpoints of all models by name; the chosen model's is `CHOSEN_MODEL`.
        label: labels of all models, separated by commas.
    """

    def __init__(
        self,
        provider: Provider,
        cache: Cache | None = None,
        call_log: CallLog | None = None,
        policies: ClientPolicies | None = None,
        sample_seed: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        additional_models: Mapping[str, tuple[Provider, RateLimit]] | None = None,
    ) -> None:
        self.policies = policies or ClientPolicies()
        self.services = SharedServices(cache, None, self.policies.retry, self.policies.budget, should_stop)
        self.sample_seed = sample_seed
        self._set_call_log(call_log)
        models = {CHOSEN_MODEL: (provider, self.policies.limits), **(additional_models or {})}
        self.endpoints = {name: Endpoint(model, limits, self.services) for name, (model, limits) in models.items()}
        self.provider = provider
        self.label = ", ".join(dict.fromkeys(model.label for model, _ in models.values()))
        self.validity = Validity()
        self._repeats = RepeatCounter()
        self._lock = threading.Lock()
        self._totals = ReplyTotals()

    @property
    def budget(self) -> Budget:
        """Spending limits of the run, for all its models together."""
        return self.services.budget

    def join_run(self, folder: Path, should_stop: Callable[[], bool]) -> None:
        """Log calls into a run's `folder`, and charge the budget with the usage of the run's earlier attempts.

        `should_stop` returns whether the run is to stop.
        """
        self._set_call_log(CallLog(folder / CALL_LOG_NAME))
        self.services.should_stop = should_stop
        for endpoint in self.endpoints.values():
            endpoint.provider.should_stop = should_stop

    def _set_call_log(self, call_log: CallLog | None) -> None:
        self.services.call_log = call_log
        if call_log is not None:
            self.budget.spent = call_log.spent_before

    def check(self) -> None:
        """Raise LLMError or ConfigError if a model could never answer or the budget could not be enforced."""
        for endpoint in self.endpoints.values():
            endpoint.check()

    def accepts_images(self, model: str = CHOSEN_MODEL) -> bool:
        """Return whether a model accepts images; true if only its server knows."""
        return self.endpoints[model].provider.accepts_images

    def fits(self, messages: Sequence[Mapping[str, str]], model: str = CHOSEN_MODEL) -> bool:
        """Return whether `messages` and the longest reply fit into the context window of a model."""
        return self.endpoints[model].provider.fits(messages)

    def includes_reasoning(self, model: str = CHOSEN_MODEL) -> bool:
        """Return whether replies that are quoted to a model include its reasoning."""
        return self.endpoints[model].provider.include_reasoning

    def model_label(self, model: str = CHOSEN_MODEL) -> str:
        """Return the label of a model."""
        return self.endpoints[model].provider.label

    def close(self) -> None:
        """Release the connections and memory of all models."""
        for endpoint in self.endpoints.values():
            endpoint.provider.close()

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Return the replies in the order of `requests`.

        All requests are sent before an error is raised. By then every reply is in the cache and the call log.

        Raises:
            BudgetExhausted: some requests could have exceeded the budget and were not sent, or not sent again.
            Interrupted: the run is to stop, and some requests were not sent, or not sent again.
            LLMError: with `failures=stop`, some requests failed permanently, or are not in the cache (mode `only`).
        """
        answers = self.fetch(requests)
        self.record_replies(answers)
        return self.replies_or_raise(answers)

    def fetch(self, requests: Sequence[ChatRequest]) -> FetchedReplies:
        """Return the replies or errors of `requests` without counting them; any thread may call this.

        The caller passes the result to `record_replies` and `replies_or_raise` when it uses the replies. No `LLMError`
        is raised.
        """
        with self._lock:
            numbered_requests = self._repeats.assign_repeats(requests)
        identities = {name: endpoint.provider.identity for name, endpoint in self.endpoints.items()}
        calls = [
            Call(
                request,
                request_key(identities[request.model], request, self.sample_seed),
                self.model_label(request.model),
                self.sample_seed,
            )
            for request in numbered_requests
        ]
        results: list[ChatReply | LLMError | None] = [
            self.endpoints[call.request.model].read_cache(call) for call in calls
        ]
        missing_indices: dict[str, list[int]] = {}
        for i, result in enumerate(results):
            if result is None:
                missing_indices.setdefault(calls[i].request.model, []).append(i)
        for i, answer in self._send(calls, missing_indices):
            results[i] = answer
        return FetchedReplies(calls, [result for result in results if result is not None])

    def _send(
        self, calls: Sequence[Call], indices: Mapping[str, Sequence[int]]
    ) -> list[tuple[int, ChatReply | LLMError]]:
        """Send each model its `calls[i]`, i in `indices[name]`, concurrently; return all indices with the answers."""
        model_calls = {name: [calls[i] for i in endpoint_indices] for name, endpoint_indices in indices.items()}
        started = {name: self.endpoints[name].start(endpoint_calls) for name, endpoint_calls in model_calls.items()}
        try:
            return [
                answer
                for name, endpoint_calls in model_calls.items()
                for answer in zip(indices[name], self.endpoints[name].wait(endpoint_calls, started[name]), strict=True)
            ]
        finally:
            # This also happens if Ctrl-C ends the wait.
            for name, batch in started.items():
                self.endpoints[name].abandon_batch(batch)

    def record_replies(self, fetched: FetchedReplies) -> None:
        """Add fetched replies to the run's totals, parse them (`ChatRequest.parse`), and log the verdicts."""
        with self._lock:
            self._totals.add([result for result in fetched.results if isinstance(result, ChatReply)])
        verdicts = []
        for call, result in zip(fetched.calls, fetched.results, strict=True):
            if call.request.parse is None or isinstance(result, LLMError):
                continue
            parsed_reply, reason = None, ""
            try:
                parsed_reply = as_json(apply_parser(result, call.request.parse))
            except InvalidReply as invalid:
                reason = str(invalid)
            with self._lock:
                self.validity.add(result.text, reason, result.is_truncated)
            if call.verdict is not None:
                verdicts.append(call.verdict._replace(error=reason, parsed_reply=parsed_reply))
        if self.services.call_log is not None:
            self.services.call_log.record_verdicts(verdicts)

    def replies_or_raise(self, fetched: FetchedReplies) -> list[ChatReply]:
        """Return the fetched replies in the order of their requests; raise as `chat` does.

        Errors that need not end the run are replaced by empty replies.
        """
        results = fetched.results
        errors = [result for result in results if isinstance(result, LLMError)]
        for error in errors:
            if isinstance(error, CallNotMade):
                raise error from None
        if errors and self.policies.failures == "stop":
            summary = f" ({len(errors)} of {len(results)} requests failed)" if len(results) > 1 else ""
            raise LLMError(f"{errors[0]}{summary}") from None
        return [r if isinstance(r, ChatReply) else ChatReply("", attempts=0, error=str(r)) for r in results]

    def check_invalid_rate(self) -> None:
        """Raise TooManyInvalidReplies if too many of the run's replies were invalid (`max_invalid`)."""
        self.validity.check(self.label, self.policies.max_invalid)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of `ReplyTotals` (used), `Validity`, and `Usage` (spent) since the start of the run."""
        providers = [endpoint.provider for endpoint in self.endpoints.values()]
        are_prices_known = all(None not in (provider.input_price, provider.output_price) for provider in providers)
        with self._lock:
            return self._totals.metrics() | self.validity.metrics() | self.budget.spent.metrics(are_prices_known)

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


class RequestDispatcher(Generic[Caller]):
    """Dispatcher of the requests of many callers, which returns the replies as they arrive.

    The client limits the number of requests in flight (`llm.limits`). If a model in this process answers whole batches
    (`Provider.remote` is false), `receive` sends all requests since the previous call as one batch.

    Args:
        client: client that sends the requests.
    """

    def __init__(self, client: ChatClient) -> None:
        self.client = client
        self._answer_queue: queue.SimpleQueue[tuple[Caller, FetchedReplies | BaseException]] = queue.SimpleQueue()
        self._received_answers: list[tuple[Caller, FetchedReplies | BaseException]] = []
        self._unsent_requests: list[tuple[Caller, Sequence[ChatRequest]]] = []
        self._n_in_flight = 0

    def send(self, caller: Caller, requests: Sequence[ChatRequest]) -> None:
        """Start requests without waiting for their replies."""
        if not all(endpoint.provider.remote for endpoint in self.client.endpoints.values()):
            self._unsent_requests.append((caller, requests))
            return
        self._n_in_flight += 1
        daemon_thread("mail", self._fetch, caller, requests).start()

    def receive(self) -> list[tuple[Caller, FetchedReplies]]:
        """Return all replies that have arrived, with their callers; wait for one if requests are in flight.

        Raises:
            Exception: a request failed with an error that is not an `LLMError`; no request is in flight any more.
        """
        if self._unsent_requests:
            batch, self._unsent_requests = self._unsent_requests, []
            return self._fetch_batch(batch)
        while self._n_in_flight and not (self._received_answers and self._answer_queue.empty()):
            self._await_answer()
        answers, self._received_answers = self._received_answers, []
        replies = []
        for caller, answer in answers:
            if isinstance(answer, BaseException):
                self.drain()
                raise answer
            replies.append((caller, answer))
        return replies

    def drain(self) -> None:
        """Wait until no request is in flight; all paid replies are then in the cache and the log.

        If the run is to stop, the wait is short (`ChatClient`).
        """
        while self._n_in_flight:
            self._await_answer()

    def _await_answer(self) -> None:
        """Wait for the answer to a request in flight."""
        self._received_answers.append(self._answer_queue.get())
        self._n_in_flight -= 1

    def _fetch(self, caller: Caller, requests: Sequence[ChatRequest]) -> None:
        """Send requests in a thread, and store their replies or the error."""
        try:
            self._answer_queue.put((caller, self.client.fetch(requests)))
        except BaseException as error:  # noqa: BLE001  (raised in the waiting thread)
            self._answer_queue.put((caller, error))

    def _fetch_batch(
        self, batch: Sequence[tuple[Caller, Sequence[ChatRequest]]]
    ) -> list[tuple[Caller, FetchedReplies]]:
        """Send the requests of all callers as one batch, and split the replies by caller."""
        all_replies = self.client.fetch([request for _, requests in batch for request in requests])
        batch_ends = list(itertools.accumulate(len(requests) for _, requests in batch))
        return [
            (caller, FetchedReplies(all_replies.calls[start:end], all_replies.results[start:end]))
            for (caller, _), start, end in zip(batch, [0, *batch_ends], batch_ends, strict=False)
        ]
