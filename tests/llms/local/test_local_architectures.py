"""Architectures supported by scorers, as listed in docs/local_models.md, with small random models."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from llmrl.core.errors import LLMError
from models import make_causal_scorer, make_seq2seq_scorer

PAGE = (Path(__file__).parents[3] / "docs" / "local_models.md").read_text()
DECODER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**DECODER, "num_key_value_heads": 2, "head_dim": 8}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
# Name in the page -> architecture, its sizes.
CAUSAL = {
    "Llama": ("llama", GROUPED),
    "Qwen": ("qwen2", GROUPED),
    "Mistral": ("mistral", GROUPED),
    "Gemma": ("gemma2", GROUPED),
    "Phi": ("phi", DECODER),
    "OPT": (
        "opt",
        {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),
    "GPT-2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
}
SEQ2SEQ = {"T5": ("t5", T5), "mT5": ("mt5", T5), "LongT5": ("longt5", T5)}
UNSUPPORTED = {
    "Bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "Mamba": ("mamba", {"hidden_size": 32, "num_hidden_layers": 2}),
    "GPT-Neo": (
        "gpt_neo",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    ),
    "UMT5": ("umt5", T5),
    "BART": ("bart", {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48}),
}


def save(folder, tokenizer_folder, architecture, sizes, kind):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.save_pretrained(folder)
    ids = {"bos_token_id": 3, "eos_token_id": 1, "pad_token_id": 0}
    start = {"decoder_start_token_id": 0} if kind == "seq2seq" else {}
    config = AutoConfig.for_model(architecture, vocab_size=len(tokenizer), **ids, **start, **sizes)
    auto = AutoModelForSeq2SeqLM if kind == "seq2seq" else AutoModelForCausalLM
    torch.manual_seed(0)
    model = auto.from_config(config)
    with torch.no_grad():  # far from uniform, or a wrong score could pass for a right one
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.3)
    model.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("name", [*CAUSAL, *SEQ2SEQ])
def test_accepted(name, tmp_path, llama_folder):
    """Loading compares the fast computation with plain forward passes."""
    kind = "seq2seq" if name in SEQ2SEQ else "causal"
    folder = save(tmp_path, llama_folder, *{**CAUSAL, **SEQ2SEQ}[name], kind)
    scorer = (make_seq2seq_scorer if kind == "seq2seq" else make_causal_scorer)(folder)
    assert scorer.score(["go forward"], ["turn left", "turn right"]).isfinite().all()


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_rejects_unsupported_architectures(name, tmp_path, llama_folder):
    kind = "seq2seq" if name in ("UMT5", "BART") else "causal"
    folder = save(tmp_path, llama_folder, *UNSUPPORTED[name], kind)
    with pytest.raises(LLMError, match="scored"):
        (make_seq2seq_scorer if kind == "seq2seq" else make_causal_scorer)(folder).load()


def test_page_lists_architectures():
    row = re.search(r"Seq2seq: the T5 family.*?(?=\n- \*\*|\n\n)", PAGE, re.DOTALL)[0].replace("\n", " ")
    accepted, rejected = re.sub(r"not [^)]*", "", row), ", ".join(re.findall(r"not ([^)]*)", row))
    for name in [*CAUSAL, *SEQ2SEQ]:
        assert name in accepted, name
    assert {part.strip() for part in rejected.split(",")} == set(UNSUPPORTED)
