"""Queue that collects requests of one account, sends them as batches, and distributes the answers."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

from llmrl.core.errors import LLMError, LlmrlError
from llmrl.llms.batches.batch_api import Answer, BatchWire, Failure, NotFoundError
from llmrl.llms.batches.records import HeldReservation, Record, read_records
from llmrl.llms.litellm_requests import RecordedHttpRequest
from llmrl.llms.retry import TransientError

logger = logging.getLogger(__name__)

Wait = Callable[[float], None]
"""Function that waits a number of seconds, and raises if waiting is pointless."""
Entry = tuple[RecordedHttpRequest, HeldReservation]

CHECK_INTERVAL_S = 0.1
"""Seconds between two checks of a caller that waits for others to send."""
REQUEST_OVERHEAD_BYTES = 200
"""Approximate size of a request in a batch in addition to its body, in bytes."""


class BatchQueue:
    """Queue of requests and answers that all runs of one process share (`BatchQueue.of`).

    The first caller waits a little for others and then sends all queued requests. Each batch is recorded on disk before
    it is sent (`records`), so a request is in one batch only, also after a kill.

    Args:
        wire: client of the provider's batch API.
        account: account that the batches belong to.
        folder: cache folder next to which batches are recorded.
        gather: seconds without a new request after which the queue is sent.
        poll: seconds between two progress queries of a batch.
    """

    def __init__(self, wire: BatchWire, account: str, folder: Path, gather: float, poll: float) -> None:
        self.wire, self.account, self.folder, self.gather, self.poll = wire, account, folder, gather, poll
        self._lock = threading.Lock()
        self._queue: dict[str, Entry] = {}
        self._sending = False
        self._errors: dict[str, LlmrlError] = {}
        self._answers: dict[str, Answer] = {}
        self._claimed: set[str] = set()
        self._cached: set[str] = set()  # requests whose replies are in the cache
        self._records: dict[str, Record] = {}
        self._read_paths: set[Path] = set()
        self._next_query: dict[Path, float] = {}
        self._n_done: dict[Path, int] = {}

    @classmethod
    def of(cls, wire: BatchWire, account: str, folder: Path, gather: float, poll: float) -> BatchQueue:
        """Return the queue that this process shares for the same account, cache and numbers."""
        with _queues_lock:
            key = (account, str(folder.absolute()), gather, poll)
            if (batch_queue := _queues.get(key)) is None:
                batch_queue = _queues[key] = cls(wire, account, folder, gather, poll)
            return batch_queue

    def reservation_of(self, key: str) -> HeldReservation | None:
        """Return the reservation of a request that may be in a batch already; None if it is in none."""
        with self._lock:
            record = self._records.get(key)
            return None if record is None else record.requests.get(key)

    def read_files(self) -> None:
        """Read the batches that other processes, or earlier runs, have recorded."""
        with self._lock:
            for record in read_records(self.folder, self.account, self._read_paths):
                self._read_paths.add(record.path)
                # Records of this process are newer than those read from files.
                self._records = dict.fromkeys(record.requests, record) | self._records

    def send(self, entries: Mapping[str, Entry], wait: Wait) -> None:
        """Send requests, given by cache key, in batches; requests that are in a batch already stay there.

        Requests that another caller has fetched since they were queued are skipped once, because the cache has them.

        Raises:
            LLMError: they could not be sent.
            RunFolderError: the batch cannot be recorded.
            Exception: raised by `wait`; requests that are not sent yet are then dropped.
        """
        with self._lock:
            cached_keys = self._cached & entries.keys()
            self._cached -= cached_keys
            new = {
                key: entry for key, entry in entries.items() if key not in cached_keys and not self._is_under_way(key)
            }
            self._queue |= new
            for key in new:
                self._errors.pop(key, None)  # left by a caller that has gone
        try:
            while True:
                with self._lock:
                    if errors := [self._errors.pop(key) for key in new if key in self._errors]:
                        raise errors[0]
                    if all(self._is_under_way(key) or key not in self._queue for key in new):
                        return
                    is_leader = not self._sending
                    self._sending = True
                if not is_leader:
                    wait(CHECK_INTERVAL_S)
                    continue
                try:
                    self._wait_for_others(wait)
                    self._send_all()
                finally:
                    with self._lock:
                        self._sending = False
        finally:
            with self._lock:
                for key in new:
                    self._queue.pop(key, None)
                    self._errors.pop(key, None)

    def answers(self, requests: Mapping[str, RecordedHttpRequest], wait: Wait) -> dict[str, Answer]:
        """Wait for the answers to requests that were sent.

        Each answer is given to one caller, who pays for it; others wait until that caller calls `done`. Answers that
        another caller has fetched and cached are left out.

        Raises:
            LLMError: the provider does not report the progress of a batch.
            Exception: raised by `wait`.
        """
        answers: dict[str, Answer] = {}
        try:
            while True:
                with self._lock:
                    unanswered = [key for key in requests if key not in self._answers and key in self._records]
                    records = {id(self._records[key]): (self._records[key], requests[key]) for key in unanswered}
                    if not unanswered:
                        # All answers are claimed at once, so that no two callers wait for each other.
                        available = [key for key in requests if key in self._answers and key not in answers]
                        unclaimed = [key for key in available if key not in self._claimed]
                        self._claimed.update(unclaimed)
                        answers |= {key: self._answers[key] for key in unclaimed}
                        if len(unclaimed) == len(available):
                            return answers
                if not unanswered:
                    wait(CHECK_INTERVAL_S)
                    continue
                for record, request in records.values():
                    self._fetch(record, request)
                with self._lock:
                    if all(key in self._answers for key in unanswered):
                        continue
                wait(min(self.poll, 1.0))
        except BaseException:
            self.release(answers)
            raise

    def release(self, keys: Collection[str]) -> None:
        """Make answers available to other callers again."""
        with self._lock:
            self._claimed.difference_update(keys)

    def done(self, keys: Collection[str]) -> None:
        """Forget requests whose answers are stored elsewhere, or that have no answer."""
        with self._lock:
            records = {id(record): record for key in keys if (record := self._records.pop(key, None)) is not None}
            self._cached |= {key for key in keys if not isinstance(self._answers.pop(key, None), Failure | None)}
            for record in records.values():
                record.discard(keys)

    def _is_under_way(self, key: str) -> bool:
        record = self._records.get(key)
        return record is not None and bool(record.batches)

    def _wait_for_others(self, wait: Wait) -> None:
        """Wait until no request was added for `gather` seconds."""
        previous_size = -1
        while previous_size != (previous_size := len(self._queue)):
            wait(self.gather)

    def _send_all(self) -> None:
        """Send all queued requests in as few batches as possible; an error is stored for the callers it concerns."""
        self.read_files()
        with self._lock:
            queue = dict(self._queue)
            unconfirmed = {id(record): (record, key) for key in queue if (record := self._records.get(key)) is not None}
        for record, key in unconfirmed.values():
            if not self._try_send(record.requests, functools.partial(self._find_batch, record, queue[key][0])):
                return  # the requests may be in a batch already
        for chunk in self._chunks(queue):
            self._try_send(chunk, functools.partial(self._create_batch, chunk))

    def _try_send(self, keys: Iterable[str], send: Callable[[], None]) -> bool:
        """Call `send` and return whether it succeeded; an error is stored for the callers of the requests `keys`."""
        try:
            send()
        except LlmrlError as error:
            with self._lock:
                self._errors.update(dict.fromkeys(list(keys), error))
            return False
        return True

    def _chunks(self, entries: Mapping[str, Entry]) -> list[list[str]]:
        """Split the keys of requests into batches of permitted size."""
        chunks: list[list[str]] = []
        size = 0
        for key, (request, _) in entries.items():
            request_size = len(json.dumps(request.body)) + REQUEST_OVERHEAD_BYTES
            if not chunks or len(chunks[-1]) >= self.wire.max_requests or size + request_size > self.wire.max_bytes:
                chunks.append([])
                size = 0
            chunks[-1].append(key)
            size += request_size
        return chunks

    def _create_batch(self, keys: Collection[str]) -> None:
        """Create a batch of requests, except those whose caller has gone and those that are already in a batch."""
        with self._lock:
            entries = {key: self._queue[key] for key in keys if key in self._queue and not self._is_under_way(key)}
            if not entries:
                return
            record = Record.create_file(
                self.folder, self.account, {key: reservation for key, (_, reservation) in entries.items()}
            )
            self._read_paths.add(record.path)
            self._records.update(dict.fromkeys(entries, record))
        requests = {key: request for key, (request, _) in entries.items()}
        file_id = None
        try:
            file_id = record.uploaded = self.wire.upload(requests)
            if file_id:
                record.save()
            record.batches = [self.wire.create(requests, file_id)]
        except LLMError as error:
            # Without a file there is no batch; with one, a batch may exist although its creation was not confirmed.
            if file_id is None or error.refused:
                self._drop_record(record)
            if file_id is None and isinstance(error, TransientError):
                raise TransientError(str(error), error.retry_after, refused=True) from None
            raise
        record.save()
        logger.info("batch %s of %d requests was sent (%s)", record.batches[0], len(entries), self.account)

    def _find_batch(self, record: Record, request: RecordedHttpRequest) -> None:
        """Find the batch of a record whose creation may not have been confirmed."""
        if record.batches:
            return
        with self._lock:
            claimed = {name for batch_record in self._records.values() for name in batch_record.batches}
        names = self.wire.find(request, record.uploaded, record.n, record.time)
        if unclaimed := [name for name in names if name not in claimed]:
            record.batches = unclaimed
            record.save()
            logger.info("resuming batch %s, which was sent before", ", ".join(unclaimed))
        else:
            self._drop_record(record)

    def _drop_record(self, record: Record) -> None:
        """Forget a record whose batch does not exist."""
        with self._lock:
            for key in record.requests:
                self._records.pop(key, None)
            record.discard(list(record.requests))

    def _fetch(self, record: Record, request: RecordedHttpRequest) -> None:
        """Query the progress of a batch, unless that was done recently, and fetch its answers once it has ended."""
        with self._lock:
            if time.monotonic() < self._next_query.get(record.path, 0.0):
                return
            self._next_query[record.path] = time.monotonic() + self.poll
        try:
            answers = self._fetch_answers(record, request)
        except TransientError as error:
            delay = max(self.poll, error.retry_after or 0.0)
            logger.warning("%s; the next progress query of the batch is in %.0f s", error, delay)
            with self._lock:
                self._next_query[record.path] = time.monotonic() + delay
            return
        if answers is None:
            return
        missing = Failure("the batch ended without an answer to the request", passing=True)
        with self._lock:
            for key in record.requests:
                self._answers.setdefault(key, answers.get(key, missing))

    def _fetch_answers(self, record: Record, request: RecordedHttpRequest) -> Mapping[str, Answer] | None:
        """Return the answers of a batch that has ended; None if it has not."""
        is_pending = False
        for name in list(record.batches):
            try:
                progress = self.wire.query_progress(request, name)
                if not progress.ended:
                    is_pending = True
                    if progress.done != self._n_done.get(record.path, 0):
                        self._n_done[record.path] = progress.done
                        logger.info("batch %s: %d of %d requests are done", name, progress.done, record.n)
                    continue
                if progress.failed is not None:
                    return dict.fromkeys(record.requests, progress.failed)
                answers = self.wire.answers(request, name, progress)
            except NotFoundError as error:
                logger.warning("%s: the requests of batch %s are sent again", error, name)
                continue
            if record.requests.keys() & answers.keys():
                return answers
            # Otherwise the batch belongs to another run and has the same number of requests.
        return None if is_pending else {}


_queues_lock = threading.Lock()
_queues: WeakValueDictionary[tuple[str, str, float, float], BatchQueue] = WeakValueDictionary()
"""Queues of this process, while they are in use."""
