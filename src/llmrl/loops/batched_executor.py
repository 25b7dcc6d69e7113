"""An executor for the loops of several runs in one process, each in its own thread.

Requests that several runs make at the same time and with equal shapes are computed as one batch: their games as a
`RunBatch`, then their updates. The answer to a run does not depend on the other runs.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from llmrl.algorithms.societies.partitioned_policy import PartitionedPolicy
from llmrl.core.errors import Diverged
from llmrl.core.protocols import Resizable
from llmrl.core.rollouts import Rollout
from llmrl.loops.compute_requests import PlayEpisode, PlaySteps, Request, Update
from llmrl.loops.executor import Executor
from llmrl.loops.run_batch import BatchedRun, RunBatch
from llmrl.run.signals import WorkDiscarded

RunState = Literal["running", "waiting", "detached", "finished"]
"""State of a run. `running`: it computes in its own thread; `waiting`: it waits for an answer; `detached`: it computes
something slow, for which the executor does not wait; `finished`: it makes no more requests."""

MIN_DETACHED_WAIT_SECONDS, DETACHED_WAIT_FRACTION = 0.1, 0.2
"""The executor waits for a newly detached run for the longer of two times: this number of seconds, and this fraction of
the duration of the last answer."""
MAX_SKIPS = 20
"""Maximum number of answers to other runs before a waiting run is answered: about one principal step of these runs."""
MAX_CACHED_BATCHES = 2
"""Maximum number of `RunBatch` objects that are cached, each with the memory of its rollouts."""


class BatchedExecutor:
    """Executor of the requests of several runs, which answers them in the thread that calls `run`.

    The executor waits until all runs wait for an answer, and then answers the largest group of requests that can be one
    batch (but see `_get_priority`). So similar runs stay in one batch. It does not wait for detached runs, which wait
    for a language model, for the fit of a surrogate model or for another run; such a run joins a later batch.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._connections: list[RunConnection] = []
        self._batches: dict[tuple[RunConnection, ...], RunBatch] = {}
        self._error: BaseException | None = None
        self._last_answer_seconds = 0.0

    def connect(self, batching_key: str | None = None) -> RunConnection:
        """Return a connection for one more run.

        Args:
            batching_key: runs with equal keys may be computed as one batch; None: this run is not batched.
        """
        with self._condition:
            self._connections.append(RunConnection(self, batching_key))
            return self._connections[-1]

    def run(self) -> None:
        """Answer requests until all runs have ended.

        Raises:
            KeyboardInterrupt, WorkDiscarded: the process received a signal to stop.
        """
        while (connections := self._wait_for_next_group()) is not None:
            self._answer(connections)

    def fail_all_requests(self, error: BaseException) -> None:
        """Answer every waiting and every later request with `error`."""
        with self._condition:
            self._error = error
            for connection in self._connections:
                if connection.state == "waiting":
                    connection.deliver(None, error)
            self._condition.notify_all()

    def _wait_for_next_group(self) -> list[RunConnection] | None:
        """Wait for the connections whose requests are answered next, and return them; None when all runs have ended."""
        with self._condition:
            while True:
                states = {connection.state for connection in self._connections}
                if states <= {"finished"}:
                    return None
                wait_seconds = self._get_remaining_wait_seconds()
                if "waiting" in states and "running" not in states and wait_seconds <= 0:
                    break
                # Python handles signals only between waits, so no wait may be unlimited.
                self._condition.wait(wait_seconds if wait_seconds > 0 else 1.0)
            groups: dict[object, list[RunConnection]] = {}
            for connection in self._connections:
                if connection.state == "waiting":
                    groups.setdefault(connection.batch_key(), []).append(connection)
        selected_group = max(groups.values(), key=self._get_priority)
        for connections in groups.values():
            for connection in connections:
                connection.n_skips = 0 if connections is selected_group else connection.n_skips + 1
        return selected_group

    @staticmethod
    def _get_priority(connections: Sequence[RunConnection]) -> tuple[bool, bool, bool, int]:
        """Return the sort key of a group of connections; the group with the largest key is answered first.

        Prerequisites of other runs come first, so that the dependent runs can start together. Then come updates,
        because playing would overwrite the rollouts from which they learn; then groups with a request that was skipped
        `MAX_SKIPS` times; then the largest group.
        """
        is_update = isinstance(connections[0].request, Update)
        is_overdue = max(connection.n_skips for connection in connections) >= MAX_SKIPS
        return any(connection.is_prerequisite for connection in connections), is_update, is_overdue, len(connections)

    def _get_remaining_wait_seconds(self) -> float:
        """Return the seconds left to wait for newly detached runs; 0 or negative: there is no wait."""
        detach_times = [c.state_change_time for c in self._connections if c.state == "detached"]
        wait_seconds = max(MIN_DETACHED_WAIT_SECONDS, DETACHED_WAIT_FRACTION * self._last_answer_seconds)
        return max(detach_times) + wait_seconds - time.monotonic() if detach_times else 0.0

    def _answer(self, connections: Sequence[RunConnection]) -> None:
        """Answer the requests of connections with equal batch keys."""
        start = time.monotonic()
        try:
            first, request = connections[0], connections[0].request
            answers: Sequence[Any]
            if first.batch_key() is first:
                answers = [first.call_in_context(first.unbatched_executor.answer, request)]
            elif isinstance(request, Update):
                answers = self._update(connections)
            else:
                answers = self._play(connections)
        except (KeyboardInterrupt, WorkDiscarded):  # they end the process instead of one run
            raise
        except BaseException as error:  # noqa: BLE001 (raised again in the threads of the runs)
            answers = [error] * len(connections)
        with self._condition:
            self._last_answer_seconds = time.monotonic() - start
            for connection, answer in zip(connections, answers, strict=True):
                connection.deliver(*((None, answer) if isinstance(answer, BaseException) else (answer, None)))
            self._condition.notify_all()

    def _play(self, connections: Sequence[RunConnection]) -> Sequence[Any]:
        """Play the games of all runs as one batch; return the rollout of each run."""
        requests: list[PlaySteps] = [connection.request for connection in connections]  # type: ignore[misc]
        if isinstance(requests[0], PlayEpisode):
            batch = self._get_batch(connections)
            for i, connection in enumerate(connections):
                connection.batch, connection.index_in_batch = batch, i
        else:
            assert connections[0].batch is not None
            batch = connections[0].batch
        absent_runs = set(range(len(batch.runs))) - {connection.index_in_batch for connection in connections}
        outputs = batch.play(requests, absent_runs)
        for connection, request in zip(connections, requests, strict=True):
            output = outputs[connection.index_in_batch]
            connection.rollout = output.copy() if request.copy and isinstance(output, Rollout) else output
        return [connection.rollout for connection in connections]

    def _get_batch(self, connections: Sequence[RunConnection]) -> RunBatch:
        key = tuple(connections)
        batch = self._batches.pop(key, None)
        if batch is None:
            while len(self._batches) >= MAX_CACHED_BATCHES:
                del self._batches[next(iter(self._batches))]  # least recently used
            batch = RunBatch([BatchedRun(c.request.collector, c.call_in_context) for c in connections])  # type: ignore[union-attr]
        self._batches[key] = batch
        return batch

    @staticmethod
    def _update(connections: Sequence[RunConnection]) -> Sequence[Any]:
        """Update the societies of all runs; return for each run the metrics of its societies, or a `Diverged` error."""
        batch = connections[0].batch
        assert batch is not None
        requests: dict[int, Update] = {c.index_in_batch: c.request for c in connections}  # type: ignore[misc]
        agents = {i: request.agents for i, request in requests.items()}
        outputs = batch.update(agents, {i: request.minibatch_seeds for i, request in requests.items()})
        run_outputs = [outputs[c.index_in_batch] for c in connections]
        return [next((x for x in output if isinstance(x, Diverged)), output) for output in run_outputs]


