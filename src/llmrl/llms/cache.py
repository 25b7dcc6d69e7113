"""Cache of replies in a folder, with one JSON file for each reply, and the keys of requests.

The key of a reply is a hash of everything that can change it. Any number of processes may share the folder without
locks, on one machine or through a shared file system: files are created atomically and only damaged ones are replaced,
so the first of several replies to one request is kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from llmrl.core.atomic_files import describe_write_error, remove_file_ignoring_errors
from llmrl.core.errors import LLMError, RunFolderError
from llmrl.core.plain_data import parse_record, parse_value
from llmrl.core.records import CHOSEN_MODEL, TOKEN_COUNT_FIELDS, ChatReply, ChatRequest, State, find_impossible_fields
from llmrl.core.secrets import list_known_secrets, redact, redact_nested
from llmrl.llms.images import with_image_hashes

logger = logging.getLogger(__name__)

CacheMode = Literal["off", "read", "readwrite", "only"]

_REPLY_FIELDS = (*TOKEN_COUNT_FIELDS, "cost", "latency", "finish", "thoughts")
"""Fields of a reply that its file contains; its text is added separately."""


class Cache:
    """Folder of cached replies, and the mode of its use.

    Args:
        folder: folder with the files `<first two digits of the key>/<key>.json`; created with the first file.
        mode: `off`: the cache is not used; `read`: cached replies are used; `readwrite`: new replies are also cached;
            `only`: a request without a cached reply is an error, so that there are no paid calls.
    """

    def __init__(self, folder: Path, mode: CacheMode = "readwrite") -> None:
        self.folder, self.mode = folder, mode
        self._damaged_paths: set[Path] = set()  # files for which a warning was logged

    def get(self, key: str) -> ChatReply | None:
        """Return the cached reply with `attempts` 0; None if there is none or, with a warning, its file is damaged.

        Raises:
            RunFolderError: the file cannot be read.
        """
        if self.mode == "off":
            return None
        path = self._get_path(key)
        try:
            return _parse_content(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            if path not in self._damaged_paths:
                logger.warning("%s is damaged (%s); its request will be sent again", path, error)
            self._damaged_paths.add(path)
            return None
        except OSError as error:
            raise _make_access_error("read", path, error) from error

    def put(self, key: str, identity: Mapping[str, Any], request: ChatRequest, reply: ChatReply) -> ChatReply:
        """Cache `reply` in mode `readwrite`; return it with the texts of an already cached reply, if there is one.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        if self.mode != "readwrite":
            return reply
        path = self._get_path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return self._write_file(path, _build_content(key, identity, request, reply), reply)
        except OSError as error:
            raise _make_access_error("write", path, error) from error

    def make_missing_reply_error(self, request: ChatRequest) -> LLMError:
        """Return the error for a request without a cached reply in mode `only`."""
        return LLMError(
            f"llm.cache=only, but {self.folder} holds no reply to this request (purpose {request.purpose!r}, prompt "
            f"{request.prompt or 'without a name'}), because model, prompt, seed or sampling parameters differ from "
            "those of cached requests. Allow paid calls with llm.cache=readwrite"
        )

    def _write_file(self, path: Path, content: dict[str, Any], reply: ChatReply) -> ChatReply:
        """Write `content` to `path` if no valid file exists there; return the result of `put`."""
        temporary_path = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary_path.open("w", encoding="utf-8") as file:
                json.dump(content, file, ensure_ascii=False, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            try:
                # A hard link fails if `path` exists, also on network file systems; a rename would replace the file.
                os.link(temporary_path, path)
            except FileExistsError:
                cached_reply = self.get(path.stem)
                if cached_reply is not None:
                    text, finish, thoughts = cached_reply.text, cached_reply.finish, cached_reply.thoughts
                    return replace(reply, text=text, finish=finish, thoughts=thoughts)
                temporary_path.rename(path)  # the existing file is damaged
            return reply
        finally:
            remove_file_ignoring_errors(temporary_path)

    def _get_path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _build_content(key: str, identity: Mapping[str, Any], request: ChatRequest, reply: ChatReply) -> dict[str, Any]:
    """Return the content of a reply's file, with redacted secrets; texts are lists of lines, for readability."""
    secrets = list_known_secrets()
    fields = redact_nested({"model": dict(identity), "purpose": request.purpose, "schema": request.schema}, secrets)
    messages = redact_nested(with_image_hashes(request.messages), secrets)
    return {
        "hash": key,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "model": fields["model"],
        "purpose": fields["purpose"],
        "prompt": request.prompt,
        "repeat": request.repeat,
        "messages": [{**message, "content": message["content"].split("\n")} for message in messages],
        "schema": fields["schema"],
        "reply": {name: value for name, value in asdict(reply).items() if name in _REPLY_FIELDS}
        | {
            "finish": redact(reply.finish, secrets),
            "text": redact(reply.text, secrets).split("\n"),
            "thoughts": redact(reply.thoughts, secrets).split("\n"),
        },
    }


def _make_access_error(verb: str, path: Path, error: OSError) -> RunFolderError:
    reason = describe_write_error(path, error, "llm.cache_dir=<folder>")
    return RunFolderError(
        f"cannot {verb} the cache of replies {path}: {reason}. Choose another folder with llm.cache_dir=<folder>, or "
        "set llm.cache=off"
    )


def _parse_content(content: Any) -> ChatReply:
    """Return the reply in the JSON content of a file.

    Raises:
        ValueError: the file contains no reply, or one with impossible numbers.
    """
    if not isinstance(content, dict) or not isinstance(content.get("reply"), dict):
        raise ValueError("it holds no reply")
    fields = content["reply"]
    texts = {name: "\n".join(parse_value(fields.get(name), list[str], name)) for name in ("text", "thoughts")}
    reply = parse_record(ChatReply, {"error": "", "sample": None, **fields, **texts, "attempts": 0})
    if impossible_fields := find_impossible_fields(reply):
        raise ValueError(f"its {impossible_fields[0]} is {getattr(reply, impossible_fields[0])!r}")
    return reply


def compute_request_key(identity: Mapping[str, Any], request: ChatRequest, sample_seed: int | None = None) -> str:
    """Return the hexadecimal SHA-256 of model identity, messages, schema, repeat index, question, adapter and seed.

    Descriptive fields (`purpose`, names of prompts) and transport settings (time-outs, limits, prices) are excluded.

    Args:
        identity: name, server and sampling parameters of the model, as JSON-compatible values.
        request: the request.
        sample_seed: seed of the run, so that runs with other seeds get other replies; None: all runs share replies.
    """
    content = {
        "model": dict(identity),
        "messages": with_image_hashes(request.messages),
        "schema": request.schema,
        "repeat": request.repeat,
        "stream": sample_seed,
        **({"place": request.question_id} if request.question_id else {}),
        **({"adapter": request.adapter} if request.adapter else {}),
    }
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class RepeatCounter:
    """Counter of the repetitions of each request within a run.

    Equal requests must get independent replies, also from the cache. The counts are part of the run's state, so that a
    resumed run gets the same cached replies again.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def assign_repeats(self, requests: Sequence[ChatRequest]) -> list[ChatRequest]:
        """Add the number of earlier equal requests to `repeat` of each request without a `question_id`."""
        numbered_requests = []
        for request in requests:
            if request.question_id:
                numbered_requests.append(request)
                continue
            # 60 bits of the hash distinguish requests and fit into the int64 arrays of the state.
            identity = {"model": request.model} if request.model != CHOSEN_MODEL else {}
            request_hash = int(compute_request_key(identity, request)[:15], 16)
            numbered_requests.append(replace(request, repeat=request.repeat + self._counts[request_hash]))
            self._counts[request_hash] += 1
        return numbered_requests

    def state_dict(self) -> State:
        return {
            "questions": np.fromiter(self._counts.keys(), dtype=np.int64, count=len(self._counts)),
            "counts": np.fromiter(self._counts.values(), dtype=np.int64, count=len(self._counts)),
        }

    def load_state_dict(self, state: State) -> None:
        self._counts = Counter(dict(zip(state["questions"].tolist(), state["counts"].tolist(), strict=True)))
