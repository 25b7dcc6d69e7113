"""Models with random weights, in the shapes of real ones, for benchmarks that load them as real ones are loaded."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

SPECIAL = ("<pad>", "</s>", "<unk>")


def save_tokenizer(folder: Path, vocabulary: int, chat_template: str | None = None) -> None:
    """One token per word, words `w0`, `w1`, ...: texts with as many tokens as wanted. Nothing is added to a text."""
    words = [*SPECIAL, *(f"w{i}" for i in range(vocabulary - len(SPECIAL)))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    fast.chat_template = chat_template
    fast.save_pretrained(folder)


def save_t5(folder: Path, vocabulary: int) -> None:
    """The shape of Flan-T5-small, its untied output layer included."""
    config = transformers.T5Config(
        vocab_size=vocabulary,
        d_model=512,
        d_kv=64,
        d_ff=1024,
        num_layers=8,
        num_decoder_layers=8,
        num_heads=6,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(vocabulary, 512) * 0.05)
    model.save_pretrained(folder)


def save_llama(folder: Path, vocabulary: int, width: int, inner: int, layers: int, spread: float = 0.02) -> None:
    """`width` and `inner`: of the residual stream and the feed-forward layers; `spread`: of the weights."""
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        initializer_range=spread,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
