"""Small models that are made for an environment when a run first needs them."""

import shutil

import pytest
from transformers import AutoTokenizer

from experiments import compose
from llmrl.core.errors import ConfigError
from llmrl.experiment.models import build_llm
from llmrl.experiment.small_models import SmallModels

GAME = ("env=goto_red_ball", "env.actions=restricted", "env.history=1", "agent=llm_ppo", "llm=small_scorer")
TINY = ("llm.make.width=16", "llm.make.layers=1", "llm.make.heads=2", "llm.make.vocabulary=400")


def scorer(root, *overrides):
    config = compose(*GAME, *TINY, f"output_root={root}", *overrides)
    return build_llm(config, None)


def weights(scorer):
    return {name: x.clone() for name, x in scorer.module.state_dict().items()}


@pytest.mark.slow
def test_it_is_made_once_and_again_the_same(tmp_path):
    first = scorer(tmp_path)
    folder = tmp_path / "models"
    assert not folder.exists()  # asking for it makes nothing
    before = weights(first)
    [made] = folder.iterdir()
    changed = made.stat().st_mtime_ns
    other = scorer(tmp_path, "env.n_envs=3")
    assert all((x == before[name]).all() for name, x in weights(other).items())
    assert [made] == list(folder.iterdir()) and made.stat().st_mtime_ns == changed  # and nothing half made is left
    shutil.rmtree(made)
    again = scorer(tmp_path)
    assert all((x == before[name]).all() for name, x in weights(again).items())


@pytest.mark.slow
def test_models_of_other_seeds_spell_alike(tmp_path):
    read = ("llm.make.reads=stories", "llm.make.stories=50", "llm.make.story_steps=2")
    nonsense = ("llm.make.reads=meaningless", *read[1:])
    tokenizers = []
    for overrides in (read, (*read, "seed=1"), nonsense):
        model = scorer(tmp_path, *overrides)
        model.load()
        tokenizers.append(AutoTokenizer.from_pretrained(model.model).get_vocab())
    assert len(list((tmp_path / "models").iterdir())) == 3
    assert tokenizers[0] == tokenizers[1] == tokenizers[2]


def test_what_a_model_has_read_is_said(tmp_path):
    assert scorer(tmp_path).label == "a small model that has read nothing (local scorer)"
    assert "meaningless stories" in scorer(tmp_path, "llm.make.reads=meaningless").label


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("llm.model=google/flan-t5-small",), "set one of the two"),
        (("llm.make=null",), "set one of the two"),
        (("llm.make.width=0",), "llm.make.width"),
        (("llm.make.reads=novels",), "llm.make.reads"),
    ],
)
def test_a_model_is_loaded_or_made(tmp_path, overrides, said):
    with pytest.raises(ConfigError, match=said):
        scorer(tmp_path, *overrides)


def test_only_where_there_are_texts(tmp_path):
    config = compose("env=escape_room", f"output_root={tmp_path}")
    model = scorer(tmp_path)._make
    with pytest.raises(ConfigError, match="no text channel"):
        SmallModels(config).make("causal", model)
    assert list((tmp_path / "models").iterdir()) == []
