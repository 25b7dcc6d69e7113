"""Language models small enough to be trained from nothing on a processor: a tokenizer made of the texts they are to
read, and weights that are drawn."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.llms.local.loading import Kind, quiet

PAD, END, START = "<pad>", "</s>", "<s>"
Tokens = Literal["phrases", "words"]
_DISTANCE = r"\d+ (?:steps?|pas)(?: (?:\p{L}+|à \p{L}+))?(?: and| et)?,?"
_PIECES: dict[Tokens, str] = {
    "phrases": rf"{_DISTANCE}|[\p{{L}}'][\p{{L}}' ]*\p{{L}}|\p{{L}}|[^\p{{L}}\s]|\s+",
    "words": rf"You see an?|You carry an?|Tu vois une?|Tu portes une?|{_DISTANCE}|\p{{L}}+|[^\p{{L}}\s]|\s+",
}
"""What a token may be at most. `phrases`: a distance with its direction, or words up to the next number or sign;
`words`: a distance, a turn of phrase that says little, or a word."""


@dataclass(frozen=True)
class SmallModel:
    """A small model that is made when it is first needed.

    Attributes:
        tokens, width, layers, heads, vocabulary, longest: as in `make_small_model`.
        reads: what it has read before it is used: `nothing`; `stories` in other words than the environment's; or
            `meaningless` ones, in which the same words say nothing.
        stories: how many there are.
        story_steps: steps of training on 32 stories each, by the next token.
        channel: text channel of the environment that it is to read.
        seed: of its weights, of the stories and of their order; None: the run's.
    """

    tokens: Tokens
    width: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    vocabulary: PositiveInt
    longest: PositiveInt
    reads: Literal["nothing", "stories", "meaningless"]
    stories: PositiveInt
    story_steps: PositiveInt
    channel: str
    seed: NonNegativeInt | None

    @property
    def told(self) -> str:
        """What it has read, in words."""
        what = {"nothing": "nothing", "stories": "stories", "meaningless": "meaningless stories"}[self.reads]
        return f"has read {what}"


class Workshop(Protocol):
    """Where small models are made for the environment of a run, and kept."""

    def folder(self, kind: Kind, model: SmallModel) -> Path:
        """Where the model is, or would be."""
        ...

    def make(self, kind: Kind, model: SmallModel) -> None:
        """Make the model, if it is not there."""
        ...


def make_small_model(
    folder: Path,
    texts: Iterable[str],
    kind: Kind = "causal",
    width: PositiveInt = 128,
    layers: PositiveInt = 2,
    heads: PositiveInt = 4,
    vocabulary: PositiveInt = 1024,
    tokens: Tokens = "phrases",
    longest: PositiveInt = 1024,
    seed: int = 0,
) -> int:
    """Write a model and its tokenizer as `save_pretrained` does; returns how many weights it has.

    The tokenizer is byte-level BPE trained on `texts`, so that what these often say is one token and every other text
    still has a spelling. Weights are those of the architecture's own initialisation: it has read nothing.

    Args:
        folder: to write.
        texts: what the model will read.
        kind: `seq2seq`: T5, `layers` in the encoder and one in the decoder; `causal`: Llama.
        width: of the layers; a multiple of `heads`.
        layers, heads: of them.
        vocabulary: most tokens, >= 300.
        tokens: what may become one token: of `phrases` prompts are half as long and sooner understood, in `words`
            texts that nobody has met have more in common with those that were.
        longest: tokens of a text that a causal model can read.
        seed: of the weights.

    Raises:
        ConfigError: transformers is not installed, a number is below 1, or widths do not fit each other.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError("language models need the optional package transformers: pip install 'llmrl[local-llm]'")
    for name, value in {"width": width, "layers": layers, "heads": heads, "longest": longest}.items():
        if value < 1:
            raise ConfigError(f"{name}={value}: a model needs at least 1")
    if width % heads or (width // heads) % 2:
        raise ConfigError(
            f"width={width} must be an even multiple of heads={heads}, e.g. {heads * 2 * (width // heads // 2 or 1)}"
        )
    if vocabulary < 300:
        raise ConfigError(f"vocabulary={vocabulary}: 256 bytes, special tokens and some words need at least 300")
    import torch

    tokenizer = _tokenizer(list(texts), vocabulary, tokens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (
            _t5(tokenizer, width, layers, heads)
            if kind == "seq2seq"
            else _llama(tokenizer, width, layers, heads, longest)
        )
    folder.mkdir(parents=True, exist_ok=True)
    quiet()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return int(sum(p.numel() for p in model.parameters()))


def _tokenizer(texts: list[str], vocabulary: int, tokens: Tokens) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # A space belongs to what follows it.
            pre_tokenizers.Split(Regex(rf"\s?({_PIECES[tokens]})"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END, START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    end = tokenizer.token_to_id(END)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, end)])
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, bos_token=START)


def _t5(tokenizer: Any, width: int, layers: int, heads: int) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=width,
        d_kv=width // heads,
        d_ff=4 * width,
        num_layers=layers,
        num_decoder_layers=1,
        num_heads=heads,
        dropout_rate=0.0,
        initializer_factor=0.3,  # the first policy is close to uniform
        **{"decoder_start_token_id": tokenizer.pad_token_id},
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return T5ForConditionalGeneration(config)


def _llama(tokenizer: Any, width: int, layers: int, heads: int, longest: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=longest,
        # The usual 0.02 is made for wide layers: narrow ones would hardly look at their input for a long time.
        initializer_range=width**-0.5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)
