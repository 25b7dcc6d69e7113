"""Cache of replies in a folder, one readable file each, addressed by everything that can change the answer.

Any number of processes may share the folder without locks, on one machine or through a shared file system. A file
appears complete under its final name or not at all, and the first of several replies to one request stays.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from llmrl.core.atomic_files import remove, why
from llmrl.core.errors import LLMError, RunFolderError
from llmrl.core.plain_data import parse_record
from llmrl.core.records import REPLY_COUNTS, ChatReply, ChatRequest, impossible
from llmrl.core.secrets import known, redact, redact_all
from llmrl.llms.images import named

logger = logging.getLogger(__name__)

Mode = Literal["off", "read", "readwrite", "only"]

_KEPT = (*REPLY_COUNTS, "cost", "latency", "finish", "thoughts")


class Cache:
    """Folder of kept replies, with the mode in which it is used.

    Args:
        folder: folder of entries `<first two digits>/<address>.json`; created when the first reply is kept.
        mode: `off`: unused; `read`: kept replies are used; `readwrite`: new ones are kept, too; `only`: a request
            without a kept reply is an error, so that nothing is paid.
    """

    def __init__(self, folder: Path, mode: Mode = "readwrite") -> None:
        self.folder, self.mode = folder, mode
        self._damaged: set[Path] = set()  # each is warned about once

    def get(self, key: str) -> ChatReply | None:
        """Return the kept reply with `attempts` 0; None, with a warning for a damaged file, if there is none.

        Raises:
            RunFolderError: the file cannot be read.
        """
        if self.mode == "off":
            return None
        path = self._path(key)
        try:
            return _reply(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            if path not in self._damaged:
                logger.warning("%s is damaged (%s) and will be asked for anew", path, error)
            self._damaged.add(path)
            return None
        except OSError as error:
            raise _unusable("read", path, error) from error

    def put(self, key: str, identity: Mapping[str, Any], request: ChatRequest, reply: ChatReply) -> ChatReply:
        """Keep `reply` in mode `readwrite` and return it, with the texts of the kept reply if another came first.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        if self.mode != "readwrite":
            return reply
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return self._link(path, _entry(key, identity, request, reply), reply)
        except OSError as error:
            raise _unusable("write", path, error) from error

    def missing(self, request: ChatRequest) -> LLMError:
        """Return the error for a request that mode `only` cannot answer."""
        return LLMError(
            f"llm.cache=only, and {self.folder} holds no reply to this request (purpose {request.purpose!r}, prompt "
            f"{request.prompt or 'not named'}): model, prompt, seed or sampling parameters differ from what was asked "
            "before. Allow paid calls with llm.cache=readwrite"
        )

    def _link(self, path: Path, entry: dict[str, Any], reply: ChatReply) -> ChatReply:
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            with partial.open("w", encoding="utf-8") as file:
                json.dump(entry, file, ensure_ascii=False, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            try:
                # A hard link fails where the name exists, on network file systems too; a rename would replace it.
                os.link(partial, path)
            except FileExistsError:
                kept = self.get(path.stem)
                if kept is not None:
                    return replace(reply, text=kept.text, finish=kept.finish, thoughts=kept.thoughts)
                partial.rename(path)  # what is there is damaged
            return reply
        finally:
            remove(partial)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _entry(key: str, identity: Mapping[str, Any], request: ChatRequest, reply: ChatReply) -> dict[str, Any]:
    """Return an entry as JSON-compatible values: texts as lists of lines, for readability, and secrets redacted."""
    secrets = known()
    asked = redact_all({"model": dict(identity), "purpose": request.purpose, "schema": request.schema}, secrets)
    messages = redact_all(named(request.messages), secrets)
    return {
        "hash": key,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "model": asked["model"],
        "purpose": asked["purpose"],
        "prompt": request.prompt,
        "repeat": request.repeat,
        "messages": [{**message, "content": message["content"].split("\n")} for message in messages],
        "schema": asked["schema"],
        "reply": {name: value for name, value in asdict(reply).items() if name in _KEPT}
        | {
            "finish": redact(reply.finish, secrets),
            "text": redact(reply.text, secrets).split("\n"),
            "thoughts": redact(reply.thoughts, secrets).split("\n"),
        },
    }


def _unusable(verb: str, path: Path, error: OSError) -> RunFolderError:
    reason = why(path, error, "llm.cache_dir=<folder>")
    return RunFolderError(
        f"cannot {verb} the cache of replies {path}: {reason}. Choose another folder with llm.cache_dir=<folder>, or "
        "do without: llm.cache=off"
    )


@dataclass(frozen=True)
class _Kept:
    """Fields of `ChatReply` in an entry, texts as lists of lines."""

    text: list[str]
    thoughts: list[str]
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    cost: float | None
    latency: float
    finish: str


def _reply(entry: Any) -> ChatReply:
    """Return the reply of an entry.

    Raises:
        ValueError: the entry holds no reply, or one with impossible numbers.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("reply"), dict):
        raise ValueError("it holds no reply")
    kept = parse_record(_Kept, entry["reply"])
    facts = {name: getattr(kept, name) for name in _KEPT} | {"thoughts": "\n".join(kept.thoughts)}
    reply = ChatReply("\n".join(kept.text), attempts=0, **facts)
    if wrong := impossible(reply):
        raise ValueError(f"its {wrong[0]} is {getattr(reply, wrong[0])!r}")
    return reply
