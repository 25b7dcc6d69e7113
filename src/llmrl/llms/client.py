"""Client of chat models: counts repeated requests, sends requests, adds up usage, and parses replies.

A request passes through the counter of repeats, an endpoint (cache, budget, limits, retries, log, provider), the totals
of usage, and its parser.
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
from llmrl.core.threads import make_daemon_thread
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache, CacheMode, RepeatCounter, compute_request_key
from llmrl.llms.call_log import CALL_LOG_NAME, Call, CallLog
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
        retry: number of retries, and delays between attempts.
        limits: rate limits of the chosen model.
        budget: spending limits.
        failures: reaction to a call that failed in all attempts: `stop` raises an error, `fall_back` returns an empty
            reply with `error` set, which callers treat as invalid.
        max_invalid: limit on invalid replies, beyond which `check_invalid_rate` raises; None: no limit.
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
    """Return the client for the `llm` settings of a config, without a call log (`ChatClient.join_run` adds it).

    Replies of a model that learns are not cached, because its weights change.
    """
    cache = None if provider.learners is not None else Cache(Path(settings.cache_dir).expanduser(), settings.cache)
    return ChatClient(
        provider,
        cache,
        policies=replace(settings, limits=settings.limits.for_account(provider.rate_limit_account)),
        sample_seed=None if settings.share_cache else seed,
        additional_models={
            name: (additional_provider, limits.for_account(additional_provider.rate_limit_account))
            for name, (additional_provider, limits) in (additional_models or {}).items()
        },
    )


@dataclass
class FetchedReplies:
    """Calls and their replies or errors, in the same order, which are not yet added to the run's totals."""

    calls: Sequence[Call]
    results: Sequence[ChatReply | LLMError]


