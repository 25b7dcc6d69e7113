"""An experiment again from the replies it got the first time: no key, no network, no cost."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.ranges import NonNegativeFloat, PositiveInt
from llmrl.core.records import CHOSEN, REPLY_COUNTS, ChatReply, ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.call_log import FILE_NAME, read_calls
from llmrl.llms.provider import Provider
from llmrl.llms.request_key import request_key

_REPLY = (*REPLY_COUNTS, "cost", "finish", "thoughts")


class ReplayChat(Provider):
    """Answers every request with what the call log of an earlier run holds for it.

    Where a question was answered more than once (a run without a cache, killed and resumed) the last answer counts, as
    it is the one the run went on from.

    Args:
        calls: a run folder (`.../s0`), a folder of such folders, of which the one with this run's seed is taken,
            or a call log.
        seeds: of this run.
        temperature, max_tokens: nothing depends on them, as replies are what they were; an experiment that sets them
            can be replayed as it stands.

    Raises:
        ConfigError: there is no call log with replies.
    """

    parallel = False
    remote = False

    def __init__(
        self,
        calls: str,
        seeds: Seeds,
        temperature: NonNegativeFloat | None = None,
        max_tokens: PositiveInt | None = None,
    ) -> None:
        self.path = _find(Path(calls).expanduser(), seeds.seed)
        self._seed = seeds.seed
        self._replies: dict[str, ChatReply] = {}
        self._recorded: dict[str, dict[str, Any]] = {}  # a call of each model, by the name that the run had for it
        for call in read_calls(self.path):
            if isinstance(call.get("reply"), str) and isinstance(call.get("hash"), str):
                self._recorded.setdefault(str(call.get("named", CHOSEN)), call)
                numbers: dict[str, Any] = {name: call[name] for name in _REPLY if call.get(name) is not None}
                self._replies[call["hash"]] = ChatReply(call["reply"], attempts=0, **numbers)
        if not self._recorded:
            raise ConfigError(f"llm.calls={calls}: {self.path} holds no reply")
        self._is(CHOSEN)

    def _is(self, name: str) -> None:
        """Be one of the recorded models; one that was asked nothing has no reply to give, and any identity will do."""
        call = self._recorded.get(name) or next(iter(self._recorded.values()))
        self.label = f"replay of {call['model'] if name in self._recorded else name}"
        self._identity, self._stream = call["identity"], call["stream"]
        super().__init__(**_facts(self.path.with_name("config.yaml"), name))

    def beside(self, name: str, make: Callable[[], Provider]) -> Provider:
        """What the model of this name said in the recorded run, so that no other has to be reached."""
        other = copy.copy(self)
        other._is(name)
        return other

    @property
    def identity(self) -> dict[str, Any]:
        """That of the model that was recorded: the same questions have the same addresses."""
        return dict(self._identity)

    @property
    def sees(self) -> bool:
        """True: what a model answered of pictures is there if it took them."""
        return True

    def check(self) -> None:
        """Raises LLMError if the calls were recorded with another seed: the questions would differ."""
        if self._stream is not None and self._stream != self._seed:
            raise LLMError(
                f"{self.path} was recorded with seed={self._stream} and this run has seed={self._seed}; use "
                f"seed={self._stream}, or give the folder that holds the folders of all seeds"
            )

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        return [self._reply_to(request) for request in requests]

    def _reply_to(self, request: ChatRequest) -> ChatReply:
        reply = self._replies.get(request_key(self._identity, request, self._stream))
        if reply is None:
            raise LLMError(
                f"{self.path} holds no reply to this request (purpose {request.purpose!r}): something that shapes the "
                "questions differs from the run that was recorded. Compare the config.yaml of the two run folders"
            )
        return reply


def _find(path: Path, seed: int) -> Path:
    candidates = [path] if path.is_file() else [path / FILE_NAME, path / f"s{seed}" / FILE_NAME]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ConfigError(
        f"llm.calls={path} holds no {FILE_NAME}; give the folder of a run that asked a language model, like "
        "'outputs/<name>/<run>/s0'"
    )


def _facts(config: Path, name: str) -> dict[str, Any]:
    """What the recorded run knew about its model's context, which decides how much history prompts hold."""
    import yaml

    if not config.is_file():
        return {}
    llm = (yaml.safe_load(config.read_text(encoding="utf-8")) or {}).get("llm") or {}
    llm = llm if name == CHOSEN else (llm.get("others") or {}).get(name) or {}
    return {name: llm.get(name) for name in ("context_window", "max_tokens", "thinking_budget")}
