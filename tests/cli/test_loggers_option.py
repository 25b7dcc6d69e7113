"""`loggers=` on the command line: the sinks of a run, and the custom sink of examples/my_lab."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments import compose, find_run_folder, load_comparable_metrics, run
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options
from llmrl.experiment.parts import check_values
from llmrl.experiment.resources import RunResources
from llmrl.run.config_hash import config_hash

SAMPLE = Path(__file__).parents[2] / "examples" / "my_lab" / "my_lab" / "csv_file.py"
PLAY = ("env=escape_room", "principal=none", "agent=random", "env.n_envs=2", "env.horizon=4", "play.episodes=2")


@pytest.fixture
def sink_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the module with the sink of docs/extending.md."""
    (tmp_path / "page_sink.py").write_text(SAMPLE.read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "page_sink"
    sys.modules.pop("page_sink", None)


def test_documented_sink_works(tmp_path: Path, sink_module: str) -> None:
    sink_options = [f"+loggers.csv._target_={sink_module}.CsvFile", f"trusted_modules=[{sink_module}]"]
    run(*PLAY, f"output_root={tmp_path / 'out'}", *sink_options)
    folder = find_run_folder(tmp_path / "out")
    with (folder / "loggers" / "csv" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = [
        (str(number), row[row["x"]], name, value)
        for number, row in enumerate(load_comparable_metrics(folder))
        for name, value in row.items()
        if name not in ("kind", "x", "episodes", "env_steps")
    ]
    logged = [(row["row"], int(row["place"]), row["metric"], float(row["value"])) for row in rows]
    assert expected and logged == expected and {row["axis"] for row in rows} == {"episodes"}
    assert list(folder.glob("*tfevents*")), "beside TensorBoard"
    with pytest.raises(ConfigError, match="trusted modules"):
        check_values({**compose(*PLAY, sink_options[0]), "trusted_modules": []})


def test_loggers_do_not_change_run(tmp_path: Path) -> None:
    root = f"output_root={tmp_path}"
    score = run(*PLAY, root, "loggers=[]")
    folder = find_run_folder(tmp_path)
    assert load_comparable_metrics(folder) and not list(folder.glob("*tfevents*")) and not (folder / "loggers").exists()
    assert run(*PLAY, root) == score and not list(folder.glob("*tfevents*")), "it is finished already"
    assert find_run_folder(tmp_path) == folder


@pytest.mark.parametrize("primary", ["train", "finetune"])
def test_options_do_not_change_hash(primary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    names = sorted(load_options("loggers"))
    assert names == ["jsonl", "mlflow", "tensorboard", "wandb"]
    plain = compose(primary=primary)
    assert list(RunResources(plain).sinks) == ["tensorboard"]
    config = compose(f"loggers=[{','.join(names)}]", "loggers.mlflow.experiment=mine", primary=primary)
    assert list(config["loggers"]) == names and config["loggers"]["mlflow"]["experiment"] == "mine"
    assert config_hash(config) == config_hash(plain)


def test_invalid_option_fails_before_build() -> None:
    with pytest.raises(ConfigError, match=r"loggers\.wandb\.finish_timeout"):
        check_values(compose(*PLAY, "loggers=[wandb]", "loggers.wandb.mode=offline", "loggers.wandb.finish_timeout=-1"))
    with pytest.raises(ConfigError, match=r"loggers\.mine"):
        check_values(compose(*PLAY, "+loggers.mine=yes"))


@pytest.mark.slow
def test_videos_are_logged_with_metrics(tmp_path: Path) -> None:
    run("env=unlock_pickup", "agent=random", "env.n_envs=1", "env.horizon=3", "play.episodes=3", "play.videos=2",
        f"output_root={tmp_path}")  # fmt: skip
    folder = find_run_folder(tmp_path)
    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    videos = [(image.step, image.encoded_image_string) for image in events.Images("episode/video")]
    assert videos == [(k + 1, (folder / "episodes" / str(k) / "episode.gif").read_bytes()) for k in range(2)]
