"""Validation of requests against the types of the providers' SDKs, which are generated from API schemas.

No provider has answered: this shows that fields, their places and their values are known there, not that a model takes
all of them.
"""

import collections.abc
import importlib.util
import itertools
import json
import types
import typing

import pytest
import typing_extensions

from hosted_questions import FRAME, QUESTIONS
from llmrl.core.option_files import load_options
from llmrl.core.records import ChatRequest
from llmrl.llms.by_name import chat_model
from llmrl.llms.images import encode_frame
from llmrl.llms.litellm_chat import _import_litellm
from some import mark_long_except_every

packages = ("litellm", "openai", "anthropic", "google.genai")


def _is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(_is_installed, packages)), reason="the providers' SDKs are of the extra dev"),
]

HOSTED_MODELS = [
    name for name, fields in load_options("llm").items() if str(fields["_target_"]).endswith("LiteLLMChat")
]


def request_body(option, question, monkeypatch):
    """Return the body that litellm would send for an option's model."""
    _import_litellm()
    from litellm.types.utils import CallTypes
    from litellm.utils import return_raw_request

    monkeypatch.setenv(load_options("llm")[option]["api_key_env"], "sk-nothing")
    turns, form = QUESTIONS[question]
    messages = [{"role": role, "content": content} for role, content in turns]
    if question == "seeing player":
        messages[-1]["images"] = [encode_frame(FRAME, 96)] * 2
    request = ChatRequest(tuple(messages), form)
    client, keyword_arguments = chat_model(option), {}
    with monkeypatch.context() as patched:
        patched.setattr("litellm.completion", lambda **arguments: keyword_arguments.update(arguments) or 1 / 0)
        with pytest.raises(Exception, match="ZeroDivisionError"):
            client.provider.complete([request])
    del keyword_arguments["api_key"]
    raw = return_raw_request(CallTypes.completion, {k: v for k, v in keyword_arguments.items() if "retries" not in k})
    assert raw["error"] is None, raw
    return raw["raw_request_body"]


def fault(kind, value, place="body"):
    """Validate `value` against a type of an SDK and return the first error, or None.

    Unknown fields are errors.

    Implemented here because pydantic parses lists in these types as iterators and fails at unions of them.
    """
    if typing_extensions.is_typeddict(kind):
        fields = typing_extensions.get_type_hints(kind, include_extras=True)
        # What Python says of it (`__required_keys__`) is wrong where annotations are texts.
        required = {name for name, inner in fields.items() if typing.get_origin(inner) is typing.Required}
        if not isinstance(value, dict) or (odd := set(value) - set(fields) or required - set(value)):
            return f"{place} is no {kind.__name__}" + (f": {odd}" if isinstance(value, dict) else "")
        return _first(fault(fields[name], part, f"{place}.{name}") for name, part in value.items())
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Required, typing.NotRequired, typing.Annotated):
        return fault(inner[0], value, place)
    if origin in (typing.Union, types.UnionType):
        faults = [fault(kind, value, place) for kind in inner]
        return None if None in faults else max(faults, key=len)
    if origin is typing.Literal:
        return None if value in inner else f"{place}={value!r} is none of {inner}"
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        if not isinstance(value, list):
            return f"{place} is no list"
        return _first(fault(inner[0], element, f"{place}[{i}]") for i, element in enumerate(value))
    if origin in (dict, collections.abc.Mapping):
        return None if isinstance(value, dict) else f"{place} is no object"
    if kind is float:
        kind = (int, float)
    plain = (isinstance(kind, type) and kind in (str, int, bool, type(None))) or isinstance(kind, tuple)
    return None if not plain or isinstance(value, kind) else f"{place}={value!r} is no {kind}"


def _first(faults):
    return next((fault for fault in faults if fault is not None), None)


@pytest.mark.parametrize(("option", "question"), mark_long_except_every(3, itertools.product(HOSTED_MODELS, QUESTIONS)))
def test_fields_exist_in_provider_types(option, question, monkeypatch):
    body = request_body(option, question, monkeypatch)
    provider = load_options("llm")[option]["model"].partition("/")[0]
    if provider == "anthropic":
        from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming

        assert fault(MessageCreateParamsNonStreaming, body) is None
        parts = [*body.get("system", []), *(part for message in body["messages"] for part in message["content"])]
        assert sum("cache_control" in part for part in parts) <= 4
    elif provider == "gemini":
        from google.genai import types as gemini

        assert set(body) <= {"contents", "system_instruction", "generationConfig"}
        for content in [*body["contents"], body.get("system_instruction", {"parts": []})]:
            gemini.Content.model_validate(content)  # refuses what it does not know
        gemini.GenerationConfig.model_validate(body["generationConfig"])
    else:  # OpenAI's own, and those that speak its protocol
        from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

        if not body.get("extra_body", True):
            del body["extra_body"]  # its client's argument, which is no field
        assert fault(CompletionCreateParamsNonStreaming, body) is None


def _texts(value):
    """Return all strings in a request."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _texts(child)


@pytest.mark.parametrize("option", HOSTED_MODELS)
def test_images_arrive_intact(option, monkeypatch):
    file = encode_frame(FRAME, 96).partition(",")[2]
    body = request_body(option, "seeing player", monkeypatch)
    assert sum(text.endswith(file) for text in _texts(body)) == 2
    assert chat_model(option).accepts_images()


def test_invalid_fields_are_detected():
    from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming as Claude
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as OpenAI

    message = {"role": "user", "content": "hello"}
    for kind, extra in ((OpenAI, {}), (Claude, {"max_tokens": 5})):
        body = {"model": "m", "messages": [message], **extra}
        assert fault(kind, body) is None
        assert "'sampling_seed'" in fault(kind, body | {"sampling_seed": 1})
        assert fault(kind, {"model": "m"}) and fault(kind, body | {"temperature": "high"})
        assert fault(kind, body | {"messages": [{"role": "robot", "content": "hello"}]})


STRICT = {"type", "properties", "required", "additionalProperties", "items", "enum", "title", "description", "$ref"}
"""Words of JSON schemas that strict structured output of all three providers takes, by their documentation."""


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("option", ["gpt6_sol", "claude_haiku", "gemini_flash"])
def test_schemas_respect_strict_output(option, question, monkeypatch):
    body = request_body(option, question, monkeypatch)
    schema = next(_schemas(body))
    assert schema["type"] == "object" and set(schema["required"]) == set(QUESTIONS[question][1]["properties"])
    _strict({name: value for name, value in schema.items() if name != "$defs"})
    for part in schema.get("$defs", {}).values():
        _strict(part)


def _schemas(value):
    """Return the schemas in a request of any provider."""
    if isinstance(value, dict):
        if "properties" in value:
            yield value
        for child in value.values():
            yield from _schemas(child)


def _strict(part):
    assert set(part) <= STRICT, json.dumps(part)
    if part.get("type") == "object":
        assert part["additionalProperties"] is False and part["required"] == list(part["properties"])
        for child in part["properties"].values():
            _strict(child)
    if "items" in part:
        _strict(part["items"])
