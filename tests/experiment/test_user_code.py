"""User code is part of a run's hash."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmrl.config import input_digests
from llmrl.core.errors import ConfigError
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.run_job import run_and_print

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
    """Create a package of the user and an option file that names its principal."""
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
    input_digests._read_package_sources.cache_clear()


@pytest.fixture
def compose(lab: Path, tmp_path: Path) -> Callable[..., Experiment]:
    """Return a function that composes the experiment of the user's principal, as a new process would."""

    def compose_experiment(*extra_overrides: str) -> Experiment:
        forget()
        overrides = (*SMALL, "principal=constant", f"output_root={tmp_path / 'outputs'}", *extra_overrides)
        return Experiment.compose(*overrides, config_dirs=[tmp_path / "conf"])

    return compose_experiment


def read_proposal(folder: Path) -> float:
    """Return the first parameter of the proposal of a run, relative to its range in [0, 1]."""
    summary = json.loads((folder / "summary.json").read_text())
    rates = list(summary["history"][0]["mechanism"].values())
    return float(rates[0])


def test_edited_principal_changes_hash(lab: Path, compose, capsys: pytest.CaptureFixture[str]) -> None:
    first = compose()
    run_and_print(first)
    capsys.readouterr()
    (lab / "rates.py").write_text("RATE = 0.5  # more\n")
    second = compose()
    assert second.folder != first.folder
    run_and_print(second)
    assert "Already finished" not in capsys.readouterr().out
    assert (
        read_proposal(second.folder) == pytest.approx(2 * read_proposal(first.folder))
        and read_proposal(first.folder) > 0
    )


def test_rejects_config_of_different_code(lab: Path, compose) -> None:
    """Reject a config of older code, as for other input files."""
    experiment = compose()
    (lab / "rates.py").write_text("RATE = 0.5\n")
    forget()
    with pytest.raises(ConfigError, match=r"tariff_lab.*changed"):
        Experiment(experiment.config, experiment.overrides)


def test_run_with_no_user_code_has_no_digest(tmp_path: Path) -> None:
    experiment = Experiment.compose(*SMALL, "principal=ucb", f"output_root={tmp_path}")
    assert "sources_digest" not in experiment.config
    run_and_print(experiment)
    assert not (experiment.folder / "sources").exists()
