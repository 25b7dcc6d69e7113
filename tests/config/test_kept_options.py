"""Cached option files: compositions equal those of Hydra alone."""

import pytest
import yaml
from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import Container, OmegaConf
from omegaconf._utils import get_yaml_loader

from kept_options import cache_options, get_yaml_loader_class
from llmrl.core.option_files import get_root
from llmrl.experiment.composition import compose_config, to_plain

CASES = (
    ("train", "env=escape_room", "principal=ucb", "seed=3"),
    ("train", "experiment=legislative/cleanup", "treatment=llm"),
    ("train", "experiment=search/table", "env=maze", "hardware=slurm_gpu"),
    ("finetune", "env=frozen_lake"),
)


def describe(node):
    """Return a config with all metadata of its OmegaConf nodes."""
    metadata = node._metadata
    description = [type(node), metadata.key, metadata.optional, metadata.ref_type, metadata.object_type, metadata.flags]
    if not isinstance(node, Container):
        return [*description, repr(node._val)]
    content = node._content
    if isinstance(content, dict):
        assert all(child._get_parent() is node for child in content.values())
        return [
            *description,
            metadata.key_type,
            metadata.element_type,
            [(key, describe(child)) for key, child in content.items()],
        ]
    return [
        *description,
        metadata.element_type,
        [describe(e) for e in content] if isinstance(content, list) else content,
    ]


def compose_fully(primary, *overrides):
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        return describe(compose(primary, list(overrides), return_hydra_config=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case[:2]))
def test_cached_options_compose_like_hydra(case, monkeypatch):
    from hydra._internal import config_loader_impl, defaults_list

    cache_options()
    source, options = (SourcesRegistry.instance().resolve(scheme) for scheme in ("pkg", "llmrl"))
    cached = [compose_fully(*case), compose_fully(*case)]
    with monkeypatch.context() as context:
        for owner, name in (
            (source, "_read_config"),
            (options, "load_config"),
            (config_loader_impl, "create_defaults_list"),
            (ConfigLoaderImpl, "_compose_config_from_defaults_list"),
            (defaults_list, "_create_interpolation_map"),
        ):
            context.setattr(owner, name, getattr(owner, name).__wrapped__)
        expected = compose_fully(*case)
    assert cached == [expected, expected]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case[:2]))
def test_equal_options_share_listing_and_merge(case, monkeypatch):
    """Otherwise every composition of the tests costs several times as much."""
    from hydra._internal.config_repository import CachingConfigRepository

    cache_options()
    compose_fully(*case)
    read, paths = CachingConfigRepository.load_config, []

    def load_config(self, config_path):
        paths.append(config_path)
        return read(self, config_path)

    monkeypatch.setattr(CachingConfigRepository, "load_config", load_config)
    compose_fully(*case)
    assert paths == [case[0]], "Hydra looks for the search path in the primary file, and needs no other"


def test_libyaml_reads_package_files_identically():
    files = sorted(get_root().rglob("*.yaml"))
    assert len(files) > 100
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert repr(yaml.load(text, Loader=get_yaml_loader_class())) == repr(
            yaml.load(text, Loader=get_yaml_loader())
        ), file


def test_config_changes_do_not_leak():
    case = ("train", ["env=escape_room", "principal=ucb"])
    with compose_config(*case) as config:
        initial = to_plain(config)
        OmegaConf.update(config, "env.horizon", 1)
        config.agent.ppo.learning_rate = 7
    with compose_config(*case) as config:
        assert to_plain(config) == initial


def test_changed_file_is_reloaded(tmp_path):
    cache_options()
    source, file = SourcesRegistry.instance().resolve("pkg")("hydra", "pkg://hydra.conf"), tmp_path / "option.yaml"
    for text, expected in (("# @package _global_\na: 1", 1), ("# @package _global_\na: 2.5", 2.5)):
        file.write_text(text)
        for _ in range(2):
            description = source._read_config(file)
            assert (description.config, description.header) == ({"a": expected}, {"package": "_global_"})


def test_custom_files_are_reloaded(tmp_path):
    (tmp_path / "env").mkdir()
    package_text = (get_root() / "env" / "escape_room.yaml").read_text()
    for horizon in (3, 4):
        (tmp_path / "env" / "own.yaml").write_text(package_text.replace("horizon: 5 ", f"horizon: {horizon} "))
        with compose_config("train", ["env=own"], [tmp_path]) as config:
            assert config.env.horizon == horizon


def test_config_store_options_are_merged(monkeypatch):
    case = ("train", ["env=escape_room", "principal=stored"])
    for values in ([1.0], [2.0]):
        node = ConfigNode("stored.yaml", OmegaConf.create({"_target_": None, "values": values}), "principal", "", None)
        monkeypatch.setitem(ConfigStore.instance().repo, "principal", {"stored.yaml": node})
        with compose_config(*case) as config:
            assert config["values"] == values


def test_invalid_yaml_gives_hydra_error(tmp_path):
    cache_options()
    source, file = SourcesRegistry.instance().resolve("pkg")("hydra", "pkg://hydra.conf"), tmp_path / "option.yaml"
    file.write_text("a: [1\nb: {")
    with pytest.raises(yaml.YAMLError, match=r"option\.yaml"):
        source._read_config(file)
