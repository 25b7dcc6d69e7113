"""Next-token pretraining of a local causal language model on texts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.llms.local.loading import quiet

HELD_OUT = 0.1
"""Share of the texts that are held out from training to measure the loss."""


def read_texts(
    folder: Path,
    texts: Sequence[str],
    steps: PositiveInt,
    seed: int,
    batch: PositiveInt = 32,
    learning_rate: PositiveFloat = 1e-3,
) -> tuple[float, float]:
    """Train the causal model in `folder` on texts by next-token prediction, and save it there.

    Training uses the Trainer of transformers with AdamW and a cosine schedule.

    Args:
        folder: folder in the format of `save_pretrained`.
        texts: training texts; the last tenth is held out.
        steps: number of training steps, each on `batch` texts.
        seed: seed of the order of texts.
        batch: number of texts per step.
        learning_rate: peak learning rate.

    Returns:
        Mean loss on the held-out texts before and after training, in nats per token.
    """
    import torch

    quiet()
    threads = torch.get_num_threads()
    # The order of sums depends on the number of threads, and the model should depend on its seed only.
    torch.set_num_threads(1)
    try:
        return _train(folder, texts, steps, seed, batch, learning_rate)
    finally:
        torch.set_num_threads(threads)


def _train(
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
    examples = [{"input_ids": tokenizer(text)["input_ids"]} for text in texts]
    n_held_out = max(1, round(len(examples) * HELD_OUT))
    with tempfile.TemporaryDirectory() as temporary_folder, torch.random.fork_rng(devices=[]):
        arguments = TrainingArguments(
            temporary_folder,
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
            train_dataset=examples[:-n_held_out],
            eval_dataset=examples[-n_held_out:],
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        )
        for callback in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(callback)
        initial_loss = trainer.evaluate()["eval_loss"]
        trainer.train()
        final_loss = trainer.evaluate()["eval_loss"]
    model.save_pretrained(folder)
    return float(initial_loss), float(final_loss)
