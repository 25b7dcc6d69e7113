"""Trained adapters are standard peft folders with equal outputs in transformers with peft."""

import pytest
import torch

from learning_chats import QUESTIONS, make_request, make_settings, sample_trajectories
from llmrl.llms.local.loading import load_model
from llmrl.llms.local.lora import merge_adapter


@pytest.fixture
def trained(make_chat, tmp_path):
    """Return a chat model with a trained adapter, and the adapter's folder."""
    chat = make_chat(learn=make_settings(tune="lora", learning_rate=1e-2))
    trajectories = sample_trajectories(chat, reward=lambda game, step, reply: float(game))
    chat.learners.learner("").update(trajectories, torch.Generator().manual_seed(0))
    folder = tmp_path / "adapter"
    chat.learners.learner("").write_adapter(folder)
    return chat, folder


def logits(module, chat):
    ids = torch.tensor([chat.encode(make_request(QUESTIONS[0]).messages)])
    with torch.no_grad():
        return module(input_ids=ids).logits


def test_adapter_matches_plain_peft(trained, chat_folder):
    from peft import PeftModel

    chat, folder = trained
    expected = logits(chat.module, chat)
    base = load_model("causal", str(chat_folder), None, "cpu", "float32")
    assert not torch.allclose(logits(base, chat), expected, atol=1e-3)
    plain = PeftModel.from_pretrained(base, folder).eval()
    torch.testing.assert_close(logits(plain, chat), expected, rtol=1e-5, atol=1e-5)
    merged = merge_adapter(load_model("causal", str(chat_folder), None, "cpu", "float32"), str(folder))
    torch.testing.assert_close(logits(merged, chat), expected, rtol=1e-4, atol=1e-4)


def test_adapter_serves_other_roles(trained, make_chat):
    chat, folder = trained
    user = make_chat(adapter=str(folder))
    user.check()
    torch.testing.assert_close(logits(user.module, chat), logits(chat.module, chat), rtol=1e-5, atol=1e-5)


def test_equal_weights_give_equal_files(trained, tmp_path):
    chat, folder = trained
    chat.learners.learner("").write_adapter(tmp_path / "again")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()
    }


def test_full_tuning_writes_no_adapter(make_chat, tmp_path):
    chat = make_chat(learn=make_settings())
    chat.learners.learner("").write_adapter(tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
