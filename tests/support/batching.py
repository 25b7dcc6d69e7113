"""Clients of the fake batch servers, as `llmrl-train` would build them with llm.batch=true."""

from fake_batch_server import FakeBatchServer
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog
from llmrl.llms.retry import Retry
from models import chat_client, litellm_model

MODELS = {"openai": "gpt-4o", "anthropic": "anthropic/claude-haiku-4-5"}
PROVIDERS = tuple(MODELS)
KEY = "sk-canary-Zq3vXw81LkTn0PfYb7RdUe"
OPTIONS = {"openai": "gpt4o", "anthropic": "claude_haiku"}
QUICK = ("llm.batch=true", "llm.batch_gather=0.3", "llm.batch_poll=0.05", "llm.retry.initial_delay=0.01")


def echoing(provider, **extra):
    """Return a server that repeats what it is asked, and demands the key."""
    return FakeBatchServer(
        provider, **{"reply": lambda messages: f"re: {messages[-1]['content']}", "key": KEY, **extra}
    )


def make_provider(server, **extra):
    prices = {"input_price": 1.0, "output_price": 2.0, "max_tokens": 100}
    quick = {"batch": True, "batch_gather": 0.05, "batch_poll": 0.02, "timeout": 10.0, "temperature": None}
    settings = {**prices, **quick, "api_key_env": "BATCH_KEY", "api_base": server.url, **extra}
    return litellm_model(MODELS[server.provider], **settings)


def batched(server, folder, name="run", retries=3, provider=None, **policies):
    """Return a client whose requests go into batches; its log is in `folder` / `name`, its cache in `folder`."""
    ledger = CallLog(folder / name / "llm_calls.jsonl")
    retry = Retry(retries, initial_delay=0.01)
    model = make_provider(server, **(provider or {}))
    return chat_client(model, Cache(folder / "cache"), ledger, **{"retry": retry, "stream": 0, **policies})


def pending_batches(folder):
    """Files beside the cache that say which batches are under way."""
    return sorted((folder / "cache" / "batches").glob("*.json"))


def options(server, root):
    """Return overrides that choose the server for a run."""
    address = (f"llm.api_base={server.url}", f"llm.api_key_env={server.provider.upper()}_API_KEY")
    return (f"llm={OPTIONS[server.provider]}", *address, f"output_root={root}", *QUICK)
