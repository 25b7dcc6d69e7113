"""Replay of an experiment with the recorded replies of an earlier run, without key, network or cost."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.ranges import NonNegativeFloat, PositiveInt
from llmrl.core.records import CHOSEN_MODEL, TOKEN_COUNT_FIELDS, ChatReply, ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.cache import compute_request_key
from llmrl.llms.call_log import CALL_LOG_NAME, read_calls
from llmrl.llms.provider import Provider

_REPLY_FIELDS = (*TOKEN_COUNT_FIELDS, "cost", "finish", "thoughts")


class ReplayChat(Provider):
    """Provider that answers every request with the reply in the call log of an earlier run.

    If a request has several replies, because a run without a cache was killed and resumed, the last one is returned,
    with which the run continued.

    Args:
        calls: path of a call log, of a run folder (`.../s0`), or of a folder of run folders, of which the one with this
            run's seed is used.
        seeds: seed tree of this run.
        temperature, max_tokens: ignored; they exist so that experiments that set them can be replayed.

    Raises:
        ConfigError: there is no call log with replies.
    """

    remote = False

    def __init__(
        self,
        calls: str,
        seeds: Seeds,
        temperature: NonNegativeFloat | None = None,
        max_tokens: PositiveInt | None = None,
    ) -> None:
        self.path = _find_call_log(Path(calls).expanduser(), seeds.seed)
        self._seed = seeds.seed
        self._replies: dict[str, ChatReply] = {}
        self._calls_by_model: dict[str, dict[str, Any]] = {}  # one call of each model, by `ChatRequest.model`
        for call in read_calls(self.path):
            if isinstance(call.get("reply"), str) and isinstance(call.get("hash"), str):
                self._calls_by_model.setdefault(str(call.get("requested_model", CHOSEN_MODEL)), call)
                fields: dict[str, Any] = {name: call[name] for name in _REPLY_FIELDS if call.get(name) is not None}
                self._replies[call["hash"]] = ChatReply(call["reply"], attempts=0, **fields)
        if not self._calls_by_model:
            raise ConfigError(
                f"llm.calls={calls}: {self.path} holds no reply; choose a run that called a language model"
            )
        self._use_model(CHOSEN_MODEL)

    def _use_model(self, name: str) -> None:
        """Use the identity, label and limits of the recorded model `name`, or of any model if `name` has no replies."""
        call = self._calls_by_model.get(name) or next(iter(self._calls_by_model.values()))
        self.label = f"replay of {call['model'] if name in self._calls_by_model else name}"
        self._identity, self._sample_seed = call["identity"], call["sample_seed"]
        super().__init__(**_read_recorded_limits(self.path.with_name("config.yaml"), name))

    def additional_provider(self, name: str, build_provider: Callable[[], Provider]) -> Provider:
        """Return a provider that replays the replies of the model `name`."""
        replay = copy.copy(self)
        replay._use_model(name)
        return replay

    @property
    def identity(self) -> dict[str, Any]:
        """Identity of the recorded model, so that requests have the keys of the recorded ones."""
        return dict(self._identity)

    @property
    def accepts_images(self) -> bool:
        """True, because replies to requests with images may be recorded."""
        return True

    def check(self) -> None:
        """Raise LLMError if the calls were recorded with another seed, with which requests are different."""
        if self._sample_seed is not None and self._sample_seed != self._seed:
            raise LLMError(
                f"{self.path} was recorded with seed={self._sample_seed}, but this run has seed={self._seed}; use "
                f"seed={self._sample_seed}, or set llm.calls to the folder that contains the folders of all seeds"
            )

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        replies = []
        for request in requests:
            key = compute_request_key(self._identity, request, self._sample_seed)
            if key not in self._replies:
                raise LLMError(
                    f"{self.path} holds no reply to this request (purpose {request.purpose!r}), because a setting that "
                    "affects requests differs from the recorded run. Compare the config.yaml of the two run folders"
                )
            replies.append(self._replies[key])
        return replies


def _find_call_log(path: Path, seed: int) -> Path:
    """Return the path of the call log `path`, or of that in the folder `path`; raise ConfigError if there is none."""
    candidates = [path] if path.is_file() else [path / CALL_LOG_NAME, path / f"s{seed}" / CALL_LOG_NAME]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ConfigError(
        f"llm.calls={path} holds no {CALL_LOG_NAME}; use the folder of a run that called a language model, e.g. "
        "'outputs/<name>/<run>/s0'"
    )


def _read_recorded_limits(config_path: Path, model: str) -> dict[str, Any]:
    """Return the limits of a model in the recorded run's config; the length of histories in prompts depends on them."""
    import yaml

    if not config_path.is_file():
        return {}
    llm = (yaml.safe_load(config_path.read_text(encoding="utf-8")) or {}).get("llm") or {}
    options = llm if model == CHOSEN_MODEL else (llm.get("variants") or {}).get(model) or {}
    return {name: options.get(name) for name in ("context_window", "max_tokens", "thinking_budget")}
