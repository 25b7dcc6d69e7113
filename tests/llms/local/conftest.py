"""Fixtures with folders of small language models with random weights and trained tokenizers."""

import pytest
import torch

CORPUS = [
    "Possible action of the agent: turn left, turn right, go forward, pick up, drop, toggle",
    "Goal of the agent: pick up the grey box, then go to the grey key",
    "Observation 0: You see a wall 2 steps left, You see a purple key 1 step left and 2 steps forward",
    "Action 0: go forward, Action 1: turn right, You carry a yellow ball",
]


def save_tokenizer(folder, vocabulary=160, first=None, last="</s>"):
    """Train a byte-level BPE tokenizer, save it and return the size of its vocabulary.

    Args:
        folder: output folder.
        vocabulary: maximum size of the vocabulary.
        first: special token before a text; None for none.
        last: special token after a text; None for none.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "</s>", "<unk>", "<s>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special))
    template = " ".join(filter(None, [first, "$A", last]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, special.index(token)) for token in special]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", bos_token="<s>"
    ).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def randomize(model, seed=0):
    """Replace all weights, including position biases, by random ones that give clearly different scores."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                embedding = any(part in name for part in ("bias", "embed", "shared", "wte", "wpe"))
                scale = 0.25 if embedding else 0.8 * weight.shape[1] ** -0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    return model


@pytest.fixture(scope="session")
def t5_folder(tmp_path_factory):
    """Return the folder of a T5 model with dropout, gated feed-forward layers and an untied head, like Flan-T5."""
    from transformers import T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("t5")
    size = save_tokenizer(folder)
    config = T5Config(
        vocab_size=size,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        dropout_rate=0.3,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(
        torch.empty_like(model.shared.weight)
    )  # tied at construction, untied after loading
    randomize(model).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory):
    """Return the folder of a Llama model with rotary positions and grouped keys, with BOS and EOS around each text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    size = save_tokenizer(folder, first="<s>", last="</s>")
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=0.3,
        max_position_embeddings=512,
        bos_token_id=3,
        eos_token_id=1,
    )
    randomize(LlamaForCausalLM(config)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory):
    """Return the folder of a GPT-2 model with learned positions and at most 128 tokens, without special tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("gpt2")
    size = save_tokenizer(folder, last=None)
    config = GPT2Config(
        vocab_size=size, n_positions=128, n_embd=32, n_layer=2, n_head=4, bos_token_id=3, eos_token_id=1
    )
    randomize(GPT2LMHeadModel(config)).save_pretrained(folder)
    return folder
