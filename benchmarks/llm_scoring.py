"""Time to score candidates after prompts: the local scorer compared with plain forward passes of the same model.

Models have the architecture of Flan-T5-small or of a Llama of similar size, and random weights. Prompts have 230
tokens. The methods alternate, and the minimum over repetitions is reported:

* `one by one` runs the model for each (prompt, candidate) pair;
* `batched` runs the model once per prompt, with all its candidates as a batch;
* `scorer` is the local scorer of llmrl.

All methods compute only the required logits. The plain methods run a backward pass after each forward pass, which saves
memory; the scorer runs a single backward pass. Targets for the speedup of the scorer over `one by one` on a CPU, for
forward passes: 4 with 6 candidates, 15 with 40 candidates.
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


def sample_texts(n_texts: int, n_tokens: int, generator: torch.Generator) -> list[str]:
    """Return `n_texts` texts of `n_tokens` random words, each of which is one token."""
    token_ids = torch.randint(VOCABULARY - 3, (n_texts, n_tokens), generator=generator).tolist()
    return [" ".join(f"w{i}" for i in row) for row in token_ids]


def sample_candidates(n_candidates: int, generator: torch.Generator) -> list[str]:
    """Return random candidates: 6 texts of 3 tokens, or 40 texts of 4 tokens.

    The 40 texts combine 4 first words with 10 continuations, like actions on objects.
    """
    if n_candidates == 6:
        return sample_texts(6, 3, generator)
    continuations = sample_texts(10, 3, generator)
    return [f"{word} {continuation}" for word in sample_texts(4, 1, generator) for continuation in continuations]


class PlainScorer:
    """Scorer that runs the full model on each prompt with a batch of its candidates.

    Args:
        scorer: local scorer whose model is used.
        batch_size: number of candidates in a batch, which must have equal lengths; None: all candidates.
    """

    def __init__(self, scorer: LocalScorer, batch_size: int | None) -> None:
        self.module: Any = scorer.module
        self.tokenizer, self.is_seq2seq, self.batch_size = scorer._tokenizer, scorer.kind == "seq2seq", batch_size
        self.n_tokens = 0

    def __call__(self, prompts: Sequence[str], texts: Sequence[str], backward: bool = False) -> torch.Tensor:
        """Return scores [n_prompts, n_texts]; with `backward`, also compute the gradients of their sum."""
        self.n_tokens = 0
        batch_size = self.batch_size or len(texts)
        rows = []
        for prompt in prompts:
            for i in range(0, len(texts), batch_size):
                rows.append(self.score_batch(prompt, list(texts[i : i + batch_size])))
                if backward:
                    rows[-1].sum().backward()
        return torch.cat([row.detach() for row in rows]).view(len(prompts), len(texts))

    def score_batch(self, prompt: str, texts: list[str]) -> torch.Tensor:
        """Return log-probabilities of texts after a prompt, [n_texts]."""
        ids = torch.tensor(self.tokenizer([prompt] * len(texts))["input_ids"], device=self.module.device)
        target = torch.tensor(self.tokenizer(texts)["input_ids"], device=self.module.device)
        if self.is_seq2seq:
            inputs = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], dim=1)
            self.n_tokens += ids.numel() + inputs.numel()
            logits = self.module(input_ids=ids, decoder_input_ids=inputs, use_cache=False).logits
        else:
            inputs = torch.cat([ids, target[:, :-1]], dim=1)
            self.n_tokens += inputs.numel()
            logits = self.module(input_ids=inputs, logits_to_keep=target.shape[1], use_cache=False).logits
        return torch.log_softmax(logits, -1, torch.float32).gather(2, target[..., None]).sum((1, 2))


def measure_seconds(method: Callable[[bool], object], module: torch.nn.Module, backward: bool) -> float:
    """Return the duration of a scoring method, seconds, and reset the gradients of the model."""

    def synchronize() -> None:
        if next(module.parameters()).is_cuda:
            torch.cuda.synchronize()

    synchronize()
    start = time.perf_counter()
    with torch.set_grad_enabled(backward):
        method(backward)
    synchronize()
    elapsed = time.perf_counter() - start
    module.zero_grad()
    return elapsed


def compare(scorer: LocalScorer, n_candidates: int, n_prompts: int, backward: bool, repeats: int) -> None:
    """Measure all methods and print a row."""
    generator = torch.Generator().manual_seed(n_candidates)
    prompts = sample_texts(n_prompts, PROMPT_TOKENS, generator)
    choices = [f" {text}" for text in sample_candidates(n_candidates, generator)]
    single, batched = PlainScorer(scorer, 1), PlainScorer(scorer, None)

    def score(backward: bool) -> None:
        scores = scorer.score(prompts, choices)
        if backward:
            scores.sum().backward()

    with torch.no_grad():  # warm-up, and comparison of the scores
        output, scores = scorer.forward(prompts, choices), single(prompts, choices)
        difference = float(torch.stack([output.log_probs - scores, batched(prompts, choices) - scores]).abs().max())
    methods: list[Callable[[bool], object]] = [
        partial(single, prompts, choices),
        partial(batched, prompts, choices),
        score,
    ]
    times = [[measure_seconds(method, scorer.module, backward) for method in methods] for _ in range(repeats)]
    single_seconds, batched_seconds, scorer_seconds = (min(column) for column in zip(*times, strict=True))
    print(
        f"{scorer.kind:8} {n_candidates:3} candidates {'forward+backward' if backward else 'forward':16} "
        f"one by one {single_seconds:7.3f} s {single.n_tokens:6} tokens   "
        f"batched {batched_seconds:7.3f} s {batched.n_tokens:6} tokens   "
        f"scorer {scorer_seconds:6.3f} s {output.n_positions:5} tokens   "
        f"ratio {single_seconds / scorer_seconds:5.1f} and {batched_seconds / scorer_seconds:5.1f}   "
        f"largest difference {difference:.1e}",
        flush=True,
    )


def read_cpu_name() -> str:
    """Return the model name of the CPU, or the machine type where `/proc/cpuinfo` is missing."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
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
    device_name = torch.cuda.get_device_name() if args.device.startswith("cuda") else read_cpu_name()
    print(
        f"{device_name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}, {args.dtype}, {args.prompts} prompts of "
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
