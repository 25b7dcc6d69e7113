"""Large sweeps: the operations for another run do not depend on the number of runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hydra import initialize_config_module
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.global_hydra import GlobalHydra
from hydra.types import HydraContext, RunMode

from hydra_plugins.llmrl_launcher.launcher import LlmrlLauncher
from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.report import ReportSettings
from llmrl.analysis.report_files import write_report
from llmrl.core.hydra_composition import cache_compositions
from llmrl.experiment.composition import compose_config, to_plain
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.sweep_jobs import build_jobs, with_prerequisites
from llmrl.results.run_records import read_runs
from llmrl.run.run import Run
from llmrl.run.status import SUMMARY_NAME, RunProgress, Status
from llmrl.sweeps.backends.protocol import JobOutcome
from llmrl.sweeps.jobs import find_missing_jobs

ROOM = ("env=escape_room", "principal=ucb")
_operations: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def _audit() -> Iterator[None]:
    """Count opened files and scanned folders; an audit hook cannot be removed."""
    active = True

    def count(event: str, arguments: object) -> None:
        if active and event in ("open", "os.scandir", "os.listdir"):
            _operations[event] += 1

    sys.addaudithook(count)
    yield
    active = False


def operations(work: Callable[[], object]) -> Counter[str]:
    """Return the numbers of opened files and scanned folders of the second call of `work`; the first one imports."""
    work()
    _operations.clear()
    work()
    return Counter(_operations)


def launch_compositions(*sweep: Sequence[str]) -> list[Experiment]:
    """Compose the runs of a sweep with the launcher of `--multirun`."""
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        config = hydra.compose_config("train", [], run_mode=RunMode.MULTIRUN, with_log_configuration=False)
        launcher = LlmrlLauncher(wait=True)
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks())
        launcher.setup(hydra_context=context, task_function=lambda config: None, config=config)
        return launcher._compose(sweep, 0)


def test_seeds_share_composition(monkeypatch):
    compositions = []
    load = ConfigLoaderImpl.load_sweep_config
    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", lambda *args: compositions.append(args) or load(*args))
    sweep = [(*ROOM, f"design.steps={steps}", f"seed={seed}") for seed in range(2) for steps in (2, 3)]
    runs = launch_compositions(*sweep)
    assert len(compositions) == 2
    for overrides, run in zip(sweep, runs, strict=True):
        single = Experiment.compose(*overrides)
        assert (run.config, run.overrides, run.hash, run.folder) == (
            single.config,
            single.overrides,
            single.hash,
            single.folder,
        )
    for run, job in zip(runs, build_jobs(runs, {"design.steps"}), strict=True):
        [single_job] = build_jobs([run], {"design.steps"})
        assert job == single_job and (job.config_digest, job.folder) == (single_job.config_digest, single_job.folder)


def test_seed_dependent_values_have_separate_compositions():
    sweep = [(*ROOM, "name=town_${seed}", f"seed={seed}") for seed in range(3)]
    assert [run.config["name"] for run in launch_compositions(*sweep)] == ["town_0", "town_1", "town_2"]


@pytest.mark.parametrize("private", [False, True], ids=["package", "config_dir"])
def test_option_files_have_single_read(monkeypatch, tmp_path, private):
    folders = [tmp_path] if private else []
    (tmp_path / "treatment").mkdir()
    (tmp_path / "treatment" / "longer.yaml").write_text("# @package _global_\ndesign: {steps: 17}\n")
    cases = [(*ROOM, *(["+treatment=longer"] if private else [])), ("env=harvest", "principal=llm")]

    def compose_all() -> list[dict]:
        configs = []
        for case in cases:
            with compose_config("train", case, folders) as config:
                configs.append(to_plain(config))
        return configs

    expected = compose_all()
    reads = Counter()
    for scheme in ("llmrl", "pkg", "file"):
        source = SourcesRegistry.instance().resolve(scheme)
        load = source.load_config

        def counted(self, config_path, load=load):
            reads[self.path, config_path] += 1
            return load(self, config_path)

        monkeypatch.setattr(source, "load_config", counted)
    with cache_compositions():
        assert compose_all() == expected
    assert set(reads.values()) == {1}
    assert compose_all() == expected and max(reads.values()) > 1


def test_finished_runs_are_found_with_constant_operations(tmp_path):
    first = Experiment.compose(*ROOM, f"output_root={tmp_path}", "seed=0")

    def find(n: int) -> Counter[str]:
        runs = [first.with_seed(seed) for seed in range(n)]
        return operations(lambda: found.append(find_missing_jobs(with_prerequisites(build_jobs(runs)), ())[1]))

    for seed in range(30):
        folder = first.with_seed(seed).folder
        folder.mkdir(parents=True)
        Status("finished", progress=RunProgress(1, 1, "steps"), result=float(seed)).write(folder)
        (folder / SUMMARY_NAME).write_text("{}")
    found: list[list[JobOutcome]] = []
    counts = [find(n) for n in (10, 20, 30)]
    assert [len(outcomes) for outcomes in found] == [10, 10, 20, 20, 30, 30]
    assert counts[2] - counts[1] == counts[1] - counts[0], counts
    assert counts[0]["os.scandir"] == counts[2]["os.scandir"]
    assert counts[1]["open"] - counts[0]["open"] <= 10 * 6


def test_report_opens_constant_number_of_files_per_run(tmp_path):
    def report(n: int) -> Counter[str]:
        for seed in range(n):
            for principal in ("ucb", "gp"):
                write_run(tmp_path, principal, seed)
        return operations(lambda: summarize_and_write(tmp_path))

    counts = [report(n) for n in (6, 7, 8)]
    assert counts[2]["open"] - counts[1]["open"] == counts[1]["open"] - counts[0]["open"], counts
    assert counts[2]["os.scandir"] - counts[1]["os.scandir"] == counts[1]["os.scandir"] - counts[0]["os.scandir"]
    assert (counts[1]["open"] - counts[0]["open"]) / 2 <= 40


def summarize_and_write(root: Path) -> None:
    report = compute_report(root, ReportSettings(), read_runs(root))
    assert report.n_scored_runs == len(report.runs)
    write_report(report, root / "report", figures=False)


def write_run(root: Path, principal: str, seed: int) -> None:
    """Write a finished run with one proposal, unless it exists."""
    run = Run.open(root, "town", {"of": principal}, [f"principal={principal}", f"seed={seed}"], seed)
    with run:
        if run.finished:
            return
        metrics = {"principal/tax": 1.0, "principal/objective": float(seed), "welfare/mean": 1.0, "welfare/sum": 2.0}
        run.metrics.log("proposal", "proposals", metrics, proposals=1, principal_steps=1, env_steps=10)
        proposal = {"step": 1, "candidate": 0, "objective": float(seed), "standard_error": 1.0, "values": [1.0]}
        proposal |= {"mechanism": {"tax": 1.0}, "context": None}
        run.result = float(seed)
        run.summary = {
            "history": [proposal],
            "recommendation": run.result,
            "online_performance": run.result,
            "recommendations": [{**proposal, "evaluations": 4, "measurements": 1}],
        }
