"""Contents of input files are part of the hash of an experiment, wherever the files are."""

import shutil

import pytest

from experiments import compose
from llmrl.config.input_digests import with_digests
from llmrl.core.errors import ConfigError
from llmrl.envs.texts.registry import FILES
from llmrl.run.config_hash import config_hash

TASKS = {"train": ("env=taxi", "agent=llm_player"), "finetune": ()}


@pytest.mark.parametrize("primary", TASKS)
def test_changed_text_changes_hash(tmp_path, primary):
    text = tmp_path / "mine.yaml"
    shutil.copy(FILES / "taxi.yaml", text)
    config = compose(*TASKS[primary], f"env.text={text}", primary=primary)
    initial = with_digests(config)
    assert len(initial["text_digest"]) == 12 and initial == with_digests(config) == with_digests(initial)
    text.write_text(text.read_text() + "# more\n")
    assert config_hash(with_digests(config)) != config_hash(initial)
    with pytest.raises(ConfigError, match=r"mine.yaml"):
        with_digests(initial)


@pytest.mark.parametrize("text", ["taxi", "auto", "own", "null", "my_package.Words"])
def test_inline_text_has_no_digest(text):
    config = compose("env=taxi", f"env.text={text}")
    assert with_digests(config) == config


def test_missing_text():
    with pytest.raises(ConfigError, match=r"env.text=/nowhere.yaml"):
        with_digests(compose("env=taxi", "env.text=/nowhere.yaml"))
