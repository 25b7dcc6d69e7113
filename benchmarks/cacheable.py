"""Share of each request to a language model that a provider could have cached before, by family of prompts.

    python benchmarks/cacheable.py [--families principal search planner player]

Each family plays a short run with the scripted model, and its recorded requests are compared with those before them.
What is shared is the longest common beginning of two requests, as text in the order it is sent. By the providers'
published rules (pages of September 2026) so much of that is kept:

* OpenAI: beginnings of at least 1,024 tokens, in steps of 128;
* Anthropic: up to marks (`cache_control`), which stand at the ends of messages and of blocks of a long question: at
  least 1,024 tokens (`Claude`), and of some models, Haiku 4.5 and Opus 4.5 among them, at least 4,096 (`Claude 4k`);
* Gemini: at least 2,048 tokens;
* DeepSeek: in steps of 64 tokens.

A request is compared with all that were sent before it, as providers do for minutes. Tokens are estimated at four
characters each. Nothing is sent anywhere.
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
MAX_EARLIER_REQUESTS = 64
"""Maximum number of earlier requests that a request is compared with."""


def read_requests(family: str) -> list[list[str]]:
    """Return the texts of the messages of each request of a family's run, in the order in which they were sent."""
    with tempfile.TemporaryDirectory() as folder:
        train = Path(sys.executable).with_name("llmrl-train")
        command = [str(train), *RUNS[family], "hardware=cpu", f"output_root={folder}"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        [calls] = Path(folder).glob("*/*/s0/llm_calls.jsonl")
        lines = list(read_calls(calls))
    return [[f"{m['role']}\n{_text(m['content'])}\n" for m in line["messages"]] for line in lines if "messages" in line]


def _text(content: str | Sequence[str]) -> str:
    return content if isinstance(content, str) else "\n".join(map(str, content))


def count_shared_tokens(request: Sequence[str], earlier: Sequence[str]) -> tuple[int, int]:
    """Return the number of tokens in the common prefix, and in its complete blocks, which Claude caches."""
    a, b = "".join(request), "".join(earlier)
    low, high = 0, min(len(a), len(b))
    while low < high:  # the longest equal beginning
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    # All blocks of the earlier request but its last one: there is a mark at the end of what goes before that.
    blocks, earlier_blocks = (list(itertools.chain(*map(split_blocks, messages))) for messages in (request, earlier))
    pairs = zip(blocks, earlier_blocks[:-1], strict=False)
    in_blocks = sum(len(block) for block, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return low // CHARACTERS_PER_TOKEN, in_blocks // CHARACTERS_PER_TOKEN


RULES: dict[str, Callable[[int, int], int]] = {
    "possible": lambda prefix, in_blocks: prefix,
    "OpenAI": lambda prefix, in_blocks: prefix // 128 * 128 if prefix >= 1024 else 0,
    "Claude": lambda prefix, in_blocks: in_blocks if in_blocks >= 1024 else 0,
    "Claude 4k": lambda prefix, in_blocks: in_blocks if in_blocks >= 4096 else 0,
    "Gemini": lambda prefix, in_blocks: prefix if prefix >= 2048 else 0,
    "DeepSeek": lambda prefix, in_blocks: prefix // 64 * 64,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=RUNS, default=list(RUNS))
    print(f"{'family':12}{'requests':>9}{'tokens':>10}" + "".join(f"{name:>11}" for name in RULES))
    for family in parser.parse_args().families:
        requests = read_requests(family)
        tokens = sum(len("".join(each)) // CHARACTERS_PER_TOKEN for each in requests)
        kept = dict.fromkeys(RULES, 0)
        for i, each in enumerate(requests):
            before = [count_shared_tokens(each, other) for other in requests[max(0, i - MAX_EARLIER_REQUESTS) : i]]
            for name, rule in RULES.items():
                kept[name] += max((rule(*pair) for pair in before), default=0)
        shares = "".join(f"{100 * kept[name] / tokens:>10.0f}%" for name in RULES)
        print(f"{family:12}{len(requests):>9}{tokens:>10,}{shares}", flush=True)


if __name__ == "__main__":
    main()
