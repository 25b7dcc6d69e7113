"""Code of the user is part of a run's identity, is copied into the run folder, and is what jobs run."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmrl.core.errors import ConfigError
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.repeat_run import repeated
from llmrl.experiment.run_job import run_and_print
from llmrl.experiment.sweep_jobs import TASK, job_of
from llmrl.run.artifacts import read_config
from llmrl.sweeps.jobs import take_on
from llmrl.sweeps.work import JobWork

PRINCIPAL = '''"""A principal of one vector."""
from tariff_lab.rates import RATE

class Constant:
    parallel = True

    def __init__(self, space):
        self.space = space

    def ask(self, context=None, n=1):
        return [self.space.low + RATE * (self.space.high - self.space.low)] * n

    def tell(self, outcomes):
        return {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass
'''
SMALL = ("env=escape_room", "env.n_envs=2", "design.references=0", "design.validate_episodes=2", "design.steps=1")
SMALL += ("design.adapt_rounds=1", "design.evaluations=0", "design.confirm_steps=0", "trusted_modules=[tariff_lab]")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the user, and an option file that names its principal."""
    folder = tmp_path / "code"
    (folder / "tariff_lab").mkdir(parents=True)
    (folder / "tariff_lab" / "__init__.py").write_text("")
    (folder / "tariff_lab" / "principal.py").write_text(PRINCIPAL)
    (folder / "tariff_lab" / "rates.py").write_text("RATE = 0.25\n")
    (tmp_path / "conf" / "principal").mkdir(parents=True)
    (tmp_path / "conf" / "principal" / "constant.yaml").write_text("_target_: tariff_lab.principal.Constant\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield folder / "tariff_lab"
    forget()


def forget() -> None:
    """Remove the package from this process, so that the next import is that of a new process."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tariff_lab"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def compose(lab: Path, tmp_path: Path) -> Callable[..., Experiment]:
    """A function that composes the experiment of the user's principal, as a new process would."""

    def composed(*more: str) -> Experiment:
        forget()
        overrides = (*SMALL, "principal=constant", f"output_root={tmp_path / 'outputs'}", *more)
        return Experiment.compose(*overrides, config_dirs=[tmp_path / "conf"])

    return composed


def proposed(folder: Path) -> float:
    """The first parameter that was proposed in a run, relative to its range in [0, 1]."""
    summary = json.loads((folder / "summary.json").read_text())
    rates = list(summary["history"][0]["mechanism"].values())
    return float(rates[0])


def test_an_edited_principal_is_another_run(lab: Path, compose, capsys: pytest.CaptureFixture[str]) -> None:
    first = compose()
    run_and_print(first)
    capsys.readouterr()
    (lab / "rates.py").write_text("RATE = 0.5  # more\n")
    second = compose()
    assert second.folder != first.folder
    run_and_print(second)
    assert "Already finished" not in capsys.readouterr().out
    assert proposed(second.folder) == pytest.approx(2 * proposed(first.folder)) and proposed(first.folder) > 0
    assert (first.folder / "sources" / "tariff_lab" / "rates.py").read_text() == "RATE = 0.25\n"
    assert (second.folder / "sources" / "tariff_lab" / "rates.py").read_text() == "RATE = 0.5  # more\n"
    assert (first.folder / "sources" / "tariff_lab" / "principal.py").read_text() == PRINCIPAL


def test_a_skipped_run_names_files_with_other_comments(lab: Path, compose, capsys: pytest.CaptureFixture[str]) -> None:
    run_and_print(compose())
    run_and_print(compose())
    said = capsys.readouterr().out
    assert "Already finished" in said and "rates.py" not in said
    (lab / "rates.py").write_text("RATE = 0.25  # as in the paper\n")
    run_and_print(compose())
    said = capsys.readouterr().out
    assert "Already finished" in said and "tariff_lab/rates.py" in said and "principal.py" not in said


def test_a_repeated_run_names_changed_files(
    lab: Path, compose, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    experiment = compose()
    run_and_print(experiment)
    arguments = ["--again", str(experiment.folder), "--config-dir", str(tmp_path / "conf")]
    forget()
    repeated("llmrl-train", [*arguments, "trusted_modules=[tariff_lab]"])
    assert "rates.py" not in capsys.readouterr().err
    (lab / "rates.py").write_text("RATE = 0.5\n")
    forget()
    repeated("llmrl-train", [*arguments, "trusted_modules=[tariff_lab]"])
    said = capsys.readouterr().err
    assert "tariff_lab/rates.py" in said and "principal.py" not in said


def test_a_job_runs_the_code_of_its_submission(lab: Path, compose, tmp_path: Path) -> None:
    job = job_of(compose(), [])
    take_on(job, tmp_path / "sweep")
    work = pickle.dumps(JobWork(TASK, job.config, job.overrides, job.folder, {}))
    assert (job.folder / "sources" / "tariff_lab" / "rates.py").read_text() == "RATE = 0.25\n"
    (lab / "rates.py").write_text("RATE = 0.75\n")
    (lab / "principal.py").unlink()
    # What is in the run folder is not imported: somebody else may have written it.
    (job.folder / "sources" / "tariff_lab" / "rates.py").write_text("raise SystemExit('imported')\n")
    forget()
    pickle.loads(work)()  # noqa: S301
    rates = sys.modules["tariff_lab.rates"]
    assert rates.RATE == 0.25 and Path(rates.__file__) == lab / "rates.py"
    assert proposed(job.folder) > 0 and read_config(job.folder, ())["sources_digest"] == job.config["sources_digest"]


def test_a_config_of_other_code_is_refused(lab: Path, compose) -> None:
    """As for other files that results depend on: the run of an older config cannot be had by newer code."""
    experiment = compose()
    (lab / "rates.py").write_text("RATE = 0.5\n")
    forget()
    with pytest.raises(ConfigError, match=r"tariff_lab/rates\.py"):
        Experiment(experiment.config, experiment.overrides)


def test_a_secret_in_a_source_file_is_refused(lab: Path, compose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "correct-horse-battery-staple")
    (lab / "rates.py").write_text("RATE = 0.25\nKEY = 'correct-horse-battery-staple'\n")
    with pytest.raises(ConfigError, match=r"tariff_lab/rates\.py"):
        compose()


def test_rerun_keeps_the_sources_of_both(lab: Path, compose) -> None:
    run_and_print(compose())
    (lab / "rates.py").write_text("RATE = 0.25  # again\n")
    experiment = compose("rerun=true")
    run_and_print(experiment)
    assert "again" in (experiment.folder / "sources" / "tariff_lab" / "rates.py").read_text()
    assert "again" not in (experiment.folder / "backup_1" / "sources" / "tariff_lab" / "rates.py").read_text()
    assert not (experiment.folder / "backup_2").exists()


def test_a_run_without_user_code_has_no_digest_and_no_sources(tmp_path: Path) -> None:
    experiment = Experiment.compose(*SMALL, "principal=ucb", f"output_root={tmp_path}")
    assert "sources_digest" not in experiment.config
    run_and_print(experiment)
    assert not (experiment.folder / "sources").exists()
