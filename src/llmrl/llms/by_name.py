"""Chat models by the name of their option in conf/llm, for user programs without Hydra and without a run."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from llmrl.core import option_files
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.trust import NOBODY
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog
from llmrl.llms.client import ChatClient
from llmrl.llms.provider import Provider


def chat_model(
    option: str, *, seed: int = 0, cache: Path | None = None, ledger: Path | None = None, **settings: Any
) -> ChatClient:
    """Return a client of the model of `llm=<option>`, with default retries and limits.

    Args:
        option: file in conf/llm, e.g. `gpt4o`, `ollama`, `scripted`.
        seed: seed of local random streams, and of the sample of cached replies.
        cache: folder of kept replies; None: none are kept.
        ledger: file to which every call is appended; None: no file.
        settings: settings that replace the option's own, e.g. `temperature=0.0`.

    Raises:
        ConfigError: no such option, it is no chat model, it has no such setting, or a required setting is missing.
        LLMError: the model could never answer (missing key or package, server down).
    """
    known = option_files.names("llm")
    if option not in known:
        raise ConfigError(f"there is no llm={option}; there are {', '.join(known)}")
    node = {**option_files.option("llm", option), **settings}
    target = node.pop("_target_", None)
    if target is None:
        raise ConfigError(f"llm={option} is no model")
    kind = NOBODY.locate(target, f"llm={option}: _target_")
    if not (inspect.isclass(kind) and issubclass(kind, Provider)):
        raise ConfigError(f"llm={option} scores texts and does not chat")
    takes = inspect.signature(kind).parameters
    # Settings of the client (cache, limits, ...) are arguments of this function or defaults.
    node = {key: value for key, value in node.items() if key in takes or key in settings}
    # Services that a run would provide.
    offered = {"seeds": Seeds(seed).child("llm"), "device": "cpu"}
    if unknown := [key for key in node if key not in takes]:
        has = ", ".join(key for key in takes if key not in offered)
        raise ConfigError(f"llm={option} has no setting {unknown[0]!r}; it has {has}")
    if missing := [key for key, value in node.items() if value == "???"]:
        raise ConfigError(f"llm={option} needs {missing[0]}=...")
    node |= {key: value for key, value in offered.items() if key in takes and key not in node}
    client = ChatClient(
        kind(**node),
        Cache(cache.expanduser(), "readwrite") if cache is not None else None,
        CallLog(ledger.expanduser()) if ledger is not None else None,
        stream=seed,
    )
    client.check()
    return client
