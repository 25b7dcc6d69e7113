"""LoRA adapters of local chat models: replies, identity, and errors for other base models."""

import importlib.util
import json
import shutil

import pytest
import torch

from installed import skip_without
from llmrl.core.errors import LLMError
from llmrl.core.records import ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.by_name import build_model
from llmrl.llms.cache import compute_request_key
from llmrl.llms.local.loading import folder_fingerprint
from llmrl.llms.local.lora import BASE_MODEL_FILE, adapter_fingerprint
from tiny_models import make_tiny_causal

skip_without("peft")


def write_base_model(folder, model, revision, files):
    (folder / BASE_MODEL_FILE).write_text(json.dumps({"model": model, "revision": revision, "files": files}))


def make_adapter(model, folder, seed=0, rank=4):
    """Save an adapter with random A and B, which changes replies; training would initialize B with zeros."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft_model = get_peft_model(
            AutoModelForCausalLM.from_pretrained(model),
            LoraConfig(r=rank, lora_alpha=8 * rank, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        with torch.no_grad():
            for name, weight in peft_model.named_parameters():
                if "lora_B" in name:
                    weight.normal_(0, 0.3)
    peft_model.save_pretrained(folder)
    return folder, peft_model


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_tiny_causal(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory):
    return make_adapter(base, tmp_path_factory.mktemp("adapter"))


def chat(model, adapter=None, **options):
    options = {"max_tokens": 12, "temperature": 0.0} | options
    folder = None if adapter is None else str(adapter)
    return build_model("local_chat", model=str(model), seeds=Seeds(0), adapter=folder, **options)


REQUESTS = [ChatRequest(({"role": "user", "content": text},)) for text in ("Hi", "What next?", "0.1 0.2")]


def test_replies_match_peft(base, adapter):
    folder, module = adapter
    with_adapter, base_only = chat(base, folder), chat(base)
    torch.manual_seed(5)
    noise = torch.rand(1)
    torch.manual_seed(5)
    replies = with_adapter.complete(REQUESTS)
    assert torch.equal(torch.rand(1), noise)  # loading draws from no generator but its own
    assert [r.text for r in replies] != [r.text for r in base_only.complete(REQUESTS)]
    module.eval()
    for request, reply in zip(REQUESTS, replies, strict=True):
        ids = with_adapter.encode(request.messages)
        token_ids: list[int] = []
        with torch.no_grad():
            while len(token_ids) < 12 and with_adapter.tokenizer.eos_token_id not in token_ids:
                token_ids.append(int(module(torch.tensor([ids + token_ids])).logits[0, -1].argmax()))
        assert reply.text == with_adapter.tokenizer.decode(token_ids, skip_special_tokens=True)
    assert not any(weight.requires_grad for weight in with_adapter.module.parameters())


def test_adapter_cache_is_separate_from_model(base, adapter, tmp_path):
    folder, _ = adapter
    second_adapter, _ = make_adapter(base, tmp_path / "other", seed=1)
    models = [chat(base), chat(base, folder), chat(base, second_adapter)]
    assert len({compute_request_key(model.identity, REQUESTS[0]) for model in models}) == 3
    assert "adapter" not in models[0].identity
    labels = [model.label for model in models]
    assert labels[0] == f"{base} (local chat)"
    assert labels[1] == f"{base} + adapter {adapter_fingerprint(str(folder))[:8]} (local chat)" != labels[2]
    copied = shutil.copytree(folder, tmp_path / "copied")
    assert chat(base, copied).identity == models[1].identity  # by what it says, not by where it lies
    make_adapter(base, copied, seed=2)  # trained again in place
    assert chat(base, copied).identity != models[1].identity


def test_adapter_with_wrong_base_raises(base, adapter, tmp_path):
    folder = shutil.copytree(adapter[0], tmp_path / "adapter")
    write_base_model(folder, str(base), None, folder_fingerprint(str(base)))
    chat(base, folder).check()
    copy = shutil.copytree(base, tmp_path / "moved")
    chat(copy, folder).check()  # the same weights elsewhere
    retrained = make_tiny_causal(tmp_path / "retrained", seed=1)
    with pytest.raises(LLMError, match=r"llm\.model"):
        chat(retrained, folder).check()
    with pytest.raises(LLMError, match="other weights"):
        chat("Qwen/Qwen2.5-0.5B", folder).check()
    write_base_model(folder, "Qwen/Qwen2.5-0.5B", None, None)
    chat("Qwen/Qwen2.5-0.5B", folder).check()
    write_base_model(folder, "Qwen/Qwen2.5-0.5B", "abc", None)
    with pytest.raises(LLMError, match=r"llm\.revision=abc"):
        chat("Qwen/Qwen2.5-0.5B", folder).check()
    (folder / BASE_MODEL_FILE).write_text("{")
    with pytest.raises(LLMError, match=BASE_MODEL_FILE):
        chat(base, folder).check()


def test_invalid_adapter_raises(base, adapter, tmp_path, monkeypatch):
    with pytest.raises(LLMError, match="llmrl-finetune"):
        chat(base, tmp_path / "nowhere").check()
    assert "missing" in chat(base, tmp_path / "nowhere").label
    with pytest.raises(LLMError, match=r"adapter_config\.json.*adapter_model\.safetensors"):
        chat(base, tmp_path).check()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "peft" else object())
    with pytest.raises(LLMError, match=r"'llmrl\[finetune\]'"):
        chat(base, adapter[0]).check()


def test_adapter_for_wrong_architecture_raises(adapter, tmp_path):
    gpt2 = make_tiny_causal(tmp_path / "gpt2", "gpt2")
    with pytest.raises(LLMError, match=rf"llm\.adapter={adapter[0]}"):
        chat(gpt2, adapter[0]).complete(REQUESTS)
    from transformers import LlamaConfig, LlamaForCausalLM

    shallow = make_tiny_causal(tmp_path / "shallow")
    config = LlamaConfig.from_pretrained(shallow)
    config.num_hidden_layers = 1
    LlamaForCausalLM(config).save_pretrained(shallow)
    with pytest.raises(LLMError, match="another model: 14"):
        chat(shallow, adapter[0]).complete(REQUESTS)
    config.num_hidden_layers, config.hidden_size, config.head_dim = 2, 64, 16
    LlamaForCausalLM(config).save_pretrained(shallow)
    with pytest.raises(LLMError, match="size mismatch"):
        chat(shallow, adapter[0]).complete(REQUESTS)


def test_corrupt_adapter_raises(base, adapter, tmp_path):
    folder = shutil.copytree(adapter[0], tmp_path / "adapter")
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(LLMError, match=rf"llm\.adapter={folder}"):
        chat(base, folder).complete(REQUESTS)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "nonsense"}))
    with pytest.raises(LLMError, match=rf"llm\.adapter={folder}"):
        chat(base, folder).complete(REQUESTS)


def test_target_reply_uses_chat_template(base):
    """The tokens of prompt and reply are those of the conversation rendered by the template."""
    model = chat(base)
    messages = REQUESTS[0].messages
    text = model.tokenizer.apply_chat_template(
        [*messages, {"role": "assistant", "content": "0.5, 1"}], tokenize=True, return_dict=True
    )["input_ids"]
    token_ids = [*model.encode(messages), *model.encode_reply(messages, "0.5, 1")]
    assert text[: len(token_ids)] == token_ids and token_ids[-1] == model.tokenizer.eos_token_id
    assert model.tokenizer.decode(text[len(token_ids) :]) == "\n"
    prompt = model.tokenizer.apply_chat_template(
        list(messages), tokenize=True, return_dict=True, add_generation_prompt=True
    )["input_ids"]
    assert model.encode(messages) == prompt


def test_template_with_different_reply_prefix(base, tmp_path):
    template = tmp_path / "thinking.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
    )
    model = chat(base, chat_template=str(template))
    ids = model.encode_reply(REQUESTS[0].messages, "done")
    assert model.tokenizer.decode(ids) == "done<|im_end|>"
