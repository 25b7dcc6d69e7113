"""The package that docs/extending.md shows, installed: it is found, and the commands of the page run as they are."""

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

from experiments import comparable_metrics, compose
from llmrl.config.installed_options import content_of, installed_options, offer_installed
from llmrl.config.suggestions import missing_option
from llmrl.core.errors import ConfigError
from llmrl.core.installed import entry_points
from llmrl.core.trust import Trust

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
SECTION = PAGE[PAGE.index("## Your own package") : PAGE.index("## How an option becomes an object")]
COMMANDS = [shlex.split(line) for line in re.findall(r"^(?:pip|llmrl-train) .*", SECTION, re.MULTILINE)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder on the path into which pip has installed the package of the page."""
    root = tmp_path_factory.mktemp("lab")
    built = shutil.ignore_patterns("build", "*.egg-info")
    shutil.copytree(ROOT / "examples" / "my_lab", root / "examples" / "my_lab", ignore=built)
    install = [sys.executable, "-m", *COMMANDS[0], "--no-index", "--quiet", "--target", str(root / "site")]
    done = subprocess.run(install, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "site"


@pytest.fixture
def store(monkeypatch) -> Iterator[pytest.MonkeyPatch]:
    """Entry points and options are looked for anew, and forgotten afterwards."""
    monkeypatch.setattr(ConfigStore.instance(), "repo", dict(ConfigStore.instance().repo))
    entry_points.cache_clear()
    before = set(sys.modules)
    yield monkeypatch
    entry_points.cache_clear()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("my_lab", "labelled"):
            del sys.modules[name]


def train(words: list[str], site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`llmrl-train` with the package installed."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "llmrl.cli.train", *words]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.long
@pytest.mark.slow
def test_the_page_runs_as_it_is(site, tmp_path):
    """One run with its environment and principal, and one sweep of two runs on its backend; no flag, no edited file."""
    (_, alone), (_, swept) = [(command[0], command[1:]) for command in COMMANDS[1:]]
    done = train(alone, site, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = (tmp_path / "outputs" / "coins").glob("*/s0/summary.json")
    config = yaml.safe_load((summary.parent / "config.yaml").read_text())
    assert config["principal"] == {"_target_": "my_lab.parts.Ladder", "rungs": 3}
    assert config["env"] == {"_target_": "my_lab.parts.Coins", "n_envs": 4, "n_agents": 3, "horizon": 10}
    proposals = comparable_metrics(summary.parent, "proposal")
    rates = [row["principal/rate"] for row in proposals]
    assert sorted(rates) == [0.0, 1.0, 2.0]
    header, *lines = (summary.parent / "loggers" / "csv" / "metrics.csv").read_text().splitlines()
    told = [line.split(";") for line in lines]
    assert header == "row;axis;place;metric;value"
    assert [float(value) for *_, tag, value in told if tag == "principal/rate"] == rates

    done = train([*swept, "name=swept"], site, tmp_path)
    assert done.returncode == 0 and "2 finished" in done.stdout, done.stdout + done.stderr
    for seed in (0, 1):
        (queued,) = (tmp_path / "outputs" / "swept").glob(f"*/s{seed}/queued.json")
        assert json.loads(queued.read_text())["backend"] == "my_lab.niced.Niced"
    again = train([*swept, "name=swept"], site, tmp_path)
    assert again.returncode == 0 and again.stdout.count("nothing to do") == 2, again.stdout + again.stderr


def test_options_are_listed_composed_and_overridden_without_an_import(site, store):
    store.syspath_prepend(str(site))
    assert offer_installed() == [] and offer_installed() == [], "done twice, it changes nothing"
    assert installed_options("principal") == ["ladder"] and installed_options("hardware/backend") == ["niced"]
    assert installed_options("loggers") == ["csv"]
    assert not any(name.startswith("my_lab") for name in sys.modules), "nothing has been imported"
    config = compose("env=coins", "principal=ladder", "env.horizon=3", "hardware/backend=niced", "loggers=[csv]")
    assert config["loggers"] == {"csv": {"_target_": "my_lab.csv_file.CsvFile", "separator": ","}}
    assert config["env"]["horizon"] == 3 and config["principal"]["rungs"] == 5
    assert config["hardware"]["backend"] == {"_target_": "my_lab.niced.Niced", "level": 10}
    assert Trust().locate("my_lab.parts.Coins", "env._target_").__name__ == "Coins"
    told = missing_option(["principal=lader"])
    assert told is not None and "Did you mean ladder?" in told
    assert missing_option(["principal=ladder"]) is None and missing_option(["hardware/backend=niced"]) is None


LABELLED = """
class Part:
    def __init__(self, spec, seeds, needed: int, number=1.5, words=("a", "b"), table={"x": [1, None]}, made=object(),
                 text="${env}", llm=None, *rest, **more):
        pass
"""


def declare(folder: Path, package: str, text: str) -> None:
    """The metadata of an installed package."""
    meta = folder / f"{package}-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(text)


@pytest.fixture
def labelled(tmp_path, store) -> Path:
    (tmp_path / "labelled").mkdir()
    (tmp_path / "labelled" / "__init__.py").write_text("")
    (tmp_path / "labelled" / "parts.py").write_text(LABELLED)
    (tmp_path / "labelled" / "broken.py").write_text("raise RuntimeError('no such device')")
    store.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_options_keys_are_what_its_constructor_has_defaults_for(labelled):
    declare(labelled, "labelled", "[llmrl.parts]\nagent.labelled = labelled.parts:Part\n")
    assert content_of("labelled.parts.Part", "agent=labelled") == {
        "_target_": "labelled.parts.Part",
        "needed": "???",
        "number": 1.5,
        "words": ["a", "b"],
        "table": {"x": [1, None]},
    }


def test_a_broken_package_is_named_when_its_option_is_chosen(labelled):
    from hydra.errors import ConfigCompositionException

    declare(labelled, "labelled", "[llmrl.parts]\nagent.bad = labelled.broken:Part\nagent.gone = labelled.parts:Gone\n")
    assert offer_installed() == []
    assert compose("agent=random")["agent"]["_target_"].startswith("llmrl.")
    for option, why in (("bad", "RuntimeError: no such device"), ("gone", "there is no such name")):
        with pytest.raises(ConfigCompositionException, match=f"agent={option} comes from .* labelled 1.0.*{why}"):
            compose(f"agent={option}")


def test_names_that_are_taken_and_names_of_nothing_are_told(labelled):
    from hydra.errors import ConfigCompositionException

    declare(
        labelled,
        "labelled",
        "[llmrl.parts]\nlabelled = labelled.parts\nother = labelled.parts:Part\nprincipal.ucb = labelled.parts:Part\n"
        "principals.mine = labelled.parts:Part\nagent.two words = labelled.parts:Part\n"
        "agent.same = labelled.parts:Part\n"
        "[llmrl.backends]\nwhere = labelled.parts\n",
    )
    declare(labelled, "second", "[llmrl.parts]\nagent.same = labelled.parts:Part\n")
    told = sorted(offer_installed())
    assert len(told) == 4, told
    for sentence, words in zip(
        told, ("'two words'", "no parts 'principals'", "that is a module", "is the option of llmrl"), strict=True
    ):
        assert "labelled" in sentence and words in sentence, told
    assert "UCB" in compose("principal=ucb", "env=escape_room")["principal"]["_target_"]
    with pytest.raises(ConfigCompositionException, match=r"declared by labelled 1\.0 and second 1\.0: uninstall"):
        compose("agent=same")


def test_what_is_declared_is_trusted_and_no_more(labelled):
    declare(labelled, "labelled", "[llmrl.parts]\nlabelled = labelled.parts\n[other.group]\nx = labelled:x\n")
    assert Trust().covers("labelled.parts") and not Trust().covers("labelled") and installed_options("agent") == []
    with pytest.raises(ConfigError, match="outside the trusted modules"):
        content_of("labelled.broken.Part", "agent")


def test_of_a_package_that_is_found_twice_the_first_counts(labelled, store):
    declare(labelled, "labelled", "[llmrl.parts]\nagent.old = labelled.parts:Part\n")
    declare(labelled / "newer", "labelled", "[llmrl.parts]\nagent.new = labelled.parts:Part\n")
    store.syspath_prepend(str(labelled / "newer"))
    entry_points.cache_clear()
    assert installed_options("agent") == ["new"]
