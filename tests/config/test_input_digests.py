"""What a file outside the config says belongs to the experiment, wherever the file is."""

import shutil

import pytest

from experiments import compose
from llmrl.config.input_digests import with_digests
from llmrl.core.errors import ConfigError
from llmrl.envs.texts.registry import FILES
from llmrl.run.config_hash import config_hash

TASKS = {"train": ("env=taxi", "agent=llm_player"), "finetune": ("transfer=[maze]",)}
NODES = {"env": "env.text", "transfer": "transfer.maze.env.text"}


@pytest.mark.parametrize(("primary", "node"), [("train", "env"), ("finetune", "env"), ("finetune", "transfer")])
def test_an_edited_text_is_another_experiment(tmp_path, primary, node):
    text = tmp_path / "mine.yaml"
    shutil.copy(FILES / "taxi.yaml", text)
    config = compose(*TASKS[primary], f"{NODES[node]}={text}", primary=primary)
    before = with_digests(config)
    assert len(before["text_digest"]) == 12 and before == with_digests(config) == with_digests(before)
    text.write_text(text.read_text() + "# more\n")
    assert config_hash(with_digests(config)) != config_hash(before)
    with pytest.raises(ConfigError, match=r"the text .*mine.yaml has changed since this run was submitted"):
        with_digests(before)


def test_two_texts_count_both(tmp_path):
    texts = [tmp_path / name for name in ("a.yaml", "b.yaml")]
    for text in texts:
        shutil.copy(FILES / "taxi.yaml", text)
    chosen = (f"env.text={texts[0]}", f"transfer.maze.env.text={texts[1]}", "transfer=[maze]")
    config = compose(*chosen, primary="finetune")
    found = {with_digests(config)["text_digest"]}
    for text in texts:
        text.write_text(text.read_text() + "# more\n")
        found.add(with_digests(config)["text_digest"])
    assert len(found) == 3


@pytest.mark.parametrize("text", ["taxi", "auto", "own", "null", "my_package.Words"])
def test_nothing_is_added_where_the_text_is_no_file(text):
    config = compose("env=taxi", f"env.text={text}")
    assert with_digests(config) == config


def test_a_text_that_is_not_there():
    with pytest.raises(ConfigError, match=r"env.text=/nowhere.yaml cannot be read: No such file"):
        with_digests(compose("env=taxi", "env.text=/nowhere.yaml"))
