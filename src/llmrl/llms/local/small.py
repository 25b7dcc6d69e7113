"""Creation and pretraining of small language models that can be trained from scratch on a CPU.

Their tokenizers are trained on the texts of an environment, their weights are randomly initialized. Small chat models
(`SmallChatSettings`) are then trained on the format of replies, but not on the task.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.llms.local.loading import disable_progress_bars

PAD_TOKEN, END_TOKEN, START_TOKEN = "<pad>", "</s>", "<s>"
SmallKind = Literal["causal", "seq2seq", "chat"]
"""Architecture of a small model; a `chat` model is a causal one with a chat template."""
TokenUnit = Literal["phrases", "words", "messages"]
_DISTANCE_PATTERN = r"\d+ (?:steps?|pas)(?: (?:\p{L}+|à \p{L}+))?(?: and| et)?,?"
_TEXT_UNIT_PATTERNS: dict[TokenUnit, str] = {
    "phrases": rf"{_DISTANCE_PATTERN}|[\p{{L}}'][\p{{L}}' ]*\p{{L}}|\p{{L}}|[^\p{{L}}\s]|\s+",
    "words": rf"You see an?|You carry an?|Tu vois une?|Tu portes une?|{_DISTANCE_PATTERN}|\p{{L}}+|[^\p{{L}}\s]|\s+",
    "messages": r'\d+|"[\p{L}_]+"(?!:)|(?:"[\p{L}_]+":|[^\p{L}\d"])+|\p{L}[\p{L}_ ]*|"',
}
"""Regular expressions of the largest units of text that can become one token.

`phrases`: a distance with its direction, or words up to the next number or punctuation mark; `words`: a distance, a
fixed phrase such as "You see a", or a word; `messages`: a number, a quoted word, words, or JSON syntax with keys.
"""


CHAT_ROLES = ("user", "assistant")
CHAT_TEMPLATE = (
    "{% for message in messages if message.role != 'system' %}<|{{ message.role }}|>{{ message.content }}"
    f"{{% if message.role == 'assistant' %}}{END_TOKEN}{{% endif %}}{{% endfor %}}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Chat template in which the tokens of a conversation are a prefix of the tokens of its continuation.

It omits system messages, which are equal in all prompts and too complex for a small model. Their tokens would dominate
attention, so that training would change the replies to all observations in the same way.
"""


@dataclass(frozen=True)
class SmallModelShape:
    """Sizes of a small model and of its tokenizer.

    Attributes:
        width: size of the hidden states; `width / heads` must be an even integer.
        layers, heads: number of layers, and number of attention heads per layer.
        vocabulary: maximum number of tokens in the vocabulary, >= 300.
        tokens: largest unit of text that can be one token. With `phrases`, prompts have half as many tokens and
            training takes fewer steps; with `words`, new texts have more tokens in common with the training texts.
        longest: context window of a causal model, in tokens.
    """

    width: PositiveInt = 128
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    vocabulary: PositiveInt = 1024
    tokens: TokenUnit = "phrases"
    longest: PositiveInt = 1024


@dataclass(frozen=True, kw_only=True)
class SmallModelSettings(SmallModelShape):
    """Settings of a small model that is created when it is first needed.

    Attributes:
        reads: pretraining texts: `nothing`; `stories`, whose wording differs from the environment's texts; or
            `meaningless`, stories with the same words in which the words have no meaning.
        stories: number of stories.
        pretraining_steps: steps of next-token training, each on 32 stories.
        channel: text channel of the environment that the model reads.
        seed: seed of weights, stories and their order; None: the seed of the run.
    """

    reads: Literal["nothing", "stories", "meaningless"]
    stories: PositiveInt
    pretraining_steps: PositiveInt
    channel: str
    seed: NonNegativeInt | None

    @property
    def label(self) -> str:
        """Description of the model, which names the pretraining texts."""
        return f"a small model that has read {self.reads.replace('meaningless', 'meaningless stories')}"


@dataclass(frozen=True, kw_only=True)
class SmallChatSettings(SmallModelShape):
    """Settings of a small chat model that is created when it is first needed.

    Attributes:
        format_steps: steps of supervised training on random valid replies, each on 32 replies.
        format_learning_rate: learning rate of Adam in these steps.
        seed: seed of weights and training; None: the seed of the run.
    """

    tokens: Literal["messages"] = "messages"
    format_steps: PositiveInt
    format_learning_rate: PositiveFloat
    seed: NonNegativeInt | None
    label: ClassVar[str] = "a small model that has learned the format of replies"


class SmallModelFactory(Protocol):
    """Factory of small models for a run's environment; `model` is `SmallModelSettings` or `SmallChatSettings`."""

    def folder(self, kind: SmallKind, model: Any) -> Path:
        """Return the model's folder, which may not exist yet."""
        ...

    def make(self, kind: SmallKind, model: Any) -> None:
        """Create the model if it does not exist."""
        ...


def resolve_model(model: str | None, make: Any, kind: SmallKind, model_factory: SmallModelFactory | None) -> str:
    """Return `model` (folder or hub name), or the folder of the small model with the settings `make`.

    Raises:
        ConfigError: not exactly one of `model` and `make` is given, or `model_factory` is needed but None.
    """
    if (model is None) == (make is None):
        raise ConfigError(
            f"got llm.model={model} and llm.make={'null' if make is None else 'settings'}; set exactly one of the two "
            "(llm.model loads a model, llm.make creates one)"
        )
    if model is not None:
        return model
    if model_factory is None:
        raise ConfigError("llm.make needs an environment for which the model is created; set llm.model instead")
    return str(model_factory.folder(kind, make))


