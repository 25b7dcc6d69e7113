"""Share of input tokens that the prompt caches of providers can serve, by type of prompt.

    python benchmarks/cacheable.py [--families principal search planner player]

A short run with the scripted model is executed for each type of prompt. Each recorded request is compared with the
requests before it: the cacheable part is the longest common prefix, in the order in which text is sent. Rules of
providers (documentation of September 2026):

* OpenAI: prefixes of at least 1,024 tokens, in multiples of 128;
* Anthropic: prefixes up to a cache breakpoint (`cache_control`). llmrl sets breakpoints at the ends of messages and of
  blocks of a long question. The minimum is 1,024 tokens (`Claude`), or 4,096 (`Claude 4k`) for some models such as
  Haiku 4.5 and Opus 4.5;
* Gemini: prefixes of at least 2,048 tokens;
* DeepSeek: multiples of 64 tokens.

Providers keep prefixes for several minutes; here they do not expire. The number of tokens is estimated as a quarter of
the number of characters. No requests are sent to providers.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from llmrl.llms.call_log import read_calls
from llmrl.llms.litellm_chat import split_blocks

RUNS = {
    "principal": ("env=escape_room", "principal=llm", "llm=scripted", "design.steps=40", "design.references=0"),
    "search": ("env=cartpole", "agent=linear", "principal=llm", "llm=scripted", "search.iterations=40"),
    "planner": ("experiment=teacher/rooms", "treatment=taught", "teacher=llm", "llm=scripted", "learn.env_steps=4000"),
    "player": ("env=taxi", "agent=llm_player", "llm=scripted", "play.episodes=2", "env.horizon=100"),
}
CHARACTERS_PER_TOKEN = 4
"""Assumed number of characters of a token."""
MAX_PREVIOUS_REQUESTS = 64
"""Number of previous requests that a request is compared with."""


def read_requests(family: str) -> list[list[str]]:
    """Run an experiment of `RUNS`, and return the message texts of each request in the order of sending."""
    with tempfile.TemporaryDirectory() as folder:
        train = Path(sys.executable).with_name("llmrl-train")
        command = [str(train), *RUNS[family], "hardware=cpu", f"output_root={folder}"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        [calls] = Path(folder).glob("*/*/s0/llm_calls.jsonl")
        rows = list(read_calls(calls))
    return [
        [f"{message['role']}\n{_join_content(message['content'])}\n" for message in row["messages"]]
        for row in rows
        if "messages" in row
    ]


def _join_content(content: str | Sequence[str]) -> str:
    return content if isinstance(content, str) else "\n".join(map(str, content))


def count_shared_tokens(request: Sequence[str], previous: Sequence[str]) -> tuple[int, int]:
    """Return the number of tokens in the common prefix, and in its complete blocks, which Claude caches."""
    text, previous_text = "".join(request), "".join(previous)
    low, high = 0, min(len(text), len(previous_text))
    while low < high:  # binary search for the length of the common prefix
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text[:middle] == previous_text[:middle] else (low, middle - 1)
    # The last cache breakpoint of a request precedes its last block.
    blocks, previous_blocks = (list(itertools.chain(*map(split_blocks, messages))) for messages in (request, previous))
    pairs = zip(blocks, previous_blocks[:-1], strict=False)
    block_length = sum(len(block) for block, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return low // CHARACTERS_PER_TOKEN, block_length // CHARACTERS_PER_TOKEN


RULES: dict[str, Callable[[int, int], int]] = {
    "possible": lambda prefix, blocks: prefix,
    "OpenAI": lambda prefix, blocks: prefix // 128 * 128 if prefix >= 1024 else 0,
    "Claude": lambda prefix, blocks: blocks if blocks >= 1024 else 0,
    "Claude 4k": lambda prefix, blocks: blocks if blocks >= 4096 else 0,
    "Gemini": lambda prefix, blocks: prefix if prefix >= 2048 else 0,
    "DeepSeek": lambda prefix, blocks: prefix // 64 * 64,
}
"""Functions of the numbers of tokens in the common prefix and in its complete blocks; they return cached tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=RUNS, default=list(RUNS))
    print(f"{'family':12}{'requests':>9}{'tokens':>10}" + "".join(f"{name:>11}" for name in RULES))
    for family in parser.parse_args().families:
        requests = read_requests(family)
        tokens = sum(len("".join(request)) // CHARACTERS_PER_TOKEN for request in requests)
        cached_tokens = dict.fromkeys(RULES, 0)
        for i, request in enumerate(requests):
            window = requests[max(0, i - MAX_PREVIOUS_REQUESTS) : i]
            shared_tokens = [count_shared_tokens(request, previous) for previous in window]
            for name, rule in RULES.items():
                cached_tokens[name] += max((rule(*counts) for counts in shared_tokens), default=0)
        shares = "".join(f"{100 * cached_tokens[name] / tokens:>10.0f}%" for name in RULES)
        print(f"{family:12}{len(requests):>9}{tokens:>10,}{shares}", flush=True)


if __name__ == "__main__":
    main()