class RunConnection:
    """Connection of one run to a batched executor.

    Args:
        executor: executor that answers the requests.
        batching_key: runs with equal keys may be computed as one batch; None: this run is not batched.

    Attributes:
        unbatched_executor: executor of requests that are not computed in a batch.
        state: state of the run.
        state_change_time: value of `time.monotonic` at the last `_set_state`.
        request: request that waits for an answer; None: no request is pending.
        n_skips: number of groups that were answered since the request was made.
        is_prerequisite: whether other runs need the results of this one.
        answer_or_error: (answer to the request, error to raise instead or None); None: no answer yet.
        batch, index_in_batch, rollout: last batch with the run's games, the run's index in it, and the run's rollout.
    """

    def __init__(self, executor: BatchedExecutor, batching_key: str | None) -> None:
        self._executor, self._batching_key = executor, batching_key
        self._context = contextvars.copy_context()
        self.unbatched_executor = Executor(None)
        self.state: RunState = "running"
        self.state_change_time = 0.0
        self.n_skips = 0
        self.is_prerequisite = False
        self.request: Request | None = None
        self.answer_or_error: tuple[Any, BaseException | None] | None = None
        self.batch: RunBatch | None = None
        self.index_in_batch = 0
        self.rollout: Any = None

    def answer(self, request: Request) -> Any:
        """Wait for the answer to a request, in the thread of the run.

        Raises:
            BaseException: as raised while the request was answered.
        """
        executor = self._executor
        self._context = contextvars.copy_context()
        with executor._condition:
            if executor._error is not None:
                raise executor._error
            previous_state, self.state, self.request = self.state, "waiting", request
            executor._condition.notify_all()
            while self.answer_or_error is None:
                executor._condition.wait()
            (answer, error), self.answer_or_error, self.state = self.answer_or_error, None, previous_state
        if error is not None:
            raise error
        return answer

    def deliver(self, answer: Any, error: BaseException | None) -> None:
        """Set the answer to the request, or the error to raise instead; the executor calls this."""
        self.answer_or_error, self.request, self.state = (answer, error), None, "running"

    @contextmanager
    def detached(self) -> Iterator[None]:
        """Return a context in which the run may take long; the other runs do not wait for it."""
        previous_state = self.state
        self._set_state("detached")
        try:
            yield
        finally:
            self._set_state(previous_state)

    @contextmanager
    def suspend_batching(self) -> Iterator[None]:
        """Return a context in which the thread computes a prerequisite run, whose requests are not batched."""
        key, self._batching_key = self._batching_key, None
        was_prerequisite, self.is_prerequisite = self.is_prerequisite, True
        try:
            yield
        finally:
            self._batching_key, self.is_prerequisite = key, was_prerequisite

    def close(self) -> None:
        """Close the connection; the run makes no more requests."""
        self.unbatched_executor.close()
        self._set_state("finished")

    def call_in_context(self, call: Any, *args: Any) -> Any:
        """Call a function in the context of the run, so that log messages belong to the run."""
        return self._context.run(call, *args)

    def batch_key(self) -> object:
        """Return a key that is equal for requests that can be one batch; `self` if the request cannot be batched."""
        request = self.request
        if self._batching_key is not None:
            if isinstance(request, Update) and self.batch is not None and request.rollout is self.rollout:
                return (Update, id(self.batch))
            if isinstance(request, PlayEpisode) and self._can_be_batched(request):
                key = (PlayEpisode, self._batching_key, request.collector.spec.n_envs)
                return (*key, request.mechanism is None, request.context is None, *_get_play_options(request))
            if type(request) is PlaySteps and self.batch is not None and request.action_seeds is None:
                return (PlaySteps, id(self.batch), *_get_play_options(request))
        return self

    @staticmethod
    def _can_be_batched(request: PlayEpisode) -> bool:
        collector = request.collector
        if not isinstance(collector.env, Resizable) or not isinstance(collector.policy, PartitionedPolicy):
            return False
        unset_flags = (request.mechanism is None, request.context is None)
        absence_flags = (collector.spec.mechanism is None, not collector.spec.contexts)
        return unset_flags == absence_flags and collector.policy.is_stackable

    def _set_state(self, state: RunState) -> None:
        with self._executor._condition:
            self.state, self.state_change_time = state, time.monotonic()
            self._executor._condition.notify_all()


def _get_play_options(request: PlaySteps) -> tuple[object, ...]:
    return (request.steps, request.learn, request.reward_jacobian, request.greedy, request.restart)
