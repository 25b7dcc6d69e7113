"""Errors of missing models and packages, which name alternatives."""

import importlib.util

import pytest
import torch

from llmrl.core.errors import LLMError
from llmrl.llms.local.loading import check_model, folder_fingerprint, load_model, load_tokenizer
from llmrl.llms.local.small import SmallModelShape, make_small_model
from models import make_causal_scorer, make_seq2seq_scorer


def test_large_file_fingerprints_use_samples(tmp_path):
    weights, size = tmp_path / "model.safetensors", (65 << 20) + 1

    def fingerprint(changed=None, size=size):
        with weights.open("wb") as file:
            file.truncate(size)  # sparse
            if changed is not None:
                file.seek(changed)
                file.write(b"x")
        return folder_fingerprint(str(tmp_path), hashes_blocks=True)

    original = fingerprint()
    assert fingerprint() == original
    assert len({original, fingerprint(0), fingerprint(size - 1), fingerprint(size=size + 1)}) == 4
    (tmp_path / "config.json").write_text("{}")
    assert fingerprint() != original
    small = 1 << 20
    assert fingerprint(small // 2 + 77, small) != fingerprint(None, small)  # small files are read as a whole
    assert folder_fingerprint(str(tmp_path)) == folder_fingerprint(str(tmp_path), hashes_blocks=True)
    assert folder_fingerprint("google/flan-t5-small", hashes_blocks=True) is None


@pytest.mark.parametrize("name", ["google/flan-t5-small", "gpt2", "Qwen/Qwen2.5-0.5B"])
def test_hub_names_are_plausible(name):
    check_model(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "no folder /no/such/folder"),
        ("./nothing", "no folder nothing"),
        ("a/b/c", "'a/b/c'"),
        ("google/flan t5", "'google/flan t5'"),
    ],
)
def test_impossible_names_raise_early(name, message):
    for scorer in (make_seq2seq_scorer(name), make_causal_scorer(name)):
        with pytest.raises(LLMError, match=message + ".*save_pretrained.*HF_HOME"):
            scorer.check()


def test_folder_lacks_model(tmp_path):
    with pytest.raises(LLMError, match=r"config\.json"):
        check_model(str(tmp_path))


def test_missing_package(monkeypatch, t5_folder):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find_spec(name))
    with pytest.raises(LLMError, match=r"'llmrl\[local-llm\]'"):
        make_seq2seq_scorer(t5_folder).check()


@pytest.mark.long
@pytest.mark.slow
def test_uncached_hub_name(tmp_path):
    """Uses a separate offline process, because the library reads environment variables on import."""
    import os
    import subprocess
    import sys

    code = (
        "from llmrl.core.errors import LLMError\n"
        "from llmrl.llms.local.loading import load_model, load_tokenizer\n"
        "for load in (lambda: load_tokenizer('google/flan-t5-small', None),\n"
        "             lambda: load_model('seq2seq', 'google/flan-t5-small', None, 'cpu', 'float32')):\n"
        "    try:\n"
        "        load()\n"
        "    except LLMError as error:\n"
        "        print(error)\n"
    )
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert "tokenizer" in lines[0] and "seq2seq" in lines[1]
    assert all("google/flan-t5-small: " in line and "HF_HUB_OFFLINE=1" in line for line in lines)


def test_corrupt_model(t5_folder, tmp_path):
    (tmp_path / "config.json").write_text((t5_folder / "config.json").read_text())
    with pytest.raises(LLMError, match="seq2seq"):
        load_model("seq2seq", str(tmp_path), None, "cpu", "float32")
    (tmp_path / "model.safetensors").write_bytes((t5_folder / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(LLMError, match="seq2seq"):
        load_model("seq2seq", str(tmp_path), None, "cpu", "float32")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LLMError, match="tokenizer"):
        load_tokenizer(str(tmp_path), None)


def test_an_impossible_device(t5_folder):
    with pytest.raises(LLMError, match="device nonsense"):
        load_model("seq2seq", str(t5_folder), None, "nonsense", "float32")


def test_model_is_ready_to_score_after_load(t5_folder):
    module = load_model("seq2seq", str(t5_folder), None, "cpu", "bfloat16")
    assert not module.training and next(module.parameters()).dtype == torch.bfloat16


def test_random_weights_agree_across_dtypes(tmp_path):
    """Weights depend only on the seed; builds of torch sample half precision differently."""
    make_small_model(
        tmp_path, ["go left", "go right"] * 10, "seq2seq", shape=SmallModelShape(width=64, layers=1, vocabulary=300)
    )
    full, half = (
        load_model("seq2seq", str(tmp_path), None, "cpu", dtype, "random", seed=3) for dtype in ("float32", "bfloat16")
    )
    halves = dict(half.named_parameters())
    assert halves and half.config.dtype == torch.bfloat16
    for name, weights in full.named_parameters():
        assert torch.equal(weights.to(torch.bfloat16), halves[name])
