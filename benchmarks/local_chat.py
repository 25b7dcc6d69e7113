"""Batch dependence, random number cost, prefix cache and continuous batching of `llm=local_chat`.

* Batch dependence: 32 questions in one batch and one by one, with a random model. Prints the largest difference between
  scores of the next token, and the number of replies that differ. Scores of random models have smaller gaps than those
  of trained models, so this is an upper bound.
* Prefix cache: conversations of several games, whose prompts contain all previous turns. Prints seconds per turn with
  and without cached keys and values of previous turns (`llm.prefix_cache_tokens`).
* Continuous batching: more prompts than fit into `llm.batch_tokens`, with replies of various lengths. Prints seconds if
  waiting prompts replace finished replies, and if batches are processed sequentially.
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


def make_questions() -> list[ChatRequest]:
    """Return questions with random words and lengths."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(SHORTEST, LONGEST + 1, QUESTIONS)
    texts = [" ".join(f"w{i}" for i in rng.integers(VOCABULARY - 3, size=n)) for n in lengths]
    return [ChatRequest(({"role": "user", "content": text},)) for text in texts]


@torch.no_grad()
def measure_score_difference(chat: LocalChat) -> tuple[float, float]:
    """Return the largest difference between next-token scores in a batch and one by one, and their deviation.

    Returns:
        Maximum absolute difference, and standard deviation of all scores.
    """
    model, prompts = chat.module, [chat.encode(request.messages) for request in make_questions()]
    ids, mask = pad_left(prompts, 0)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    batch_scores = model(ids, attention_mask=mask, position_ids=positions).logits[:, -1].float()
    single_scores = torch.cat([model(torch.tensor([prompt])).logits[:, -1].float() for prompt in prompts])
    return float((batch_scores - single_scores).abs().max()), float(single_scores.std())


def sample_replies(folder: Path, dtype: str, temperature: float, batch_tokens: int) -> list[ChatReply]:
    """Return the replies to all questions."""
    chat = build_model(
        "local_chat",
        model=str(folder),
        seeds=Seeds(0),
        dtype=dtype,
        temperature=temperature,
        max_tokens=REPLY,
        batch_tokens=batch_tokens,
    )
    return chat.complete(make_questions())


def time_turns(folder: Path, prefix_cache_tokens: int) -> list[float]:
    """Return the duration of each turn of conversations in `GAMES` games, seconds, [TURNS]."""
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
        replies = chat.complete([ChatRequest(tuple(messages)) for messages in conversations])
        seconds.append(time.perf_counter() - start)
        for messages, reply in zip(conversations, replies, strict=True):
            messages.append({"role": "assistant", "content": reply.text})
    return seconds


def time_batching(folder: Path) -> tuple[float, float]:
    """Return the duration of sequential and of continuous batching, seconds, if `ROWS` prompts fit into a batch."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(END_TOKENS)}))
    max_row_tokens = SHORTEST + LONGEST_REPLY + 8
    chat = build_model(
        "local_chat",
        model=str(folder),
        seeds=Seeds(0),
        dtype="float32",
        max_tokens=LONGEST_REPLY,
        batch_tokens=ROWS * max_row_tokens,
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
    sequential_end = time.perf_counter()
    chat.complete(requests)
    return sequential_end - start, time.perf_counter() - sequential_end


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_tokenizer(folder, VOCABULARY, TEMPLATE)
        torch.manual_seed(0)
        save_llama(folder, VOCABULARY, WIDTH, 4 * WIDTH, LAYERS, weight_std=0.08)
        parameters = build_model("local_chat", model=str(folder)).module.num_parameters()
        print(f"{parameters / 1e6:.1f} M random parameters, torch {torch.__version__}, {QUESTIONS} questions")
        for dtype in ("float32", "bfloat16"):
            difference, deviation = measure_score_difference(build_model("local_chat", model=str(folder), dtype=dtype))
            line = f"{dtype:8}  scores (standard deviation {deviation:.2f}) differ by at most {difference:.2g}"
            for temperature in (0.0, 1.0):
                batch, single = (sample_replies(folder, dtype, temperature, tokens) for tokens in (10**6, 1))
                n_different = sum(reply.text != other.text for reply, other in zip(batch, single, strict=True))
                line += f"   temperature {temperature:g}: {n_different} of {QUESTIONS} replies differ"
            print(line)
        without_cache, with_cache = time_turns(folder, 0), time_turns(folder, 100_000)
        for turn in (3, 6, 12):
            pair = without_cache[turn - 1], with_cache[turn - 1]
            print(f"turn {turn:2} of {GAMES} conversations: {pair[0]:.2f} s, with cache {pair[1]:.2f} s", end="")
            print(f" ({pair[0] / pair[1]:.1f} times faster)")
        sequential, continuous = time_batching(folder)
        print(f"{PROMPTS} prompts, {ROWS} at once: sequential batches {sequential:.1f} s, ", end="")
        print(f"continuous {continuous:.1f} s ({sequential / continuous:.2f} times faster)")
    noise, scores = GumbelNoise([np.random.default_rng(0)]), torch.zeros(1, BIG_VOCABULARY)
    start = time.perf_counter()
    for _ in range(DRAWS):
        noise(torch.zeros(1, 1), scores)
    milliseconds = (time.perf_counter() - start) / DRAWS * 1e3
    print(f"random numbers: {milliseconds:.2f} ms per token of a reply at a vocabulary of {BIG_VOCABULARY:,}")


if __name__ == "__main__":
    main()
