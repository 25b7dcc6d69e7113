"""Dependence of a reply of `llm=local_chat` on its batch, the cost of its random numbers, and time of conversations.

The same 32 questions in one batch and one by one, on a random model: by how much the scores of the next token differ,
and how many replies do. Random models have closer calls between tokens than trained ones, so this is the high end.

Conversations of several games side by side, whose prompts contain all earlier turns: seconds of a turn with and without
the cached keys and values of earlier turns (`llm.prefix_cache_tokens`).

More prompts than `llm.batch_tokens` admits, with replies of different lengths: seconds if waiting prompts take the
places of finished replies, and if each batch is finished before the next.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from random_models import save_llama, save_tokenizer

from llmrl.core.records import ChatReply, ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.by_name import build_model
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.generation import GumbelNoise, pad_left, plan_batches

VOCABULARY, WIDTH, LAYERS = 32_000, 256, 6
QUESTIONS, SHORTEST, LONGEST, REPLY = 32, 20, 128, 48
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
BIG_VOCABULARY, DRAWS = 152_000, 50
GAMES, TURNS, WORDS = 8, 12, 100
PROMPTS, ROWS, LONGEST_REPLY, END_TOKENS = 96, 16, 128, range(5, VOCABULARY, 24)


def questions() -> list[ChatRequest]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(SHORTEST, LONGEST + 1, QUESTIONS)
    texts = [" ".join(f"w{i}" for i in rng.integers(VOCABULARY - 3, size=n)) for n in lengths]
    return [ChatRequest(({"role": "user", "content": text},)) for text in texts]


@torch.no_grad()
def score_difference(chat: LocalChat) -> tuple[float, float]:
    """Return the largest difference between next-token scores in a batch and alone, and their standard deviation."""
    model, prompts = chat.module, [chat.encode(request.messages) for request in questions()]
    ids, mask = pad_left(prompts, 0)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    together = model(ids, attention_mask=mask, position_ids=positions).logits[:, -1].float()
    alone = torch.cat([model(torch.tensor([prompt])).logits[:, -1].float() for prompt in prompts])
    return float((together - alone).abs().max()), float(alone.std())


def replies(folder: Path, dtype: str, temperature: float, batch_tokens: int) -> list[ChatReply]:
    chat = build_model(
        "local_chat",
        model=str(folder),
        seeds=Seeds(0),
        dtype=dtype,
        temperature=temperature,
        max_tokens=REPLY,
        batch_tokens=batch_tokens,
    )
    return chat.complete(questions())


def seconds_per_turn(folder: Path, prefix_cache_tokens: int) -> list[float]:
    """Return the seconds of each turn of conversations of `GAMES` games, [TURNS]."""
    chat = build_model(
        "local_chat",
        model=str(folder),
        seeds=Seeds(0),
        dtype="float32",
        max_tokens=8,
        prefix_cache_tokens=prefix_cache_tokens,
    )
    rng = np.random.default_rng(0)
    conversations: list[list[dict[str, str]]] = [[] for _ in range(GAMES)]
    seconds = []
    for _ in range(TURNS):
        for messages in conversations:
            text = " ".join(f"w{i}" for i in rng.integers(VOCABULARY - 3, size=WORDS))
            messages.append({"role": "user", "content": text})
        start = time.perf_counter()
        answers = chat.complete([ChatRequest(tuple(messages)) for messages in conversations])
        seconds.append(time.perf_counter() - start)
        for messages, answer in zip(conversations, answers, strict=True):
            messages.append({"role": "assistant", "content": answer.text})
    return seconds


def seconds_with_waiting_prompts(folder: Path) -> tuple[float, float]:
    """Return the seconds of prompts of which `ROWS` fit into a batch: one batch after another, and continuously."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(END_TOKENS)}))
    longest = SHORTEST + LONGEST_REPLY + 8
    chat = build_model(
        "local_chat",
        model=str(folder),
        seeds=Seeds(0),
        dtype="float32",
        max_tokens=LONGEST_REPLY,
        batch_tokens=ROWS * longest,
    )
    rng = np.random.default_rng(0)
    texts = (" ".join(f"w{i}" for i in rng.integers(VOCABULARY - 3, size=SHORTEST)) for _ in range(PROMPTS))
    requests = [ChatRequest(({"role": "user", "content": text},)) for text in texts]
    chat.complete(requests[:1])
    lengths = [len(chat.encode(request.messages)) for request in requests]
    batches = plan_batches(lengths, LONGEST_REPLY, chat.settings.batch_tokens)
    start = time.perf_counter()
    for batch in batches:
        chat.complete([requests[i] for i in batch])
    middle = time.perf_counter()
    chat.complete(requests)
    return middle - start, time.perf_counter() - middle


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_tokenizer(folder, VOCABULARY, TEMPLATE)
        torch.manual_seed(0)
        save_llama(folder, VOCABULARY, WIDTH, 4 * WIDTH, LAYERS, spread=0.08)
        parameters = build_model("local_chat", model=str(folder)).module.num_parameters()
        print(f"{parameters / 1e6:.1f} M random parameters, torch {torch.__version__}, {QUESTIONS} questions")
        for dtype in ("float32", "bfloat16"):
            difference, spread = score_difference(build_model("local_chat", model=str(folder), dtype=dtype))
            line = f"{dtype:8}  scores (standard deviation {spread:.2f}) differ by at most {difference:.2g}"
            for temperature in (0.0, 1.0):
                batch, alone = (replies(folder, dtype, temperature, tokens) for tokens in (10**6, 1))
                differ = sum(a.text != b.text for a, b in zip(batch, alone, strict=True))
                line += f"   temperature {temperature:g}: {differ} of {QUESTIONS} replies differ"
            print(line)
        without_cache, with_cache = seconds_per_turn(folder, 0), seconds_per_turn(folder, 100_000)
        for turn in (3, 6, 12):
            pair = without_cache[turn - 1], with_cache[turn - 1]
            print(f"turn {turn:2} of {GAMES} conversations: {pair[0]:.2f} s, with cache {pair[1]:.2f} s", end="")
            print(f" ({pair[0] / pair[1]:.1f} times faster)")
        separate, continuous = seconds_with_waiting_prompts(folder)
        print(f"{PROMPTS} prompts, {ROWS} at once: batches in sequence {separate:.1f} s, ", end="")
        print(f"continuous {continuous:.1f} s ({separate / continuous:.2f} times faster)")
    noise, scores = GumbelNoise([np.random.default_rng(0)]), torch.zeros(1, BIG_VOCABULARY)
    start = time.perf_counter()
    for _ in range(DRAWS):
        noise(torch.zeros(1, 1), scores)
    milliseconds = (time.perf_counter() - start) / DRAWS * 1e3
    print(f"random numbers: {milliseconds:.2f} ms per token of a reply at a vocabulary of {BIG_VOCABULARY:,}")


if __name__ == "__main__":
    main()
