"""Contents of input files are part of the hash of an experiment, wherever the files are."""

import shutil

import pytest

from experiments import compose
from llmrl.config.input_digests import with_digests
from llmrl.core.errors import ConfigError
from llmrl.envs.texts.describers import TEXTS_DIR
from llmrl.run.config_hash import config_hash

TASKS = {"train": ("env=taxi", "agent=llm_player"), "finetune": ("transfer=[maze]",)}
NODES = {"env": "env.text", "transfer": "transfer.maze.env.text"}


@pytest.mark.parametrize(("primary", "node"), [("train", "env"), ("finetune", "env"), ("finetune", "transfer")])
def test_changed_text_changes_hash(tmp_path, primary, node):
    text = tmp_path / "mine.yaml"
    shutil.copy(TEXTS_DIR / "taxi.yaml", text)
    config = compose(*TASKS[primary], f"{NODES[node]}={text}", primary=primary)
    initial = with_digests(config)
    assert len(initial["text_digest"]) == 12 and initial == with_digests(config) == with_digests(initial)
    text.write_text(text.read_text() + "# more\n")
    assert config_hash(with_digests(config)) != config_hash(initial)
    with pytest.raises(ConfigError, match=r"mine.yaml"):
        with_digests(initial)


def test_both_texts_are_hashed(tmp_path):
    texts = [tmp_path / name for name in ("a.yaml", "b.yaml")]
    for text in texts:
        shutil.copy(TEXTS_DIR / "taxi.yaml", text)
    overrides = (f"env.text={texts[0]}", f"transfer.maze.env.text={texts[1]}", "transfer=[maze]")
    config = compose(*overrides, primary="finetune")
    digests = {with_digests(config)["text_digest"]}
    for text in texts:
        text.write_text(text.read_text() + "# more\n")
        digests.add(with_digests(config)["text_digest"])
    assert len(digests) == 3


@pytest.mark.parametrize("text", ["taxi", "auto", "own", "null", "my_package.Words"])
def test_inline_text_has_no_digest(text):
    config = compose("env=taxi", f"env.text={text}")
    assert with_digests(config) == config


def test_missing_text():
    with pytest.raises(ConfigError, match=r"env.text=/nowhere.yaml"):
        with_digests(compose("env=taxi", "env.text=/nowhere.yaml"))
