"""The address of a request: a hash over everything that can change its answer, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from llmrl.core.protocols import ChatModel
from llmrl.core.records import ChatRequest


def request_key(identity: Mapping[str, Any], request: ChatRequest, repeat: int = 0) -> str:
    """SHA-256, in hex, of model identity, messages, schema and repeat index.

    Left out is what serves only readers (`purpose`) and what changes how, but not what, is asked (timeouts, prices).

    Args:
        identity: what the model is: its name, server and sampling parameters, as JSON-compatible values.
        request: the question.
        repeat: 0 for the first time a question is asked, 1 for an independent second answer to the same question, ...
    """
    content = {
        "model": dict(identity),
        "messages": list(request.messages),
        "schema": request.schema,
        "repeat": repeat,
    }
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def identity_of(model: ChatModel) -> dict[str, Any]:
    """What `model` says of itself in an attribute `identity`; its label where it has none."""
    identity = getattr(model, "identity", None)
    return dict(identity) if isinstance(identity, Mapping) else {"label": model.label}
