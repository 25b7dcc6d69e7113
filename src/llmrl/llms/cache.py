"""Replies kept in a folder, one readable file each, addressed by everything that can change the answer.

Any number of processes may share the folder, on one machine or through a shared file system, without locks: a file
appears whole under its final name or not at all, and the first of several replies to one question stays.
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

from llmrl.core.disk import remove, why
from llmrl.core.errors import LLMError, RunFolderError
from llmrl.core.fields import record_of
from llmrl.core.records import REPLY_COUNTS, ChatReply, ChatRequest, impossible
from llmrl.core.secrets import known, redact, redact_all
from llmrl.llms.images import named

logger = logging.getLogger(__name__)

Mode = Literal["off", "read", "readwrite", "only"]

_KEPT = (*REPLY_COUNTS, "cost", "latency", "finish", "thoughts")


class Cache:
    """The folder and what may be done with it.

    Args:
        folder: made when the first reply is kept; entries are `<first two digits>/<address>.json` in it.
        mode: `off`; `read`: replies that are there are used; `readwrite`: and new ones are kept; `only`: a request
            without a kept reply is an error, so nothing is ever paid.
    """

    def __init__(self, folder: Path, mode: Mode = "readwrite") -> None:
        self.folder, self.mode = folder, mode
        self._damaged: set[Path] = set()  # of which it has been told

    def get(self, key: str) -> ChatReply | None:
        """The kept reply, with `attempts` 0; None if there is none. A damaged file counts as none, with a warning."""
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
        """Keep `reply`. Returns the one that is kept: another process may have been first.

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
        """The error for a request that mode `only` cannot answer."""
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
    """Texts are lists of their lines, so that a person can read them. Secrets are redacted."""
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
    """What an entry holds of a reply, see `ChatReply`; texts by lines."""

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
    """The reply of an entry.

    Raises:
        ValueError: it is none, or one with numbers that none can have.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("reply"), dict):
        raise ValueError("it holds no reply")
    kept = record_of(_Kept, entry["reply"])
    facts = {name: getattr(kept, name) for name in _KEPT} | {"thoughts": "\n".join(kept.thoughts)}
    reply = ChatReply("\n".join(kept.text), attempts=0, **facts)
    if wrong := impossible(reply):
        raise ValueError(f"its {wrong[0]} is {getattr(reply, wrong[0])!r}")
    return reply
