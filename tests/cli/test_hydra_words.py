"""Words of Hydra's users: they do what is expected, or are answered with what to write."""

import importlib.util
import sys

import pytest

import commands
from llmrl.config.overrides import translated
from llmrl.core.errors import ConfigError
from llmrl.experiment.composition import composed
from llmrl.experiment.experiment import Experiment


@pytest.mark.parametrize(
    ("typed", "meant", "said"),
    [
        (["+experiment=x/y"], ["experiment=x/y"], ""),
        (["treatment=null", "agent.init_from=null"], ["treatment=none", "agent.init_from=null"], ""),
        (["principal=ucb,null"], ["principal=ucb,none"], ""),
        (["+agent.kwargs.x=1", "+new.key=2"], ["+agent.kwargs.x=1", "+new.key=2"], ""),
        (["hydra/launcher=basic", "seed=1"], ["hydra/launcher=basic", "seed=1"], ""),
        (["hydra/launcher=submitit_slurm"], ["hardware=slurm_cpu"], "hardware=slurm_gpu asks for GPUs"),
        (["hardware=gpu", "hydra/launcher=submitit_slurm"], ["hardware=slurm_gpu"], "submits with submitit"),
        (["hydra/launcher=submitit_slurm", "hardware=mine"], ["hardware=mine"], "hardware=mine"),
        (["hydra/launcher=submitit_local", "seed=0,1"], ["seed=0,1"], "here"),
    ],
)
def test_what_hydra_users_type(typed, meant, said):
    found, sentences = translated(typed)
    assert found == meant and said in " ".join(sentences) and bool(said) == bool(sentences)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["treatment=[ucb,llm]"], r"--multirun with treatment=a,b"),
        (["hydra.run.dir=here"], r"output_root=here"),
        (["hydra.sweep.dir=multirun/x"], r"output_root=multirun/x"),
        (["hydra/launcher=submitit_slurm", "hydra.launcher.partition=big"], r"hardware\.\w+\.partition=big"),
        (["hydra/launcher=submitit_slurm", "hydra.launcher.gpus_per_node=2"], r"hardware\.gpus=2"),
        (["hydra/launcher=submitit_slurm", "hydra.launcher.nonsense=2"], r"no option here; those of jobs: "),
    ],
)
def test_what_is_written_otherwise_is_said(typed, message):
    with pytest.raises(ConfigError, match=message):
        translated(typed)


def test_every_option_that_is_named_exists():
    """The counterparts of submitit's options are keys of a config on a cluster."""
    from llmrl.config.overrides import _SUBMITIT

    config = Experiment.compose("env=escape_room", "hardware=slurm_cpu").config
    for key in _SUBMITIT.values():
        node = config
        for name in key.split("."):
            assert name in node, key
            node = node[name]


def test_a_sweep_says_which_runs_it_will_not_try():
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from llmrl.config.overrides import combinations
    from llmrl.core.errors import ConfigError

    parse = OverridesParser.create().parse_overrides
    assert combinations(parse(["a=1,2", "b=x", "c=range(2)"])) == [
        [f"a={a}", "b=x", f"c={c}"] for a in (1, 2) for c in (0, 1)
    ]
    assert combinations(parse(["a=1", "a=3"])) == [["a=3"]] and combinations(parse(["a=[]"])) == [["a=[]"]]
    with pytest.raises(ConfigError, match=r"name them \(a=a,b,c\).*hydra/sweeper=optuna"):
        combinations(parse(["a=interval(0,1)"]))
    with pytest.raises(ConfigError, match="a, b"):
        combinations(parse(["a=range(0,10000000)", "b=1,2"]))
    with pytest.raises(ConfigError):
        combinations(parse([f"{key}=range(0,100)" for key in "abc"]))


@pytest.mark.slow
def test_the_launcher_of_the_card_is_ours_and_says_so(tmp_path):
    assert importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is None
    words = ["--multirun", "hydra/launcher=submitit_local", "+env=escape_room", "dry_run=true"]
    done = commands.run(
        [sys.executable, "-m", "llmrl.cli.train", *words, "env.n_envs=1", "seed=0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "llmrl's own launcher computes runs here" in done.stderr and "LearnLoop" in done.stdout


@pytest.mark.parametrize("primary", ["train", "finetune"])
def test_a_study_of_ones_own_is_found_by_both_commands(tmp_path, primary):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "nice.yaml").write_text("# @package _global_\nname: nice\n")
    words, _ = translated(["+experiment=nice"])
    with composed(primary, words, [tmp_path]) as config:
        assert config.name == "nice"
