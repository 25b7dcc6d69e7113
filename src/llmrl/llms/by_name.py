"""A chat model by the name of its option in conf/llm, for programs of one's own: without Hydra and without a run."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from llmrl.core import option_files
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.trust import NOBODY
from llmrl.llms.cache import Cache
from llmrl.llms.client import ChatClient
from llmrl.llms.ledger import Ledger
from llmrl.llms.provider import Provider


def chat_model(
    option: str, *, seed: int = 0, cache: Path | None = None, ledger: Path | None = None, **settings: Any
) -> ChatClient:
    """The model of `llm=<option>`, with retries and limits as by default.

    Args:
        option: file in conf/llm, e.g. `gpt4o`, `ollama`, `scripted`.
        seed: of models with a random stream of their own.
        cache: folder of kept replies; None: none are kept.
        ledger: file to which every call is appended; None: nowhere.
        settings: in place of the option's own, e.g. `temperature=0.0`.

    Raises:
        ConfigError: no such option, it is no chat model, or it has no such setting, or needs one that is not given.
        LLMError: it could never answer (missing key or package, server down).
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
    # How a model is asked (cache, limits, ...) is this function's business.
    node = {key: value for key, value in node.items() if key in takes or key in settings}
    # Services that only a run has.
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
        Ledger(ledger.expanduser()) if ledger is not None else None,
        stream=seed,
    )
    client.check()
    return client
