"""The package of docs/extending.md, installed: it is discovered, and the commands of the page run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hydra.core.config_store import ConfigStore

from experiments import compose, load_comparable_metrics
from llmrl.cli.help import explain_options
from llmrl.config.installed_options import build_option_content, list_installed_options, register_installed_options
from llmrl.core.errors import ConfigError
from llmrl.core.installed import entry_points
from llmrl.core.trust import Trust
from llmrl.experiment.experiment import Experiment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
SECTION = PAGE[PAGE.index("## Your own package") : PAGE.index("## How an option becomes an object")]
COMMANDS = [shlex.split(line) for line in re.findall(r"^(?:pip|llmrl-train) .*", SECTION, re.MULTILINE)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Install the package of the page with pip into a folder on the path."""
    root = tmp_path_factory.mktemp("lab")
    ignore_build = shutil.ignore_patterns("build", "*.egg-info")
    shutil.copytree(ROOT / "examples" / "my_lab", root / "examples" / "my_lab", ignore=ignore_build)
    install = [sys.executable, "-m", *COMMANDS[0], "--no-index", "--quiet", "--target", str(root / "site")]
    done = subprocess.run(install, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "site"


@pytest.fixture
def store(monkeypatch) -> Iterator[pytest.MonkeyPatch]:
    """Clear the cached entry points and options before and after a test."""
    monkeypatch.setattr(ConfigStore.instance(), "repo", dict(ConfigStore.instance().repo))
    entry_points.cache_clear()
    loaded_modules = set(sys.modules)
    yield monkeypatch
    entry_points.cache_clear()
    for name in set(sys.modules) - loaded_modules:
        if name.partition(".")[0] in ("my_lab", "labeled"):
            del sys.modules[name]


def train(words: list[str], site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `llmrl-train` with the package installed."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "llmrl.cli.train", *words]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.long
@pytest.mark.slow
def test_page_example_runs(site, tmp_path):
    """Run the environment and the principal, and a sweep of two runs on the package's backend, without any flag."""
    (_, single_command), (_, swept) = [(command[0], command[1:]) for command in COMMANDS[1:]]
    done = train(single_command, site, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = (tmp_path / "outputs" / "coins").glob("*/s0/summary.json")
    config = yaml.safe_load((summary.parent / "config.yaml").read_text())
    assert config["principal"] == {"_target_": "my_lab.parts.Ladder", "rungs": 3}
    assert config["env"] == {"_target_": "my_lab.parts.Coins", "n_envs": 4, "n_agents": 3, "horizon": 10}
    proposals = load_comparable_metrics(summary.parent, "proposal")
    rates = [row["principal/rate"] for row in proposals]
    assert sorted(rates) == [0.0, 1.0, 2.0]
    header, *lines = (summary.parent / "loggers" / "csv" / "metrics.csv").read_text().splitlines()
    listed_options = [line.split(";") for line in lines]
    assert header == "row;axis;place;metric;value"
    assert [float(value) for *_, tag, value in listed_options if tag == "principal/rate"] == rates

    done = train([*swept, "name=swept"], site, tmp_path)
    assert done.returncode == 0 and "2 finished" in done.stdout, done.stdout + done.stderr
    for seed in (0, 1):
        (queued,) = (tmp_path / "outputs" / "swept").glob(f"*/s{seed}/queued.json")
        assert json.loads(queued.read_text())["backend"] == "my_lab.niced.Niced"
    repeated_run = train([*swept, "name=swept"], site, tmp_path)
    output = repeated_run.stdout + repeated_run.stderr
    assert repeated_run.returncode == 0 and repeated_run.stdout.count("nothing to do") == 2, output


def test_options_are_listed_with_no_import(site, store):
    store.syspath_prepend(str(site))
    assert register_installed_options() == [] and register_installed_options() == [], "done twice, it changes nothing"
    assert list_installed_options("principal") == ["ladder"] and list_installed_options("hardware/backend") == ["niced"]
    assert list_installed_options("loggers") == ["csv"]
    assert not any(name.startswith("my_lab") for name in sys.modules), "nothing has been imported"
    config = compose("env=coins", "principal=ladder", "env.horizon=3", "hardware/backend=niced", "loggers=[csv]")
    assert config["loggers"] == {"csv": {"_target_": "my_lab.csv_file.CsvFile", "separator": ","}}
    assert config["env"]["horizon"] == 3 and config["principal"]["rungs"] == 5
    assert config["hardware"]["backend"] == {"_target_": "my_lab.niced.Niced", "level": 10}
    assert Trust().locate("my_lab.parts.Coins", "env._target_").__name__ == "Coins"
    with pytest.raises(ConfigError, match=" mean ladder"):
        Experiment.compose("principal=lader")


def test_explains_options_of_installed_package(site, store, capsys):
    store.syspath_prepend(str(site))
    explain_options("train", ["principal=ladder", "principal.rungs=4"])
    cells = {line.split("\t")[0]: line.split("\t")[1:] for line in capsys.readouterr().out.splitlines()}
    assert cells.keys() == {"principal._target_", "principal.rungs"}
    assert cells["principal.rungs"][:2] == ["4", "integer > 0"]


LABELED_OPTION = """
class Part:
    def __init__(self, spec, seeds, needed: int, number=1.5, words=("a", "b"), table={"x": [1, None]}, made=object(),
                 text="${env}", llm=None, *rest, **more):
        pass
"""


def declare(folder: Path, package: str, text: str) -> None:
    """Write the metadata of an installed package."""
    meta = folder / f"{package}-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(text)


@pytest.fixture
def labeled_package(tmp_path, store) -> Path:
    (tmp_path / "labeled").mkdir()
    (tmp_path / "labeled" / "__init__.py").write_text("")
    (tmp_path / "labeled" / "parts.py").write_text(LABELED_OPTION)
    (tmp_path / "labeled" / "broken.py").write_text("raise RuntimeError('no such device')")
    store.syspath_prepend(str(tmp_path))
    return tmp_path


def test_option_keys_match_constructor_defaults(labeled_package):
    declare(labeled_package, "labeled", "[llmrl.parts]\nagent.labeled = labeled.parts:Part\n")
    assert build_option_content("labeled.parts.Part", "agent=labeled") == {
        "_target_": "labeled.parts.Part",
        "needed": "???",
        "number": 1.5,
        "words": ["a", "b"],
        "table": {"x": [1, None]},
    }


def test_first_package_version_on_path_wins(labeled_package, tmp_path, store):
    later = tmp_path / "later"
    declare(later, "labeled", "[llmrl.parts]\nagent.labeled = labeled.parts:Part\n")
    declare(labeled_package, "labeled", "[console_scripts]\nlabeled = labeled:main\n")
    store.setattr("sys.path", [*sys.path, str(later)])
    assert "labeled" not in list_installed_options("agent")


def test_broken_package_is_reported_on_use(labeled_package):
    from hydra.errors import ConfigCompositionException

    declare(
        labeled_package,
        "labeled",
        "[llmrl.parts]\nagent.bad = labeled.broken:Part\nagent.gone = labeled.parts:Gone\n",
    )
    assert register_installed_options() == []
    assert compose("agent=random")["agent"]["_target_"].startswith("llmrl.")
    for option, reason in (("bad", "RuntimeError: no such device"), ("gone", "Gone")):
        with pytest.raises(ConfigCompositionException, match=f"agent={option} .* labeled 1.0.*{reason}"):
            compose(f"agent={option}")


def test_reports_invalid_names(labeled_package):
    from hydra.errors import ConfigCompositionException

    declare(
        labeled_package,
        "labeled",
        "[llmrl.parts]\nlabeled = labeled.parts\nother = labeled.parts:Part\nprincipal.ucb = labeled.parts:Part\n"
        "principals.mine = labeled.parts:Part\nagent.two words = labeled.parts:Part\n"
        "agent.same = labeled.parts:Part\n"
        "[llmrl.backends]\nwhere = labeled.parts\n",
    )
    declare(labeled_package, "second", "[llmrl.parts]\nagent.same = labeled.parts:Part\n")
    messages = sorted(register_installed_options())
    assert len(messages) == 4, messages
    for sentence, words in zip(
        messages,
        ("'two words'", "'principals' must be one of", "is a module but must be a class", "is an option of llmrl"),
        strict=True,
    ):
        assert "labeled" in sentence and words in sentence, messages
    assert "UCB" in compose("principal=ucb", "env=escape_room")["principal"]["_target_"]
    with pytest.raises(ConfigCompositionException, match=r"labeled 1\.0.*second 1\.0"):
        compose("agent=same")


def test_only_declared_modules_are_allowed(labeled_package):
    declare(labeled_package, "labeled", "[llmrl.parts]\nlabeled = labeled.parts\n[other.group]\nx = labeled:x\n")
    assert (
        Trust().is_trusted("labeled.parts")
        and not Trust().is_trusted("labeled")
        and list_installed_options("agent") == []
    )
    with pytest.raises(ConfigError, match="trusted modules"):
        build_option_content("labeled.broken.Part", "agent")


def test_first_installation_takes_precedence(labeled_package, store):
    declare(labeled_package, "labeled", "[llmrl.parts]\nagent.old = labeled.parts:Part\n")
    declare(labeled_package / "newer", "labeled", "[llmrl.parts]\nagent.new = labeled.parts:Part\n")
    store.syspath_prepend(str(labeled_package / "newer"))
    entry_points.cache_clear()
    assert list_installed_options("agent") == ["new"]
