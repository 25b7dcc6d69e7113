"""Variants: options that share a file."""

import pytest

from llmrl.config.option_docs import format_option_path, read_description, read_documented_config, read_keys
from llmrl.config.treatments import check_treatment
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import (
    VARIANTS_KEY,
    find_file,
    find_variants,
    get_root,
    list_option_names,
    list_paths,
    read_file,
    sets_global_keys,
)

FOLDERS = sorted({path.parent for path in list_paths()})


def test_variant_includes_file():
    expected = {"defaults": ["gflan"], "llm": {"weights": "embeddings"}}
    assert read_file(get_root() / "treatment" / "npe.yaml") == expected
    # Files in folders of a group are named from the root.
    defaults = read_file(get_root() / "experiment" / "grounding" / "goto_red_ball.yaml")["defaults"]
    assert defaults[0] == "/experiment/grounding/goto_local"


def test_variant_of_variant_includes_file():
    assert read_file(get_root() / "regime" / "cleanup_scratch.yaml")["defaults"] == ["cleanup"]


def test_file_with_variants_only_is_no_option():
    path = get_root() / "treatment" / "tax_gp.yaml"
    assert read_file(path)["defaults"] == [{"override /principal": "gp"}] and sets_global_keys(path)
    assert find_file(path) not in list_paths() and path in list_paths()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(get_root()).as_posix())
def test_variants_are_all_found(folder):
    import yaml

    documents = [yaml.safe_load(file.read_text()) or {} for file in folder.glob("*.yaml")]
    parsed = [name for document in documents for name in document.get(VARIANTS_KEY, ())]
    assert sorted(parsed) == sorted(find_variants(folder))
    assert not set(parsed) & {file.stem for file in folder.glob("*.yaml")}


def test_variant_has_documentation():
    path = get_root() / "regime" / "harvest.yaml"
    assert read_description(path).startswith("Harvest: agents pre-trained")
    replicates = next(entry for entry in read_keys(path) if entry.key == ("design", "replicates"))
    assert replicates.comment.startswith("also read by llmrl-finetune")
    assert "replicates: 1" in find_file(path).read_text().splitlines()[replicates.line - 1]
    document = read_documented_config("train", ["env=harvest"])["design.replicates"]
    location = f"{format_option_path(path)}:{replicates.line}"
    assert document.value_location == location == f"conf/regime/_regimes.yaml:{replicates.line}"


def test_bases_are_no_options():
    assert "taught" in list_option_names("treatment") and "_schedule" not in list_option_names("treatment")
    with pytest.raises(ConfigError, match="treatment=_schedule"):
        check_treatment({"experiment": "teacher/rooms", "treatment": "_schedule"})