def make_small_model(
    folder: Path, texts: Iterable[str], kind: SmallKind = "causal", shape: SmallModelShape | None = None, seed: int = 0
) -> int:
    """Write an untrained model and its tokenizer in the format of `save_pretrained`; return the number of weights.

    The tokenizer is byte-level BPE trained on `texts`: their frequent phrases become single tokens, and any text can be
    encoded. Weights have the initial distribution of the architecture.

    Args:
        folder: folder to write to.
        texts: samples of the texts that the model will read and write.
        kind: `seq2seq`: T5 with `layers` encoder layers and one decoder layer; `causal`: Llama; `chat`: Llama with
            `CHAT_TEMPLATE`.
        shape: sizes; None: the default values.
        seed: seed of the weights.

    Raises:
        ConfigError: transformers is not installed, or `shape` is impossible.
    """
    shape = shape or SmallModelShape()
    tokenizer = make_tokenizer(list(texts), shape)
    if kind == "chat":
        tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{role}|>" for role in CHAT_ROLES]})
        tokenizer.chat_template = CHAT_TEMPLATE
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (_make_t5 if kind == "seq2seq" else make_llama)(tokenizer, shape)
    folder.mkdir(parents=True, exist_ok=True)
    disable_progress_bars()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return int(sum(parameter.numel() for parameter in model.parameters()))


def make_tokenizer(texts: list[str], shape: SmallModelShape) -> Any:
    """Return a byte-level BPE tokenizer trained on texts.

    Raises:
        ConfigError: transformers is not installed, or `shape` is impossible.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError("language models need the optional package transformers: pip install 'llmrl[local-llm]'")
    width, heads = shape.width, shape.heads
    if width % heads or (width // heads) % 2:
        raise ConfigError(
            f"width={width} must be an even multiple of heads={heads}, e.g. {heads * 2 * (width // heads // 2 or 1)}"
        )
    if shape.vocabulary < 300:
        raise ConfigError(f"vocabulary={shape.vocabulary}: 256 bytes, special tokens and some words need at least 300")
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # A unit includes the whitespace character before it.
            pre_tokenizers.Split(Regex(rf"\s?({_TEXT_UNIT_PATTERNS[shape.tokens]})"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=[PAD_TOKEN, END_TOKEN, START_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    end_tokens = [(END_TOKEN, tokenizer.token_to_id(END_TOKEN))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END_TOKEN}", special_tokens=end_tokens)
    tokenizer_class: Any = PreTrainedTokenizerFast
    return tokenizer_class(tokenizer_object=tokenizer, pad_token=PAD_TOKEN, eos_token=END_TOKEN, bos_token=START_TOKEN)


def _make_t5(tokenizer: Any, shape: SmallModelShape) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=shape.width,
        d_kv=shape.width // shape.heads,
        d_ff=4 * shape.width,
        num_layers=shape.layers,
        num_decoder_layers=1,
        num_heads=shape.heads,
        dropout_rate=0.0,
        initializer_factor=0.3,  # small, so that the initial policy is almost uniform
        **{"decoder_start_token_id": tokenizer.pad_token_id},
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return T5ForConditionalGeneration(config)


def make_llama(tokenizer: Any, shape: SmallModelShape) -> Any:
    """Return a Llama model with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=3 * shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.longest,
        # The usual 0.02 suits wide layers. With it, outputs of narrow layers would hardly depend on the input at first.
        initializer_range=shape.width**-0.5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


BATCH_SIZE = 32
"""Number of texts per training step."""
HELD_OUT_FRACTION = 0.1
"""Fraction of the texts that are held out from training to measure the loss."""


@contextmanager
def single_thread() -> Iterator[None]:
    """Use one thread of torch inside a `with` block, because rounding errors depend on the number of threads."""
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def train_on_texts(
    folder: Path, texts: Sequence[str], steps: PositiveInt, seed: int, learning_rate: PositiveFloat = 1e-3
) -> tuple[float, float]:
    """Train the causal model in `folder` on texts by next-token prediction, and save it in the same folder.

    Training uses the Trainer of transformers with AdamW and a cosine schedule.

    Args:
        folder: folder in the format of `save_pretrained`.
        texts: training texts; the last tenth is held out to measure the loss.
        steps: number of training steps, each on `BATCH_SIZE` texts.
        seed: seed of the order of texts.
        learning_rate: peak learning rate.

    Returns:
        Mean loss on the held-out texts before and after training, in nats per token.
    """
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainingArguments,
    )
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    disable_progress_bars()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    examples = [{"input_ids": tokenizer(text)["input_ids"]} for text in texts]
    n_held_out = max(1, round(len(examples) * HELD_OUT_FRACTION))
    with single_thread(), tempfile.TemporaryDirectory() as temporary_folder, torch.random.fork_rng(devices=[]):
        arguments = TrainingArguments(
            temporary_folder,
            max_steps=steps,
            per_device_train_batch_size=BATCH_SIZE,
            per_device_eval_batch_size=BATCH_SIZE,
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
