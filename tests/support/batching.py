"""Clients of the fake batch servers, as `llmrl-train` would build them with llm.batch=true."""

from fake_batch_server import FakeBatchServer
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog
from llmrl.llms.client import ChatClient
from llmrl.llms.litellm_chat import LiteLLMChat
from llmrl.llms.retry import Retry

MODELS = {"openai": "gpt-4o", "anthropic": "anthropic/claude-haiku-4-5"}
PROVIDERS = tuple(MODELS)
KEY = "sk-canary-Zq3vXw81LkTn0PfYb7RdUe"
OPTIONS = {"openai": "gpt4o", "anthropic": "claude_haiku"}
QUICK = ("llm.batch=true", "llm.batch_gather=0.3", "llm.batch_poll=0.05", "llm.retry.first_delay=0.01")


def echoing(provider, **more):
    """A server that repeats what it is asked, and demands the key."""
    return FakeBatchServer(provider, **{"reply": lambda messages: f"re: {messages[-1]['content']}", "key": KEY, **more})


def provider_of(server, **more):
    prices = {"input_price": 1.0, "output_price": 2.0, "max_tokens": 100}
    quick = {"batch": True, "batch_gather": 0.05, "batch_poll": 0.02, "timeout": 10.0, "temperature": None}
    settings = {**prices, **quick, "api_key_env": "BATCH_KEY", "api_base": server.url, **more}
    return LiteLLMChat(MODELS[server.provider], **settings)


def batched(server, folder, name="run", retries=3, provider=None, **policies):
    """A client whose requests go into batches; its log is in `folder` / `name`, its cache in `folder`."""
    ledger = CallLog(folder / name / "llm_calls.jsonl")
    retry = Retry(retries, first_delay=0.01)
    model = provider_of(server, **(provider or {}))
    return ChatClient(model, Cache(folder / "cache"), ledger, **{"retry": retry, "stream": 0, **policies})


def under_way(folder):
    """Files beside the cache that say which batches are under way."""
    return sorted((folder / "cache" / "batches").glob("*.json"))


def options(server, root):
    """Overrides that choose the server for a run."""
    address = (f"llm.api_base={server.url}", f"llm.api_key_env={server.provider.upper()}_API_KEY")
    return (f"llm={OPTIONS[server.provider]}", *address, f"output_root={root}", *QUICK)
