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


def save_t5(
    folder: Path,
    vocabulary: int,
    width: int = 512,
    inner: int = 1024,
    layers: int = 8,
    heads: int = 6,
    weights: bool = True,
) -> None:
    """Write a model of the shape of Flan-T5-small by default, including its untied output layer.

    `width` and `inner`: of the residual stream and the feed-forward layers; `layers`: of the encoder, and as many of
    the decoder; without `weights`, `config.json` alone, for `llm.weights=random`.
    """
    config = transformers.T5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=64,
        d_ff=inner,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )
    if not weights:
        config.save_pretrained(folder)
        return
    model = transformers.T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(vocabulary, width) * 0.05)
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
