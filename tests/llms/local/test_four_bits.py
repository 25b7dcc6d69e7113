"""Adapters over weights in four bits, with bitsandbytes itself: what they learn from is the gradient of the model."""

import copy
import importlib.util

import pytest
import torch

from llmrl.llms.local.loading import four_bit_layers
from llmrl.llms.local.lora import Lora
from llmrl.llms.local.small import SmallModelShape, make_small_model
from models import causal_scorer, seq2seq_scorer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed (llmrl[four-bit])"
)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SCORERS = {"causal": causal_scorer, "seq2seq": seq2seq_scorer}
PROMPTS = ["Goal of the agent: go to the grey box", "Observation: You see a wall 2 steps left"]
NAMES = ["turn left", "turn right", "go forward"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    paths = {}
    for kind in SCORERS:
        paths[kind] = tmp_path_factory.mktemp(kind)
        make_small_model(
            paths[kind], [*PROMPTS, *NAMES] * 10, kind, shape=SmallModelShape(width=128, layers=2, vocabulary=320)
        )
    return paths


def train_adapter(scorer):
    """Return the scorer with an adapter that already does something."""
    Lora(rank=4, alpha=8.0).inject(scorer.module, 0)
    with torch.no_grad():
        for i, (name, p) in enumerate(scorer.module.named_parameters()):
            if "lora_B" in name:
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) * 0.1)
    return scorer


def gradients(scorer):
    scorer.module.zero_grad()
    scores = scorer.score(PROMPTS, NAMES)
    (scores * torch.tensor([[1.0, -2.0, 1.0], [-1.0, 0.5, 0.5]], device=scores.device)).sum().backward()
    return {name: p.grad.clone() for name, p in scorer.module.named_parameters() if p.requires_grad}


def save_dequantized(folder, kind, quantized, device="cpu"):
    """Return the same model with its four-bit weights as numbers, computed in float32 by torch."""
    from bitsandbytes.functional import dequantize_4bit

    scorer = SCORERS[kind](str(folder), device=device)
    with torch.no_grad():
        for name, layer in four_bit_layers(quantized.module).items():
            scorer.module.get_submodule(name).weight.copy_(dequantize_4bit(layer.weight.data, layer.weight.quant_state))
    return scorer


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", SCORERS)
def test_adapter_learns_from_model_gradient(folders, kind, device):
    scorer = SCORERS[kind](str(folders[kind]), four_bit=True, device=device)
    scorer.load()  # which uses the model without a gradient, as rollouts do
    assert len(four_bit_layers(scorer.module)) > 5
    twin = train_adapter(save_dequantized(folders[kind], kind, scorer, device))
    train_adapter(scorer)
    reference = gradients(twin)
    for _ in range(2):  # whatever mode the model was put into, and after rollouts
        actual = gradients(scorer)
        assert actual.keys() == reference.keys()
        errors = torch.stack([(actual[name] - x).norm() / x.norm() for name, x in reference.items()])
        assert errors.median() < 0.05 and errors.max() < 0.3
        scorer.module.train()
        scorer.module.eval()
        with torch.no_grad():
            scorer.score(PROMPTS[:1], NAMES)


def test_half_precision_products_match_float32(folders):
    scorer = causal_scorer(folders["causal"], four_bit=True)
    scorer.load()
    assert {layer.compute_dtype for layer in four_bit_layers(scorer.module).values()} == {torch.bfloat16}
    half = causal_scorer(folders["causal"], four_bit=True, dtype="float16")
    half.load()
    assert {layer.compute_dtype for layer in four_bit_layers(half.module).values()} == {torch.float16}
    with torch.no_grad():
        reference = save_dequantized(folders["causal"], "causal", scorer).score(PROMPTS, NAMES)
        assert ((scorer.score(PROMPTS, NAMES) - reference) / reference).abs().max() < 0.02


def test_copy_keeps_gradients(folders):
    scorer = causal_scorer(folders["causal"], four_bit=True)
    copied = copy.deepcopy(scorer.module).eval()
    with torch.no_grad():
        copied(input_ids=torch.tensor([[5, 6, 7]]))
    scorer.replace_module(copied)
    train_adapter(scorer)
    twin = train_adapter(save_dequantized(folders["causal"], "causal", causal_scorer(folders["causal"], four_bit=True)))
    reference = gradients(twin)
    errors = torch.stack(
        [(x - reference[name]).norm() / reference[name].norm() for name, x in gradients(scorer).items()]
    )
    assert errors.median() < 0.05 and errors.max() < 0.3


def test_only_quantized_layers_enter_training_mode(folders):
    scorer = SCORERS["seq2seq"](str(folders["seq2seq"]), four_bit=True)
    quantized = set(four_bit_layers(scorer.module).values())
    with torch.no_grad():
        scorer.score(PROMPTS, NAMES)
    assert {module.training for module in quantized} == {True}
    assert not any(module.training for module in scorer.module.modules() if module not in quantized)
