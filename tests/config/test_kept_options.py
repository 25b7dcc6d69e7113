"""Option files that are kept: what is composed of them is what Hydra alone composes."""

import pytest
import yaml
from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import Container, OmegaConf
from omegaconf._utils import get_yaml_loader

from kept_options import loader, read_once
from llmrl.core.option_files import root
from llmrl.experiment.composition import composed, plain_config

CASES = (
    ("train", "env=escape_room", "principal=ucb", "seed=3"),
    ("train", "experiment=legislative/cleanup", "treatment=llm"),
    ("train", "experiment=search/table", "env=maze", "hardware=slurm_gpu"),
    ("finetune", "env=frozen_lake"),
)


def described(node):
    """A config with all that OmegaConf knows of its nodes."""
    about = node._metadata
    found = [type(node), about.key, about.optional, about.ref_type, about.object_type, about.flags]
    if not isinstance(node, Container):
        return [*found, repr(node._val)]
    content = node._content
    if isinstance(content, dict):
        assert all(each._get_parent() is node for each in content.values())
        return [*found, about.key_type, about.element_type, [(key, described(each)) for key, each in content.items()]]
    return [*found, about.element_type, [described(e) for e in content] if isinstance(content, list) else content]


def whole(primary, *overrides):
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        return described(compose(primary, list(overrides), return_hydra_config=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case[:2]))
def test_what_is_kept_composes_what_hydra_composes_alone(case, monkeypatch):
    from hydra._internal import config_loader_impl, defaults_list

    read_once()
    source = SourcesRegistry.instance().resolve("pkg")
    kept = [whole(*case), whole(*case)]
    with monkeypatch.context() as alone:
        for owner, name in (
            (source, "_read_config"),
            (config_loader_impl, "create_defaults_list"),
            (ConfigLoaderImpl, "_compose_config_from_defaults_list"),
            (defaults_list, "_create_interpolation_map"),
        ):
            alone.setattr(owner, name, getattr(owner, name).__wrapped__)
        expected = whole(*case)
    assert kept == [expected, expected]


def test_every_shipped_file_reads_with_libyaml_as_without():
    files = sorted(root().rglob("*.yaml"))
    assert len(files) > 200
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert repr(yaml.load(text, Loader=loader())) == repr(yaml.load(text, Loader=get_yaml_loader())), file


def test_what_is_changed_in_a_config_is_not_in_the_next():
    case = ("train", ["env=escape_room", "principal=ucb"])
    with composed(*case) as config:
        before = plain_config(config)
        OmegaConf.update(config, "env.horizon", 1)
        config.agent.ppo.learning_rate = 7
    with composed(*case) as config:
        assert plain_config(config) == before


def test_a_file_that_has_changed_is_read_anew(tmp_path):
    read_once()
    source, file = SourcesRegistry.instance().resolve("pkg")("main", "pkg://llmrl.conf"), tmp_path / "option.yaml"
    for text, expected in (("# @package _global_\na: 1", 1), ("# @package _global_\na: 2.5", 2.5)):
        file.write_text(text)
        for _ in range(2):
            found = source._read_config(file)
            assert (found.config, found.header) == ({"a": expected}, {"package": "_global_"})


def test_own_files_of_the_same_name_are_read_each_time(tmp_path):
    (tmp_path / "env").mkdir()
    shipped = (root() / "env" / "escape_room.yaml").read_text()
    for horizon in (3, 4):
        (tmp_path / "env" / "own.yaml").write_text(shipped.replace("horizon: 5 ", f"horizon: {horizon} "))
        with composed("train", ["env=own"], [tmp_path]) as config:
            assert config.env.horizon == horizon


def test_options_in_hydras_store_are_merged_each_time(monkeypatch):
    case = ("train", ["env=escape_room", "principal=stored"])
    for values in ([1.0], [2.0]):
        node = ConfigNode("stored.yaml", OmegaConf.create({"_target_": None, "values": values}), "principal", "", None)
        monkeypatch.setitem(ConfigStore.instance().repo, "principal", {"stored.yaml": node})
        with composed(*case) as config:
            assert config["values"] == values


def test_what_is_no_yaml_is_said_as_by_hydra(tmp_path):
    read_once()
    source, file = SourcesRegistry.instance().resolve("pkg")("main", "pkg://llmrl.conf"), tmp_path / "option.yaml"
    file.write_text("a: [1\nb: {")
    with pytest.raises(yaml.YAMLError, match=r"option\.yaml"):
        source._read_config(file)
