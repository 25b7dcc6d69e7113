"""A language model of this machine reads texts: training by the next token, before anything is asked of it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.llms.local.loading import quiet

HELD_OUT = 0.1
"""Share of the texts that are not trained on, to measure the loss."""


def read_texts(
    folder: Path,
    texts: Sequence[str],
    steps: PositiveInt,
    seed: int,
    batch: PositiveInt = 32,
    learning_rate: PositiveFloat = 1e-3,
) -> tuple[float, float]:
    """Train the causal model in `folder` on texts by the next token (transformers' Trainer, AdamW, cosine schedule),
    and write it back.

    Args:
        folder: as `save_pretrained` wrote it.
        texts: to read; the last tenth is held out.
        steps: of training, of `batch` texts each.
        seed: of their order.
        batch, learning_rate: of a step.

    Returns:
        The mean loss on the held-out texts before and after, nats a token.
    """
    import torch

    quiet()
    threads = torch.get_num_threads()
    # The order in which several threads add up is their number's, and the model is to be that of its seed alone.
    torch.set_num_threads(1)
    try:
        return _read(folder, texts, steps, seed, batch, learning_rate)
    finally:
        torch.set_num_threads(threads)


def _read(
    folder: Path, texts: Sequence[str], steps: int, seed: int, batch: int, learning_rate: float
) -> tuple[float, float]:
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainingArguments,
    )
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in texts]
    last = max(1, round(len(rows) * HELD_OUT))
    with tempfile.TemporaryDirectory() as scratch, torch.random.fork_rng(devices=[]):
        arguments = TrainingArguments(
            scratch,
            max_steps=steps,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=batch,
            learning_rate=learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=min(50, steps // 10),
            use_cpu=True,
            seed=seed,
            data_seed=seed,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=rows[:-last],
            eval_dataset=rows[-last:],
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        )
        for printing in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(printing)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
    model.save_pretrained(folder)
    return float(before), float(after)
