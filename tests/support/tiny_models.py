"""Small language models with random weights and tokenizers, saved in the format of transformers."""

from __future__ import annotations

from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ('system', 'user', 'assistant') %}{{ raise_exception('unknown role') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
_TEXT = "the quick brown fox jumps over the lazy dog while 0123456789 tax rates rise and fall between 0.0 and 1.0"


def make_model_for_env(folder: Path, *overrides: str, kind: str = "causal", **settings) -> Path:
    """Train a small model for the environment of a config, save it in `folder` and return `folder`."""
    from experiments import compose
    from llmrl.experiment.small_models import create_model_for_env
    from llmrl.llms.local.small import SmallModelSettings

    defaults = {"reads": "nothing", "stories": 20_000, "pretraining_steps": 1500, "channel": "prompt"}
    config = compose(*overrides)
    create_model_for_env(folder, config, kind, SmallModelSettings(**{**defaults, "seed": config["seed"], **settings}))
    return folder


def make_tiny_tokenizer(chat_template: str | None = CHAT_TEMPLATE):
    """Return a byte-level BPE tokenizer with 320 tokens, which encodes any text and ends turns with <|im_end|>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=SPECIAL[2])
    fast.chat_template = chat_template
    return fast


def make_tiny_causal(
    folder: Path, kind: str = "llama", chat_template: str | None = CHAT_TEMPLATE, window: int = 512, seed: int = 0
) -> Path:
    """Save a causal model (`llama`: rotary positions, `gpt2`: learned positions) and its tokenizer; return `folder`."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    tokenizer = make_tiny_tokenizer(chat_template)
    ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "llama":
            model = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=len(tokenizer),
                    hidden_size=32,
                    intermediate_size=64,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    max_position_embeddings=window,
                    # Larger than usual, so that replies depend on prompts and greedy choices have no ties.
                    initializer_range=0.5,
                    **ids,
                )
            )
        else:
            model = GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=len(tokenizer),
                    n_embd=32,
                    n_layer=2,
                    n_head=4,
                    n_positions=window,
                    initializer_range=0.5,
                    **ids,
                )
            )
    model.generation_config.do_sample = True  # as in published chat models
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
