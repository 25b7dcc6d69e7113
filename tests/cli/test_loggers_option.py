"""`loggers=` on the command line: which sinks a run has, and one of a user's own, that of examples/my_lab."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments import comparable_metrics, compose, only_run_folder, run
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import options
from llmrl.experiment.loggers import build_loggers
from llmrl.experiment.parts import check_values
from llmrl.run.config_hash import config_hash

SAMPLE = Path(__file__).parents[2] / "examples" / "my_lab" / "my_lab" / "csv_file.py"
PLAY = ("env=escape_room", "principal=none", "agent=random", "env.n_envs=2", "env.horizon=4", "play.episodes=2")


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module with the sink that docs/extending.md names."""
    (tmp_path / "page_sink.py").write_text(SAMPLE.read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "page_sink"
    sys.modules.pop("page_sink", None)


def test_the_sink_of_the_page_works(tmp_path: Path, documented: str) -> None:
    own = [f"+loggers.csv._target_={documented}.CsvFile", f"trusted_modules=[{documented}]"]
    run(*PLAY, f"output_root={tmp_path / 'out'}", *own)
    folder = only_run_folder(tmp_path / "out")
    with (folder / "loggers" / "csv" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = [
        (str(number), row[row["x"]], name, value)
        for number, row in enumerate(comparable_metrics(folder))
        for name, value in row.items()
        if name not in ("kind", "x", "episodes", "env_steps")
    ]
    found = [(row["row"], int(row["place"]), row["metric"], float(row["value"])) for row in rows]
    assert expected and found == expected and {row["axis"] for row in rows} == {"episodes"}
    assert list(folder.glob("*tfevents*")), "beside TensorBoard"
    with pytest.raises(ConfigError, match="outside the trusted modules"):
        check_values(compose(*PLAY, own[0]))


def test_a_run_without_loggers_keeps_its_record_and_is_the_same_run(tmp_path: Path) -> None:
    root = f"output_root={tmp_path}"
    score = run(*PLAY, root, "loggers=[]")
    folder = only_run_folder(tmp_path)
    assert comparable_metrics(folder) and not list(folder.glob("*tfevents*")) and not (folder / "loggers").exists()
    assert run(*PLAY, root) == score and not list(folder.glob("*tfevents*")), "it is finished already"
    assert only_run_folder(tmp_path) == folder


@pytest.mark.parametrize("primary", ["train", "finetune"])
def test_every_option_can_be_chosen_and_changes_no_hash(primary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    names = sorted(options("loggers"))
    assert names == ["jsonl", "mlflow", "tensorboard", "wandb"]
    plain = compose(primary=primary)
    assert list(build_loggers(plain)) == ["tensorboard"]
    chosen = compose(f"loggers=[{','.join(names)}]", "loggers.mlflow.experiment=mine", primary=primary)
    assert list(chosen["loggers"]) == names and chosen["loggers"]["mlflow"]["experiment"] == "mine"
    assert config_hash(chosen) == config_hash(plain)


def test_an_option_that_cannot_be_is_refused_before_anything_is_built() -> None:
    with pytest.raises(ConfigError, match=r"loggers\.wandb\.finish_timeout"):
        check_values(compose(*PLAY, "loggers=[wandb]", "loggers.wandb.mode=offline", "loggers.wandb.finish_timeout=-1"))
    with pytest.raises(ConfigError, match=r"loggers\.mine"):
        check_values(compose(*PLAY, "+loggers.mine=yes"))


@pytest.mark.slow
def test_films_of_agents_that_play_are_told_beside_their_row(tmp_path: Path) -> None:
    run("env=unlock_pickup", "agent=random", "env.n_envs=1", "env.horizon=3", "play.episodes=3", "play.videos=2",
        f"output_root={tmp_path}")  # fmt: skip
    folder = only_run_folder(tmp_path)
    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    videos = [(image.step, image.encoded_image_string) for image in events.Images("episode/film")]
    assert videos == [(k + 1, (folder / "episodes" / str(k) / "episode.gif").read_bytes()) for k in range(2)]
