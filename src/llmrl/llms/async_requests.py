"""Requests that are under way while whoever sent them goes on with something else."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from llmrl.core.records import ChatRequest
from llmrl.core.threads import daemon_thread
from llmrl.llms.client import ChatClient, FetchedReplies

Sender = TypeVar("Sender")

LOOK_S = 0.5
"""Seconds after which who waits for a reply lets signals be heard."""


class Mailbox(Generic[Sender]):
    """Sends the questions of many, and hands out the replies as they come.

    How many requests are in flight is the client's business (`llm.limits`). Where a model is of this process and
    answers whole batches (`Provider.parallel` false), all that waits is asked at once, by who waits for it.

    Args:
        client: who is asked.
    """

    def __init__(self, client: ChatClient) -> None:
        self.client = client
        self._news = threading.Condition()
        self._here: deque[tuple[Sender, FetchedReplies | BaseException]] = deque()
        self._batch: list[tuple[Sender, Sequence[ChatRequest]]] = []
        self._away = 0

    def send(self, sender: Sender, requests: Sequence[ChatRequest]) -> None:
        """Have requests answered; does not wait."""
        if not self.client.parallel:
            self._batch.append((sender, requests))
            return
        with self._news:
            self._away += 1
        daemon_thread("mail", self._fetch, sender, requests).start()

    def receive(self) -> list[tuple[Sender, FetchedReplies]]:
        """Wait until something is here, if anything is under way; returns all that is here, with who sent for it.

        Raises:
            Exception: what kept a request from being made, which is no matter of the model; nothing is under way then.
        """
        if self._batch:
            batch, self._batch = self._batch, []
            return self._split(batch)
        with self._news:
            while not self._here and self._away:
                self._news.wait(LOOK_S)
            found, self._here = list(self._here), deque()
        fetched = []
        for sender, answer in found:
            if isinstance(answer, BaseException):
                self.drain()
                raise answer
            fetched.append((sender, answer))
        return fetched

    def drain(self) -> None:
        """Wait until nothing is under way: what was paid for is in the cache and the log then. A run that is to stop
        does not wait for long (`ChatClient`)."""
        with self._news:
            while self._away:
                self._news.wait(LOOK_S)

    def _fetch(self, sender: Sender, requests: Sequence[ChatRequest]) -> None:
        answer: FetchedReplies | BaseException
        try:
            answer = self.client.fetch(requests)
        except BaseException as error:  # noqa: BLE001  (raised where somebody waits)
            answer = error
        with self._news:
            self._here.append((sender, answer))
            self._away -= 1
            self._news.notify_all()

    def _split(self, batch: Sequence[tuple[Sender, Sequence[ChatRequest]]]) -> list[tuple[Sender, FetchedReplies]]:
        """One batch of many senders, as what each of them gets."""
        whole = self.client.fetch([request for _, requests in batch for request in requests])
        found, first = [], 0
        for sender, requests in batch:
            last = first + len(requests)
            found.append((sender, FetchedReplies(whole.calls[first:last], whole.results[first:last])))
            first = last
        return found
