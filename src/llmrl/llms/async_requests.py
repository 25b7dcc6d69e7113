"""Requests that are sent in the background while their senders continue."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Generic, TypeVar

from llmrl.core.records import ChatRequest
from llmrl.core.threads import daemon_thread
from llmrl.llms.client import ChatClient, FetchedReplies

Sender = TypeVar("Sender")


class Mailbox(Generic[Sender]):
    """Sender of requests for many callers, which returns the replies as they arrive.

    The client limits the number of requests in flight (`llm.limits`). If a model runs in this process and answers whole
    batches (`Provider.remote` is false), all waiting requests are sent as one batch by the caller that waits.

    Args:
        client: client that sends the requests.
    """

    def __init__(self, client: ChatClient) -> None:
        self.client = client
        self._answers: queue.SimpleQueue[tuple[Sender, FetchedReplies | BaseException]] = queue.SimpleQueue()
        self._arrived: list[tuple[Sender, FetchedReplies | BaseException]] = []
        self._batch: list[tuple[Sender, Sequence[ChatRequest]]] = []
        self._n_in_flight = 0

    def send(self, sender: Sender, requests: Sequence[ChatRequest]) -> None:
        """Start requests without waiting for their replies."""
        if not self.client.parallel:
            self._batch.append((sender, requests))
            return
        self._n_in_flight += 1
        daemon_thread("mail", self._fetch, sender, requests).start()

    def receive(self) -> list[tuple[Sender, FetchedReplies]]:
        """Return all replies that have arrived with their senders; wait for one if requests are in flight.

        Raises:
            Exception: a request failed with an error that is not an `LLMError`; no request is in flight any more.
        """
        if self._batch:
            batch, self._batch = self._batch, []
            return self._fetch_batch(batch)
        while self._n_in_flight and not (self._arrived and self._answers.empty()):
            self._take()
        answers, self._arrived = self._arrived, []
        replies = []
        for sender, answer in answers:
            if isinstance(answer, BaseException):
                self.drain()
                raise answer
            replies.append((sender, answer))
        return replies

    def drain(self) -> None:
        """Wait until no request is in flight; all paid replies are then in the cache and the log.

        If the run is to stop, the wait is short (`ChatClient`).
        """
        while self._n_in_flight:
            self._take()

    def _take(self) -> None:
        """Wait for the answer to a request in flight."""
        self._arrived.append(self._answers.get())
        self._n_in_flight -= 1

    def _fetch(self, sender: Sender, requests: Sequence[ChatRequest]) -> None:
        """Send requests in a thread, and store their replies or the error."""
        try:
            self._answers.put((sender, self.client.fetch(requests)))
        except BaseException as error:  # noqa: BLE001  (raised in the waiting thread)
            self._answers.put((sender, error))

    def _fetch_batch(
        self, batch: Sequence[tuple[Sender, Sequence[ChatRequest]]]
    ) -> list[tuple[Sender, FetchedReplies]]:
        """Send the requests of all senders as one batch, and split the replies by sender."""
        all_replies = self.client.fetch([request for _, requests in batch for request in requests])
        shares, first = [], 0
        for sender, requests in batch:
            last = first + len(requests)
            shares.append((sender, FetchedReplies(all_replies.calls[first:last], all_replies.results[first:last])))
            first = last
        return shares
