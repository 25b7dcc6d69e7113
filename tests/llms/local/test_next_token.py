"""Pretraining of small models on stories with meaningful or random actions."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmrl.core.errors import ConfigError
from llmrl.envs.babyai.pretraining_texts import sample_stories
from llmrl.llms.local.small import SmallModelShape, make_small_model, train_on_texts
from tiny_models import make_model_for_env

MOVES = ("turn left", "turn right", "go forward")


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Return model folder and validation losses before and after training, by whether stories are meaningful."""
    results = {}
    for informative in (True, False):
        folder = tmp_path_factory.mktemp("model")
        texts = sample_stories(3000, 0, informative)
        make_small_model(
            folder, texts[:300], shape=SmallModelShape(width=64, layers=2, heads=2, vocabulary=600, tokens="words")
        )
        results[informative] = folder, train_on_texts(folder, texts, 250, seed=0, learning_rate=3e-3)
    return results


def share_right(folder, stories):
    """Return the share of stories whose last action is the most probable of the three."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    right = 0
    for story in stories:
        [move] = [move for move in MOVES if move in story]
        begin = story[: story.index(move)].rstrip()
        scores = []
        for action in MOVES:
            ids = torch.tensor([tokenizer(f"{begin} {action}", add_special_tokens=False)["input_ids"]])
            with torch.inference_mode():
                scores.append(-float(model(ids, labels=ids).loss) * (ids.shape[1] - 1))
        right += MOVES[scores.index(max(scores))] == move
    return right / len(stories)


@pytest.mark.long
def test_training_lowers_story_perplexity(read):
    for _, (initial, after) in read.values():
        assert after < initial / 3


@pytest.mark.long
def test_training_learns_only_meaningful_behavior(read):
    test_stories = sample_stories(100, 99)
    assert share_right(read[True][0], test_stories) > 0.7
    assert share_right(read[False][0], test_stories) < 0.55


@pytest.mark.slow
def test_training_is_deterministic(tmp_path):
    weights = []
    for name in "ab":
        make_small_model(
            tmp_path / name,
            sample_stories(200, 0),
            shape=SmallModelShape(width=32, layers=1, heads=2, vocabulary=400, tokens="words"),
        )
        train_on_texts(tmp_path / name, sample_stories(200, 0), 5, seed=1)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_small_model_reads_stories(tmp_path):
    game = ("env=goto_red_ball", "env.actions=restricted", "env.history=1")
    size = {"tokens": "words", "width": 32, "layers": 1, "heads": 2, "reads": "stories"}
    folder = make_model_for_env(tmp_path / "read", *game, **size, stories=100, pretraining_steps=3)
    assert AutoTokenizer.from_pretrained(folder)
    with pytest.raises(ConfigError, match=r"llm\.make\.reads=stories"):
        make_model_for_env(tmp_path / "refused", *game, **size, kind="seq2seq")
    assert not (tmp_path / "refused").exists()
