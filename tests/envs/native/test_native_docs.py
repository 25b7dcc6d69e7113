"""The page about the native engine: its commands and programs run, and its symbols match the maps."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest

from experiments import compose, find_run_folder, load_comparable_metrics, run
from llmrl.cli.evaluate import main as evaluate
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.maps import SPRITES_BY_SYMBOL
from llmrl.experiment.models import build_used_model
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.experiment.resources import RunResources

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "native_engine.md").read_text()
STUDIES = (DOCS / "mechanism_design.md").read_text().partition("on the native engine\n")[2].partition("\n## ")[0]
"""How mechanism design is studied on it."""
CUSTOM_MAP = ("env.map=own", "env.tiles=plain")
"""What a machine without Melting Pot plays."""


def lines(program: str) -> list[str]:
    """Return the commands of both pages that begin with `program`."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE + STUDIES, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith(program)]


def runs(command: str) -> list[list[str]]:
    """Return the overrides of every run of a command, for one seed."""
    words = [word for word in shlex.split(command, comments=True)[1:] if not word.startswith(("--", "seed="))]
    swept = [[word] if "[" in word else _choices(word) for word in words]
    return [list(combination) for combination in itertools.product(*swept)]


def _choices(word: str) -> list[str]:
    name, _, values = word.partition("=")
    return [f"{name}={value}" for value in values.split(",")]


@pytest.mark.long
@pytest.mark.slow
def test_training_commands_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    map_lines = lines("printf")[0]
    Path("small.txt").write_text(shlex.split(map_lines)[1].replace("\\n", "\n"))
    n_built = 0
    for overrides in itertools.chain.from_iterable(map(runs, lines("llmrl-train"))):
        map_options = CUSTOM_MAP if not any(word.startswith("env.map=") for word in overrides) else CUSTOM_MAP[1:]
        config = compose(*overrides, *map_options)
        check_values(config)
        parts = build_parts(config, RunResources(config, build_used_model).model)
        assert isinstance(parts.env, NativeEnv), overrides
        build_loop(config, parts)
        parts.close()
        n_built += 1
    assert n_built >= 15


def test_programs_run(capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for program in programs:
        exec(compile(program, "docs/native_engine.md", "exec"), {})
    assert len(programs) == 2
    assert "(1024, 7) torch.Size([1024, 7, 11, 11, 4])" in capsys.readouterr().out


@pytest.mark.parametrize(("substrate", "title"), [("cleanup", "Clean Up"), ("harvest", "Harvest")])
def test_lists_all_symbols(substrate: str, title: str) -> None:
    table = PAGE.partition(f"| symbol | {title} |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()]
    symbols = [symbol for cell in cells for symbol in re.findall(r"`(.)`", cell)]
    symbols += [" " for cell in cells if cell.strip() == "space"]
    assert sorted(symbols) == sorted(SPRITES_BY_SYMBOL[substrate])  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("game", ["cleanup", "harvest"])
def test_studies_need_no_melting_pot(game: str, tmp_path: Path) -> None:
    small = ("env.horizon=8", "design.steps=2", "design.adapt_rounds=1", f"output_root={tmp_path}")
    assert run(f"experiment=legislative/{game}_native_small", "principal=llm", *CUSTOM_MAP, *small) is not None
    summary = json.loads((find_run_folder(tmp_path) / "summary.json").read_text())
    logged = set().union(*load_comparable_metrics(find_run_folder(tmp_path)))
    assert summary["proposals"] == 2 * 4
    assert {"principal/objective_society_0", "principal/objective_society_1"} <= logged
    explains = {"apples_live_quarter_1", "apples_live_quarter_4"}
    explains |= (
        {"incentives_clean", "incentives_other"} if game == "cleanup" else {"apples_bracket_1", "apples_bracket_3"}
    )
    assert {f"{phase}/{name}" for phase in ("train", "validation") for name in explains} <= logged
    evaluate([str(find_run_folder(tmp_path)), "--episodes", "4"])
    results = json.loads((find_run_folder(tmp_path) / "evaluation" / "results.json").read_text())
    assert explains <= set(results["table"]) and {"mean_eating_step", *explains} <= set(results["per_episode"])
