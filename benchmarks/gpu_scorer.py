"""Throughput of the local scorer on a GPU, for `benchmarks/gpu.py`: prompts per second with Flan-T5-large's shape."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu_part import Part, measure_seconds
from llm_scoring import VOCABULARY, sample_candidates, sample_texts
from random_models import save_t5, save_tokenizer

from llmrl.llms.by_name import build_model


def measure_scorer(part: Part) -> None:
    """Print a row for each device, precision, number of candidates and pass (forward, or forward and backward)."""
    transformers.logging.set_verbosity_error()
    torch_device = "cuda" if part.device == "cuda" else "cpu"
    n_prompts, n_tokens = part.sizes.prompts
    n_cpu_prompts = part.sizes.cpu_prompts
    # CPU rate, prompts per second, and scores [n_cpu_prompts, n_candidates], by (n_candidates, backward).
    cpu_measurements: dict[tuple[int, bool], tuple[float, torch.Tensor]] = {}

    def measure(folder: str, device: str, dtype: Any, is_cpu: bool) -> None:
        options = {"dtype": dtype, "weights": "random", "batch_tokens": 65536, "device": device}
        scorer = build_model("local_scorer_seq2seq", model=str(folder), **options)
        load_seconds = measure_seconds(scorer.load, device)
        n_parameters = sum(weight.numel() for weight in scorer.module.parameters())
        label = "CPU" if is_cpu else part.device
        part.print_row(f"{n_parameters / 1e6:.0f} M parameters, {dtype}, {label}", f"loaded in {load_seconds:.1f} s")
        for n_candidates in (6, 40):
            generator = torch.Generator().manual_seed(n_candidates)
            prompts = sample_texts(n_prompts, n_tokens, generator)[: n_cpu_prompts if is_cpu else n_prompts]
            choices = [f" {text}" for text in sample_candidates(n_candidates, generator)]
            for backward in (False, True):
                title = f"{len(prompts)} prompts, {n_candidates} candidates, forward{' and backward' * backward}"
                title = f"  {title}{', CPU' * is_cpu}"

                def score(backward: bool = backward, prompts: Any = prompts, choices: Any = choices) -> Any:
                    with torch.set_grad_enabled(backward):
                        output = scorer.forward(prompts, choices)
                        if backward:
                            output.log_probs.sum().backward()
                    return output.log_probs.detach(), output.n_positions

                def print_row(title: str = title, key: Any = (n_candidates, backward), score: Any = score) -> None:
                    first_seconds = measure_seconds(score, device)
                    n_rounds = 1 if is_cpu else part.sizes.rounds
                    seconds = min(measure_seconds(score, device) for _ in range(n_rounds))
                    scores, n_positions = score()
                    rate = len(scores) / seconds
                    cells = [f"{first_seconds:.2f} s", f"{rate:.2f}", f"{n_positions / seconds:,.0f}"]
                    cells.append(part.format_peak_memory())
                    if is_cpu:
                        cpu_measurements[key] = rate, scores
                    elif key in cpu_measurements:
                        cpu_rate, cpu_scores = cpu_measurements[key]
                        difference = float((scores[:n_cpu_prompts].cpu() - cpu_scores).abs().max())
                        cells += [f"{rate / cpu_rate:.1f}x", f"{difference:.1e}"]
                    part.print_row(title, *cells)

                part.run_measurement(title, print_row)
                scorer.module.zero_grad()

    part.print_row("", "first", "prompts/s", "positions/s", "memory", "x CPU", "differs by")
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder), VOCABULARY)
        save_t5(Path(folder), VOCABULARY, *part.sizes.model, weights=False)
        for device, dtype, is_cpu in (
            ("cpu", "float32", True),
            (torch_device, "float32", False),
            (torch_device, "bfloat16", False),
        ):
            title = f"{dtype}, {'CPU' if is_cpu else part.device}"
            part.run_measurement(title, functools.partial(measure, folder, device, dtype, is_cpu), 20.0)
