"""Tables in option files: values that a file sets for single options of another group."""

import pytest

from experiments import compose
from llmrl.config.option_docs import read_documented_config as documentation
from llmrl.core.errors import ConfigError
from llmrl.experiment.composition import compose_config, to_plain

SEARCH = ("experiment=search/linear", "treatment=props_plus", "env=hopper")


def compose_from(folder, *overrides):
    with compose_config("train", overrides, [folder]) as config:
        return to_plain(config)


@pytest.fixture
def experiment(tmp_path):
    """Return a function that writes `experiment=mine` and returns its folder."""

    def write(text):
        (tmp_path / "experiment").mkdir(exist_ok=True)
        (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")
        return tmp_path

    return write


def test_selected_row_is_merged():
    config = compose(*SEARCH)
    # From the table of treatment=props, and from that of treatment=props_plus, which includes it.
    assert config["principal"]["optimum"] == 1000.0 and config["agent"]["clip_actions"] is False
    assert config["search"]["warmup"] == 100 and config["search"]["iterations"] == 395
    assert "per_env" not in config and "per_principal" not in config


def test_missing_row_keeps_file_values():
    config = compose("experiment=search/linear", "treatment=props", "env=acrobot")
    assert config["principal"]["optimum"] is None and config["search"]["warmup_draw"] == "normal3_round1"


def test_later_presets_override_row():
    assert compose(*SEARCH, "search.warmup=7")["search"]["warmup"] == 7
    player = ("env=acrobot", "agent=llm_player")
    assert compose(*player)["agent"]["action_interval"] == 3
    assert compose(*player, "agent.action_interval=2")["agent"]["action_interval"] == 2
    assert compose(*player, "experiment=first/zero_shot")["agent"]["action_interval"] == 1


def test_row_overrides_file(experiment):
    folder = experiment("learn: {env_steps: 5}\nper_env:\n  nim: {learn: {env_steps: 7}}\n")
    assert compose_from(folder, "experiment=mine", "env=nim")["learn"]["env_steps"] == 7
    assert compose_from(folder, "experiment=mine", "env=maze")["learn"]["env_steps"] == 5


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("per_env:\n  nmi: {learn: {env_steps: 7}}\n", "mine.yaml, per_env: .*'nmi'"),
        ("per_principal:\n  ubc: {design: {steps: 7}}\n", "per_principal: .*'ubc'"),
        ("per_env: [nim]\n", "experiment/mine.yaml, per_env: .*env="),
        ("per_env:\n  nim: 3\n", "experiment/mine.yaml, per_env.nim: .* 3$"),
    ],
)
def test_rejects_invalid_table(experiment, table, message):
    with pytest.raises(ConfigError, match=message):
        compose_from(experiment(table), "experiment=mine", "env=maze")


def test_explain_names_row():
    documents = documentation("train", SEARCH)
    assert documents["search.warmup"].value == 100
    assert documents["search.warmup"].value_location.startswith("conf/treatment/props.yaml:")
    assert not [key for key in documents if key.startswith("per_")]


def test_hydra_compose_resolves_option_names(tmp_path):
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir, initialize_config_module
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    import llmrl.conf

    (tmp_path / "mine.yaml").write_text(
        "hydra: {searchpath: ['llmrl://options']}\ndefaults: [train, _self_]\n"
        "name: 'mine_${option:env}_${option:principal}'\n"
    )
    places = [
        (lambda: initialize_config_module("llmrl.conf", version_base="1.3"), "train", "nim"),
        (lambda: initialize_config_dir(llmrl.conf.__path__[0], version_base="1.3"), "train", "nim"),
        (lambda: initialize_config_module("llmrl.conf", version_base="1.3"), "finetune", "finetune_nim"),
        (lambda: initialize_config_dir(str(tmp_path), version_base="1.3"), "mine", "mine_nim_ucb"),
    ]
    hydra_config = HydraConfig.instance()
    previous_config, hydra_config.cfg = hydra_config.cfg, None
    try:
        for initialize, primary, name in places:
            with initialize():
                config = hydra_compose(primary, overrides=["env=nim", "principal=ucb"])
            assert OmegaConf.to_container(config, resolve=True)["name"] == name
    finally:
        hydra_config.cfg = previous_config


def test_option_of_other_group_raises(experiment):
    with pytest.raises(ConfigError, match=r"mine.yaml: \$\{option:agent\} .*env, principal"):
        compose_from(experiment("name: '${option:agent}'\n"), "experiment=mine")
