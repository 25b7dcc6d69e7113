"""Small language models trained in tests to reply in the right format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tiny_models import CHAT_TEMPLATE, SPECIAL


def make_proposer(
    folder: Path, pairs: Sequence[tuple[str, str]], steps: int = 100, window: int = 512, batch: int = 16, seed: int = 0
) -> Path:
    """Train a two-layer Llama model with about 100,000 weights and a tokenizer, save them and return `folder`.

    Args:
        folder: output folder.
        pairs: questions and replies for training.
        steps: number of training steps.
        window: maximum length of a text in tokens.
        batch: number of pairs per step.
        seed: random seed of initial weights and batches.
    """
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    rng, fast = np.random.default_rng(seed), make_tokenizer(pairs)

    def ids(text: str) -> list[int]:
        return fast(text, add_special_tokens=False)["input_ids"]

    def turn(question: str) -> list[int]:
        messages = [{"role": "user", "content": question}]
        return ids(fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(fast),
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=window,
                pad_token_id=0,
                bos_token_id=None,
                eos_token_id=2,
            )
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(steps):
            samples = [pairs[int(i)] for i in rng.integers(len(pairs), size=batch)]
            rows = [(turn(question), [*ids(reply), 2]) for question, reply in samples]
            longest = max(len(question) + len(answer) for question, answer in rows)
            tokens = torch.zeros(len(rows), longest, dtype=torch.long)
            labels = torch.full_like(tokens, -100)
            mask = torch.zeros_like(tokens)
            for i, (question, answer) in enumerate(rows):
                token_ids = torch.tensor(question + answer)
                tokens[i, : len(token_ids)], mask[i, : len(token_ids)] = token_ids, 1
                labels[i, len(question) : len(token_ids)] = torch.tensor(answer)
            model(input_ids=tokens, attention_mask=mask, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def make_tokenizer(pairs: Sequence[tuple[str, str]]):
    """Return a byte-level BPE tokenizer in which every digit is a token, trained on the first 100 pairs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([question + reply for question, reply in pairs[:100]], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=SPECIAL[2])
    fast.chat_template = CHAT_TEMPLATE
    return fast
