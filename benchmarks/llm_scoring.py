"""Seconds to score candidates after prompts: the local scorers against plain passes of the same model.

Random weights in the shape of Flan-T5-small and of a Llama of like size; prompts of 230 tokens. The three ways are
timed in turn, in one run, and the best of several repeats counts. `one by one` runs the whole model on every (prompt,
candidate) pair; `batched` runs it once per prompt on all its candidates as a batch. Both compute logits only where they
are needed, and both go back after every pass, which keeps memory small; the scorer goes back once. Targets on a CPU,
forward, against one by one: 4 with 6 candidates, 15 with 40.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from random_models import save_llama, save_t5, save_tokenizer

from llmrl.llms.by_name import build_model
from llmrl.llms.local.candidate_scorer import LocalScorer

VOCABULARY = 32128
PROMPT_TOKENS = 230


def texts(count: int, tokens: int, generator: torch.Generator) -> list[str]:
    words = torch.randint(VOCABULARY - 3, (count, tokens), generator=generator).tolist()
    return [" ".join(f"w{i}" for i in row) for row in words]


def candidates(count: int, generator: torch.Generator) -> list[str]:
    """Return 6 texts of 3 tokens; 40 of 4 tokens, 4 first words with 10 continuations each, like actions on objects."""
    if count == 6:
        return texts(6, 3, generator)
    ends = texts(10, 3, generator)
    return [f"{first} {end}" for first in texts(4, 1, generator) for end in ends]


class Plain:
    """Scores by plain passes, each of one prompt with `together` of its candidates, which have equal lengths."""

    def __init__(self, scorer: LocalScorer, batch_size: int | None) -> None:
        self.module: Any = scorer.module
        self.tokenizer, self.seq2seq, self.together = scorer._tokenizer, scorer.kind == "seq2seq", batch_size
        self.tokens = 0

    def __call__(self, prompts: Sequence[str], texts: Sequence[str], backward: bool = False) -> torch.Tensor:
        """Return scores [n_prompts, n_texts]; with `backward`, also compute the gradients of their sum."""
        self.tokens = 0
        size = self.together or len(texts)
        rows = []
        for prompt in prompts:
            for i in range(0, len(texts), size):
                rows.append(self.group(prompt, list(texts[i : i + size])))
                if backward:
                    rows[-1].sum().backward()
        return torch.cat([row.detach() for row in rows]).view(len(prompts), len(texts))

    def group(self, prompt: str, group: list[str]) -> torch.Tensor:
        ids = torch.tensor(self.tokenizer([prompt] * len(group))["input_ids"], device=self.module.device)
        target = torch.tensor(self.tokenizer(group)["input_ids"], device=self.module.device)
        if self.seq2seq:
            inputs = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], dim=1)
            self.tokens += ids.numel() + inputs.numel()
            logits = self.module(input_ids=ids, decoder_input_ids=inputs, use_cache=False).logits
        else:
            inputs = torch.cat([ids, target[:, :-1]], dim=1)
            self.tokens += inputs.numel()
            logits = self.module(input_ids=inputs, logits_to_keep=target.shape[1], use_cache=False).logits
        return torch.log_softmax(logits, -1, torch.float32).gather(2, target[..., None]).sum((1, 2))


def seconds(work: Callable[[bool], object], module: torch.nn.Module, backward: bool) -> float:
    def wait() -> None:
        if next(module.parameters()).is_cuda:
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    with torch.set_grad_enabled(backward):
        work(backward)
    wait()
    elapsed = time.perf_counter() - start
    module.zero_grad()
    return elapsed


def compare(scorer: LocalScorer, n_candidates: int, n_prompts: int, backward: bool, repeats: int) -> None:
    generator = torch.Generator().manual_seed(n_candidates)
    prompts = texts(n_prompts, PROMPT_TOKENS, generator)
    choices = [f" {text}" for text in candidates(n_candidates, generator)]
    single, batched = Plain(scorer, 1), Plain(scorer, None)

    def ours(backward: bool) -> None:
        scores = scorer.score(prompts, choices)
        if backward:
            scores.sum().backward()

    with torch.no_grad():  # warm-up, and the check that all three compute the same
        scored, expected = scorer.forward(prompts, choices), single(prompts, choices)
        difference = float(torch.stack([scored.log_probs - expected, batched(prompts, choices) - expected]).abs().max())
    variants: list[Callable[[bool], object]] = [
        partial(single, prompts, choices),
        partial(batched, prompts, choices),
        ours,
    ]
    times = [[seconds(variant, scorer.module, backward) for variant in variants] for _ in range(repeats)]
    one, batch, scorer_seconds = (min(column) for column in zip(*times, strict=True))
    print(
        f"{scorer.kind:8} {n_candidates:3} candidates {'forward+backward' if backward else 'forward':16} "
        f"one by one {one:7.3f} s {single.tokens:6} tokens   batched {batch:7.3f} s {batched.tokens:6} tokens   "
        f"scorer {scorer_seconds:6.3f} s {scored.n_positions:5} tokens   ratio {one / scorer_seconds:5.1f} and "
        f"{batch / scorer_seconds:5.1f}   "
        f"largest difference {difference:.1e}",
        flush=True,
    )


def processor() -> str:
    """Return the processor's name if the system reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    where = torch.cuda.get_device_name() if args.device.startswith("cuda") else processor()
    print(
        f"{where}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, torch "
        f"{torch.__version__}, transformers {transformers.__version__}, {args.dtype}, {args.prompts} prompts of "
        f"{PROMPT_TOKENS} tokens, best of {args.repeats}"
    )
    torch.manual_seed(0)
    llama = partial(save_llama, width=512, inner=1408, layers=12)
    for kind, save in (("seq2seq", save_t5), ("causal", llama)):
        with tempfile.TemporaryDirectory() as name:
            save_tokenizer(Path(name), VOCABULARY)
            save(Path(name), VOCABULARY)
            scorer: LocalScorer = build_model(f"local_scorer_{kind}", model=name, dtype=args.dtype, device=args.device)
            scorer.load()
        print(f"{kind}: {sum(weight.numel() for weight in scorer.module.parameters()) / 1e6:.1f} M parameters")
        for n_candidates in (6, 40):
            for backward in (False, True):
                compare(scorer, n_candidates, args.prompts, backward, args.repeats)


if __name__ == "__main__":
    main()
