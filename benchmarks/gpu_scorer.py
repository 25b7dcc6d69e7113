"""The local scorer on a GPU, for `benchmarks/gpu.py`: prompts a second of a model in the shape of Flan-T5-large."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu_part import Part, seconds
from llm_scoring import VOCABULARY, candidates, texts
from random_models import save_t5, save_tokenizer

from llmrl.llms.by_name import build_model


def measure_scorer(part: Part) -> None:

    transformers.logging.set_verbosity_error()
    place = "cuda" if part.device == "cuda" else "cpu"
    count, tokens = part.sizes.prompts
    few = part.sizes.cpu_prompts
    found: dict[tuple[int, bool], tuple[float, torch.Tensor]] = {}  # on the processor

    def measured(folder: str, device: str, dtype: Any, on_processor: bool) -> None:
        options = {"dtype": dtype, "weights": "random", "batch_tokens": 65536, "device": device}
        scorer = build_model("local_scorer_seq2seq", model=str(folder), **options)
        drawn = seconds(scorer.load, device)
        size = sum(weight.numel() for weight in scorer.module.parameters())
        where = "CPU" if on_processor else part.device
        part.row(f"{size / 1e6:.0f} M parameters, {dtype}, {where}", f"drawn in {drawn:.1f} s")
        for n_candidates in (6, 40):
            generator = torch.Generator().manual_seed(n_candidates)
            prompts = texts(count, tokens, generator)[: few if on_processor else count]
            choices = [f" {text}" for text in candidates(n_candidates, generator)]
            for backward in (False, True):
                title = f"{len(prompts)} prompts, {n_candidates} candidates, forward{' and backward' * backward}"
                title = f"  {title}{', CPU' * on_processor}"

                def work(backward: bool = backward, prompts: Any = prompts, choices: Any = choices) -> Any:
                    with torch.set_grad_enabled(backward):
                        scored = scorer.forward(prompts, choices)
                        if backward:
                            scored.log_probs.sum().backward()
                    return scored.log_probs.detach(), scored.n_positions

                def row(title: str = title, key: Any = (n_candidates, backward), work: Any = work) -> None:
                    first = seconds(work, device)
                    taken = min(seconds(work, device) for _ in range(1 if on_processor else part.sizes.rounds))
                    scores, positions = work()
                    rate = len(scores) / taken
                    cells = f"{first:.2f} s", f"{rate:.2f}", f"{positions / taken:,.0f}", part.memory()
                    compared: tuple[str, ...] = ()
                    if on_processor:
                        found[key] = rate, scores
                    elif key in found:
                        slower, wanted = found[key]
                        compared = f"{rate / slower:.1f}x", f"{float((scores[:few].cpu() - wanted).abs().max()):.1e}"
                    part.row(title, *cells, *compared)

                part.fits(title, row)
                scorer.module.zero_grad()

    part.row("", "first", "prompts/s", "positions/s", "memory", "x CPU", "differs by")
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder), VOCABULARY)
        save_t5(Path(folder), VOCABULARY, *part.sizes.model, weights=False)
        for device, dtype, on_processor in (
            ("cpu", "float32", True),
            (place, "float32", False),
            (place, "bfloat16", False),
        ):
            title = f"{dtype}, {'CPU' if on_processor else part.device}"
            part.fits(title, functools.partial(measured, folder, device, dtype, on_processor), 20.0)
