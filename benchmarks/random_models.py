"""Models with the architecture of published models and random weights, stored for loading as `llm.model`."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")


def save_tokenizer(folder: Path, vocabulary: int, chat_template: str | None = None) -> None:
    """Write a tokenizer with one token for each of the words `w0`, `w1`, ...

    The number of tokens of a text is its number of words: no special tokens are added.

    Args:
        folder: folder of the files.
        vocabulary: number of tokens, including special tokens.
        chat_template: Jinja template of conversations.
    """
    words = [*SPECIAL_TOKENS, *(f"w{i}" for i in range(vocabulary - len(SPECIAL_TOKENS)))]
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
    """Write a T5 model, by default with the architecture of Flan-T5-small, including its untied output layer.

    Args:
        folder: folder of the files.
        vocabulary: number of tokens.
        width: width of the residual stream.
        inner: width of the feed-forward layers.
        layers: number of layers of the encoder, and of the decoder.
        heads: number of attention heads.
        weights: whether to write weights; False: only `config.json`, for `llm.weights=random`.
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


def save_llama(folder: Path, vocabulary: int, width: int, inner: int, layers: int, weight_std: float = 0.02) -> None:
    """Write a Llama model.

    Args:
        folder: folder of the files.
        vocabulary: number of tokens.
        width: width of the residual stream.
        inner: width of the feed-forward layers.
        layers: number of layers.
        weight_std: standard deviation of the weights.
    """
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        initializer_range=weight_std,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