class ChatClient:
    """Thread-safe chat model (protocol `ChatModel`) that applies the policies of a run to the calls of providers.

    Requests may name other models than the chosen one (`ChatRequest.model`). All models share the run's cache, log,
    budget, retries and totals; each has separate rate limits.

    There are two kinds of totals. The *used* totals (`llm/...`) count every reply once, whether paid or cached. They
    are saved in checkpoints and do not depend on interruptions. The *paid* totals (`usage/llm_...`) count the paid
    usage of all processes of the run, and depend on the content of the cache.

    Args:
        provider: the chosen model.
        cache: cache of replies; None: no cache.
        call_log: log of calls; None: no log.
        policies: policies for calls; None: the default values.
        sample_seed: seed to which cached replies belong; None: runs with all seeds share replies.
        should_stop: function that returns whether the run is to stop; then no request is sent and no reply awaited.
        additional_models: further models and their rate limits, by name (`ChatRequest.model`).

    Attributes:
        provider: provider of the chosen model.
        services: cache, log and policies of all models.
        endpoints: endpoints of all models by name; the name of the chosen model is `CHOSEN_MODEL`.
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
        retry, budget = self.policies.retry, self.policies.budget
        self.services = SharedServices(cache, call_log=None, retry=retry, budget=budget, should_stop=should_stop)
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
        """Log calls in the run folder, and add the usage of earlier processes of the run to the budget.

        `should_stop` returns whether the run is to stop.
        """
        self._set_call_log(CallLog(folder / CALL_LOG_NAME))
        self.services.should_stop = should_stop
        for endpoint in self.endpoints.values():
            endpoint.provider.should_stop = should_stop

    def _set_call_log(self, call_log: CallLog | None) -> None:
        self.services.call_log = call_log
        if call_log is not None:
            self.budget.usage = call_log.earlier_usage

    def check(self) -> None:
        """Raise LLMError or ConfigError if a model cannot be used or the budget cannot be enforced."""
        for endpoint in self.endpoints.values():
            endpoint.check()

    def accepts_images(self, model: str = CHOSEN_MODEL) -> bool:
        """Return whether a model accepts images; true if this is unknown before a request."""
        return self.endpoints[model].provider.accepts_images

    def fits(self, messages: Sequence[Mapping[str, str]], model: str = CHOSEN_MODEL) -> bool:
        """Return whether `messages` and a reply of maximum length fit into the context window of a model."""
        return self.endpoints[model].provider.fits(messages)

    def includes_reasoning(self, model: str = CHOSEN_MODEL) -> bool:
        """Return whether earlier replies in the messages to a model include its reasoning."""
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

        An error is raised only after all requests are answered, and all replies are in the cache and the call log.

        Raises:
            BudgetExhausted: some requests could have exceeded the budget, and were not sent or not retried.
            CallInterrupted: the run is to stop, and some requests were not sent or not retried.
            LLMError: with `failures=stop`, some requests failed in all attempts, or are not in the cache (mode `only`).
        """
        answers = self.fetch(requests)
        self.record_replies(answers)
        return self.unwrap_replies(answers)

    def fetch(self, requests: Sequence[ChatRequest]) -> FetchedReplies:
        """Return the replies or errors of `requests` without adding them to totals. Threads may call this.

        `LLMError` is returned, not raised. To use the replies, pass the return value to `record_replies` and
        `unwrap_replies`.
        """
        with self._lock:
            numbered_requests = self._repeats.assign_repeats(requests)
        identities = {name: endpoint.provider.identity for name, endpoint in self.endpoints.items()}
        calls = [
            Call(
                request,
                compute_request_key(identities[request.model], request, self.sample_seed),
                self.model_label(request.model),
                self.sample_seed,
            )
            for request in numbered_requests
        ]
        results: list[ChatReply | LLMError | None] = [
            self.endpoints[call.request.model].read_cache(call) for call in calls
        ]
        uncached_indices: dict[str, list[int]] = {}
        for i, result in enumerate(results):
            if result is None:
                uncached_indices.setdefault(calls[i].request.model, []).append(i)
        for i, answer in self._send(calls, uncached_indices):
            results[i] = answer
        return FetchedReplies(calls, [result for result in results if result is not None])

    def _send(
        self, calls: Sequence[Call], indices_by_model: Mapping[str, Sequence[int]]
    ) -> list[tuple[int, ChatReply | LLMError]]:
        """Send `calls[i]` for i in `indices_by_model[name]` to the model `name`; return pairs of i and answer."""
        calls_by_model = {name: [calls[i] for i in indices] for name, indices in indices_by_model.items()}
        batch_by_model = {name: self.endpoints[name].start_batch(batch) for name, batch in calls_by_model.items()}
        try:
            answers: list[tuple[int, ChatReply | LLMError]] = []
            for name, model_calls in calls_by_model.items():
                model_answers = self.endpoints[name].wait_for_batch(model_calls, batch_by_model[name])
                answers += zip(indices_by_model[name], model_answers, strict=True)
            return answers
        finally:
            # Also if Ctrl-C has interrupted a wait. Completed batches are not changed.
            for name, batch in batch_by_model.items():
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

    def unwrap_replies(self, fetched: FetchedReplies) -> list[ChatReply]:
        """Return the fetched replies in the order of their requests, or raise an error of `chat`.

        With `failures=fall_back`, empty replies replace errors, except BudgetExhausted and CallInterrupted.
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
        """Raise TooManyInvalidReplies if more of the run's replies were invalid than `max_invalid` allows."""
        self.validity.check(self.label, self.policies.max_invalid)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of `ReplyTotals` (used), `Validity`, and `Usage` (paid) since the start of the run."""
        providers = [endpoint.provider for endpoint in self.endpoints.values()]
        are_prices_known = all(None not in (provider.input_price, provider.output_price) for provider in providers)
        with self._lock:
            return self._totals.metrics() | self.validity.metrics() | self.budget.usage.metrics(are_prices_known)

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
    """Dispatcher that sends the requests of many callers concurrently, and returns replies as they arrive.

    The client limits the number of requests in flight (`llm.limits`). If a model in this process answers batches
    (`Provider.remote` is false), `receive` sends all requests since its previous call as one batch.

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
        """Send the requests of `caller` without waiting for replies."""
        if not all(endpoint.provider.remote for endpoint in self.client.endpoints.values()):
            self._unsent_requests.append((caller, requests))
            return
        self._n_in_flight += 1
        make_daemon_thread("llm-dispatch", self._fetch, caller, requests).start()

    def receive(self) -> list[tuple[Caller, FetchedReplies]]:
        """Return all replies that have arrived, with their callers; wait for one if requests are in flight.

        Raises:
            Exception: a request failed with an error that is not an `LLMError`. No request is then in flight.
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
        """Wait until no request is in flight, so that all paid replies are in the cache and the log.

        If the run is to stop, the client ends the wait after a few seconds.
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
        except BaseException as error:  # noqa: BLE001  (`receive` raises it)
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
