"""Cache key of a request: a hash of exactly what can change its answer."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmrl.core.records import CHOSEN, ChatRequest, State
from llmrl.llms.images import with_image_hashes


def request_key(identity: Mapping[str, Any], request: ChatRequest, stream: int | None = None) -> str:
    """Return the hexadecimal SHA-256 of model identity, messages, schema, repeat index, place, adapter and stream.

    Descriptive fields (`purpose`, names of prompts) and transport settings (time-outs, limits, prices) are left out.

    Args:
        identity: name, server and sampling parameters of the model, as JSON-compatible values.
        request: the request.
        stream: the run's seed, which selects its sample of the model's answers; None: all runs share one sample.
    """
    content = {
        "model": dict(identity),
        "messages": with_image_hashes(request.messages),
        "schema": request.schema,
        "repeat": request.repeat,
        "stream": stream,
        **({"place": request.place} if request.place else {}),
        **({"adapter": request.adapter} if request.adapter else {}),
    }
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class RepeatCounter:
    """Counter of the repetitions of each request within a run.

    Equal requests must get independent answers, also from the cache. The counts belong to the run's state, so that a
    resumed run requests the same answers again.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def number(self, requests: Sequence[ChatRequest]) -> list[ChatRequest]:
        """Return `requests` with `repeat` raised by their earlier occurrences; those with a `place` stay unchanged."""
        unique_requests = []
        for request in requests:
            if request.place:
                unique_requests.append(request)
                continue
            # 60 bits of the address distinguish requests and fit a checkpoint's integers.
            identity = {"model": request.model} if request.model != CHOSEN else {}
            question = int(request_key(identity, request)[:15], 16)
            unique_requests.append(replace(request, repeat=request.repeat + self._counts[question]))
            self._counts[question] += 1
        return unique_requests

    def state_dict(self) -> State:
        return {
            "questions": np.fromiter(self._counts.keys(), dtype=np.int64, count=len(self._counts)),
            "counts": np.fromiter(self._counts.values(), dtype=np.int64, count=len(self._counts)),
        }

    def load_state_dict(self, state: State) -> None:
        pairs = zip(state["questions"].tolist(), state["counts"].tolist(), strict=True)
        self._counts = Counter(dict(pairs))
