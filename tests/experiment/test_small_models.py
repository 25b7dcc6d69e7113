"""Small models that are created for an environment on first use."""

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
def test_model_is_reproducible(tmp_path):
    first = scorer(tmp_path)
    folder = tmp_path / "models"
    assert not folder.exists()  # asking for it makes nothing
    initial_weights = weights(first)
    [model_folder] = folder.iterdir()
    changed = model_folder.stat().st_mtime_ns
    second_scorer = scorer(tmp_path, "env.n_envs=3")
    assert all((x == initial_weights[name]).all() for name, x in weights(second_scorer).items())
    assert [model_folder] == list(
        folder.iterdir()
    ) and model_folder.stat().st_mtime_ns == changed  # and nothing half made is left
    shutil.rmtree(model_folder)
    second_model = scorer(tmp_path)
    assert all((x == initial_weights[name]).all() for name, x in weights(second_model).items())


@pytest.mark.long
@pytest.mark.slow
def test_seeds_share_vocabulary(tmp_path):
    read = ("llm.make.reads=stories", "llm.make.stories=50", "llm.make.pretraining_steps=2")
    nonsense = ("llm.make.reads=meaningless", *read[1:])
    tokenizers = []
    for overrides in (read, (*read, "seed=1"), nonsense):
        model = scorer(tmp_path, *overrides)
        model.load()
        tokenizers.append(AutoTokenizer.from_pretrained(model.model).get_vocab())
    assert len(list((tmp_path / "models").iterdir())) == 3
    assert tokenizers[0] == tokenizers[1] == tokenizers[2]


def test_folder_of_proposer_depends_on_size_of_search(tmp_path):
    """Prompts state the numbers of iterations and proposals."""
    proposer = ("env=cartpole", "agent=linear", "principal=llm", "llm=small_chat", f"output_root={tmp_path}")
    sizes = ("search.iterations=10", "search.candidates=2", "search.evaluate_episodes=7")
    folders = [build_llm(compose(*proposer, *size), None).provider.model for size in ((), *((size,) for size in sizes))]
    assert len(set(folders)) == 3 and folders[0] == folders[3]


def test_reports_training_texts(tmp_path):
    assert scorer(tmp_path).label == "a small model that has read nothing (local scorer)"
    assert "meaningless stories" in scorer(tmp_path, "llm.make.reads=meaningless").label


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("llm.model=google/flan-t5-small",), "llm.model=google/flan-t5-small .*llm.make=settings"),
        (("llm.make=null",), "llm.model=None .*llm.make=null"),
        (("llm.make.width=0",), "llm.make.width"),
        (("llm.make.reads=novels",), "llm.make.reads"),
    ],
)
def test_model_is_loaded_or_created(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        scorer(tmp_path, *overrides)


def test_texts_are_required(tmp_path):
    config = compose("env=escape_room", f"output_root={tmp_path}")
    model = scorer(tmp_path).settings.make
    with pytest.raises(ConfigError, match=r"env=escape_room .*channel"):
        SmallModels(config).make("causal", model)
    assert list((tmp_path / "models").iterdir()) == []
