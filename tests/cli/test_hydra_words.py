"""Syntax of Hydra: it works, or an error gives the replacement."""

import pytest

from llmrl.config.overrides import to_hydra_arguments
from llmrl.core.errors import ConfigError
from llmrl.experiment.composition import compose_config


@pytest.mark.parametrize(
    ("words", "overrides"),
    [
        (["+experiment=x/y"], ["experiment=x/y"]),
        (["treatment=null", "agent.init_from=null"], ["treatment=none", "agent.init_from=null"]),
        (["principal=ucb,null"], ["principal=ucb,none"]),
        (["+agent.kwargs.x=1", "+new.key=2"], ["+agent.kwargs.x=1", "+new.key=2"]),
        (["hydra/launcher=basic", "seed=1"], ["hydra/launcher=basic", "seed=1"]),
    ],
)
def test_hydra_syntax_is_supported(words, overrides):
    assert to_hydra_arguments(words) == overrides


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("treatment=[ucb,llm]", "treatment=a"),
        ("hydra.run.dir=here", r"hydra\.run=.*here.*output_root"),
        ("hydra.sweep.dir=multirun/x", r"hydra\.sweep=.*multirun/x.*output_root"),
    ],
)
def test_different_syntax_is_explained(word, message):
    with pytest.raises(ConfigError, match=message), compose_config("train", [word]):
        pass


def test_sweep_reports_untested_combinations():
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from llmrl.config.overrides import expand_sweep
    from llmrl.core.errors import ConfigError

    parse = OverridesParser.create().parse_overrides
    assert expand_sweep(parse(["a=1,2", "b=x", "c=range(2)"])) == [
        [f"a={value}", "b=x", f"c={c}"] for value in (1, 2) for c in (0, 1)
    ]
    assert expand_sweep(parse(["a=1", "a=3"])) == [["a=3"]] and expand_sweep(parse(["a=[]"])) == [["a=[]"]]
    with pytest.raises(ConfigError, match=r"a=a.*hydra/sweeper=optuna"):
        expand_sweep(parse(["a=interval(0,1)"]))
    with pytest.raises(ConfigError, match="a, b"):
        expand_sweep(parse(["a=range(0,10000000)", "b=1,2"]))
    with pytest.raises(ConfigError):
        expand_sweep(parse([f"{key}=range(0,100)" for key in "abc"]))


@pytest.mark.parametrize("primary", ["train", "finetune"])
def test_custom_study_is_available_to_commands(tmp_path, primary):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "nice.yaml").write_text("# @package _global_\nname: nice\n")
    words = to_hydra_arguments(["+experiment=nice"])
    with compose_config(primary, words, [tmp_path]) as config:
        assert config.name == "nice"
