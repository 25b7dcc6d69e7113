"""Gathers the requests of all who ask with one account, sends them as batches, and hands out the answers."""

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
from llmrl.llms.batches.batch_api import Answer, BatchWire, Failure, NotThereError
from llmrl.llms.batches.litellm_requests import Prepared
from llmrl.llms.batches.records import Held, Record, read_records
from llmrl.llms.retry import TransientError

logger = logging.getLogger(__name__)

Wait = Callable[[float], None]
"""Waits so many seconds; raises if there is no point in waiting on."""
Entry = tuple[Prepared, Held]

LOOK_S = 0.1
"""Seconds after which who waits for others to send looks whether they have."""
LINE_BYTES = 200
"""Of a request in a batch besides its body, about."""


class Desk:
    """Where requests are handed in and answers fetched; runs of one process share one (`Desk.of`).

    Whoever hands a request in first waits a little for others and then sends all that is there. What is sent is written
    down first (`records`), so a request is in one batch only, also after a kill.

    Args:
        wire: the provider's batch API.
        account, folder: whose batches these are, and the cache that they are written down beside.
        gather: seconds without a new request after which those that are there are sent.
        poll: seconds between two looks at a batch.
    """

    def __init__(self, wire: BatchWire, account: str, folder: Path, gather: float, poll: float) -> None:
        self.wire, self.account, self.folder, self.gather, self.poll = wire, account, folder, gather, poll
        self._news = threading.Lock()
        self._queue: dict[str, Entry] = {}
        self._sending = False
        self._errors: dict[str, LlmrlError] = {}
        self._answers: dict[str, Answer] = {}
        self._taken: set[str] = set()
        self._kept: set[str] = set()  # of which the reply came, and is in the cache
        self._records: dict[str, Record] = {}
        self._read: set[Path] = set()
        self._due: dict[Path, float] = {}
        self._done: dict[Path, int] = {}

    @classmethod
    def of(cls, wire: BatchWire, account: str, folder: Path, gather: float, poll: float) -> Desk:
        """Return the desk that all of this process share who use one account, one cache and these numbers."""
        with _opening:
            key = (account, str(folder.absolute()), gather, poll)
            if (desk := _desks.get(key)) is None:
                desk = _desks[key] = cls(wire, account, folder, gather, poll)
            return desk

    def held(self, key: str) -> Held | None:
        """What was set aside for a request that may be in a batch already; None: it is in none."""
        with self._news:
            record = self._records.get(key)
            return None if record is None else record.requests.get(key)

    def look_around(self) -> None:
        """Read what other processes have sent, this one's predecessors among them."""
        with self._news:
            for record in read_records(self.folder, self.account, self._read):
                self._read.add(record.path)
                # What this process has sent itself it knows better.
                self._records = dict.fromkeys(record.requests, record) | self._records

    def send(self, entries: Mapping[str, Entry], wait: Wait) -> None:
        """Have requests be in a batch, by their addresses; those that are in one stay there, and those that somebody
        has fetched since they were handed in are left to the cache, once.

        Raises:
            LLMError: they could not be sent.
            RunFolderError: what is to be sent cannot be written down.
            Exception: what `wait` raises; then those that are not sent yet never are.
        """
        with self._news:
            kept = self._kept & entries.keys()
            self._kept -= kept
            new = {key: entry for key, entry in entries.items() if key not in kept and not self._is_under_way(key)}
            self._queue |= new
            for key in new:
                self._errors.pop(key, None)  # of somebody who has gone
        try:
            while True:
                with self._news:
                    if wrong := [self._errors.pop(key) for key in new if key in self._errors]:
                        raise wrong[0]
                    if all(self._is_under_way(key) or key not in self._queue for key in new):
                        return
                    leads = not self._sending
                    self._sending = True
                if not leads:
                    wait(LOOK_S)
                    continue
                try:
                    self._wait_for_others(wait)
                    self._send_all()
                finally:
                    with self._news:
                        self._sending = False
        finally:
            with self._news:
                for key in new:
                    self._queue.pop(key, None)
                    self._errors.pop(key, None)

    def answers(self, asked: Mapping[str, Prepared], wait: Wait) -> dict[str, Answer]:
        """Wait for the answers to requests that were sent; left out are those that somebody else has fetched and kept.

        Each answer is given to one who asked, who pays for it; others wait until that one is `done` with it.

        Raises:
            LLMError: the provider does not say how far a batch is.
            Exception: what `wait` raises.
        """
        taken: dict[str, Answer] = {}
        try:
            while True:
                with self._news:
                    open_ = [key for key in asked if key not in self._answers and key in self._records]
                    records = {id(self._records[key]): (self._records[key], asked[key]) for key in open_}
                    if not open_:
                        # All at once, so that no two wait for one another.
                        left = [key for key in asked if key in self._answers and key not in taken]
                        mine = [key for key in left if key not in self._taken]
                        self._taken.update(mine)
                        taken |= {key: self._answers[key] for key in mine}
                        if len(mine) == len(left):
                            return taken
                if not open_:
                    wait(LOOK_S)
                    continue
                for record, one in records.values():
                    self._look(record, one)
                with self._news:
                    if all(key in self._answers for key in open_):
                        continue
                wait(min(self.poll, 1.0))
        except BaseException:
            self.release(taken)
            raise

    def release(self, keys: Collection[str]) -> None:
        """Let others have answers that were taken, as far as nobody is done with them."""
        with self._news:
            self._taken.difference_update(keys)

    def done(self, keys: Collection[str]) -> None:
        """Forget requests: their answers are kept elsewhere, or they have none."""
        with self._news:
            records = {id(record): record for key in keys if (record := self._records.pop(key, None)) is not None}
            self._kept |= {key for key in keys if not isinstance(self._answers.pop(key, None), Failure | None)}
            for record in records.values():
                record.without(keys)

    def _is_under_way(self, key: str) -> bool:
        record = self._records.get(key)
        return record is not None and bool(record.batches)

    def _wait_for_others(self, wait: Wait) -> None:
        before = -1
        while before != (before := len(self._queue)):
            wait(self.gather)

    def _send_all(self) -> None:
        """Send what was handed in, in as few batches as the provider takes; what goes wrong is told to whoever handed
        it in."""
        self.look_around()
        with self._news:
            queue = dict(self._queue)
            unheard = {id(record): (record, key) for key in queue if (record := self._records.get(key)) is not None}
        for record, key in unheard.values():
            if not self._told(record.requests, functools.partial(self._find, record, queue[key][0])):
                return  # perhaps they are under way
        for chunk in self._chunks(queue):
            self._told(chunk, functools.partial(self._create, chunk))

    def _told(self, keys: Iterable[str], send: Callable[[], None]) -> bool:
        """Whether `send` went well; else who waits for the requests `keys` is told what did not."""
        try:
            send()
        except LlmrlError as error:
            with self._news:
                self._errors.update(dict.fromkeys(list(keys), error))
            return False
        return True

    def _chunks(self, entries: Mapping[str, Entry]) -> list[list[str]]:
        """Addresses of requests, as many together as a batch may have."""
        chunks: list[list[str]] = []
        size = 0
        for key, (one, _) in entries.items():
            own = len(json.dumps(one.body)) + LINE_BYTES
            if not chunks or len(chunks[-1]) >= self.wire.most or size + own > self.wire.most_bytes:
                chunks.append([])
                size = 0
            chunks[-1].append(key)
            size += own
        return chunks

    def _create(self, keys: Collection[str]) -> None:
        """Make a batch of requests, but for those whose sender has gone or that are in one by now."""
        with self._news:
            entries = {key: self._queue[key] for key in keys if key in self._queue and not self._is_under_way(key)}
            if not entries:
                return
            record = Record.begun(self.folder, self.account, {key: held for key, (_, held) in entries.items()})
            self._read.add(record.path)
            self._records.update(dict.fromkeys(entries, record))
        prepared = {key: one for key, (one, _) in entries.items()}
        uploaded = None
        try:
            uploaded = record.uploaded = self.wire.upload(prepared)
            if uploaded:
                record.save()
            record.batches = [self.wire.create(prepared, uploaded)]
        except LLMError as error:
            # Without a file there is no batch; else one may have been made although nobody heard of it.
            if uploaded is None or error.refused:
                self._drop(record)
            if uploaded is None and isinstance(error, TransientError):
                raise TransientError(str(error), error.retry_after, refused=True) from None
            raise
        record.save()
        logger.info("batch %s of %d requests is under way (%s)", record.batches[0], len(entries), self.account)

    def _find(self, record: Record, one: Prepared) -> None:
        """Look for a batch whose making was not heard of to its end."""
        if record.batches:
            return
        with self._news:
            claimed = {name for other in self._records.values() for name in other.batches}
        found = self.wire.find(one, record.uploaded, record.n, record.time)
        if left := [name for name in found if name not in claimed]:
            record.batches = left
            record.save()
            logger.info("going on with batch %s, which was sent before", ", ".join(left))
        else:
            self._drop(record)

    def _drop(self, record: Record) -> None:
        with self._news:
            for key in record.requests:
                self._records.pop(key, None)
            record.without(list(record.requests))

    def _look(self, record: Record, one: Prepared) -> None:
        """Ask how far a batch is, if that was not asked just now, and fetch its answers once it has ended."""
        with self._news:
            if time.monotonic() < self._due.get(record.path, 0.0):
                return
            self._due[record.path] = time.monotonic() + self.poll
        try:
            answers = self._ended(record, one)
        except TransientError as error:
            later = max(self.poll, error.retry_after or 0.0)
            logger.warning("%s; the batch is asked for again in %.0f s", error, later)
            with self._news:
                self._due[record.path] = time.monotonic() + later
            return
        if answers is None:
            return
        nothing = Failure("its batch ended without it", passing=True)
        with self._news:
            for key in record.requests:
                self._answers.setdefault(key, answers.get(key, nothing))

    def _ended(self, record: Record, one: Prepared) -> Mapping[str, Answer] | None:
        """The answers of a batch that has ended; None while it goes on."""
        goes_on = False
        for name in list(record.batches):
            try:
                progress = self.wire.look(one, name)
                if not progress.ended:
                    goes_on = True
                    if progress.done != self._done.get(record.path, 0):
                        self._done[record.path] = progress.done
                        logger.info("batch %s: %d of %d requests are answered", name, progress.done, record.n)
                    continue
                if progress.failed is not None:
                    return dict.fromkeys(record.requests, progress.failed)
                answers = self.wire.answers(one, name, progress)
            except NotThereError as error:
                logger.warning("%s: what was in batch %s is asked anew", error, name)
                continue
            if record.requests.keys() & answers.keys():
                return answers
            # Else it is another's, of as many requests.
        return None if goes_on else {}


_opening = threading.Lock()
_desks: WeakValueDictionary[tuple[str, str, float, float], Desk] = WeakValueDictionary()
"""As long as somebody uses one."""
