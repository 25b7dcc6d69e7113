"""Means of groups that TensorBoard shows first, and the link that selects them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments import position_of
from llmrl.analysis.first_screen import find_first_screen, link, write_first_screen
from llmrl.results.run_records import find_runs, read_runs
from llmrl.run.metrics import FILE_NAME, MetricLog
from llmrl.run.run import Run
from llmrl.run.sinks.tensorboard import TensorBoard
from tensorboard_server import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def write(root: Path, principal: str, seed: int, values: list[float], name: str = "town") -> Path:
    run = Run.open(root, name, {"of": principal}, [f"principal={principal}", f"seed={seed}"], seed)
    with run:
        run.result = values[-1]
        for i, value in enumerate(values, start=1):
            found = {"principal/objective": value, "validation/apples": 2 * value, "welfare/sum": value}
            run.metrics.log("proposal", "proposals", found, proposals=i, principal_steps=i, env_steps=10 * i)
    # The rows again, told to TensorBoard as a run with that logger does.
    MetricLog(run.folder, position_of(run.folder / FILE_NAME), {"tensorboard": TensorBoard()}).close()
    return run.folder


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outputs")
    for seed in range(5):
        write(root, "ucb", seed, [1.0, 2.0 + seed, 5.0 + seed])
        write(root, "random", seed, [1.0, 1.0, float(seed)])
    return root / "town"


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_group_has_mean_and_band(sweep: Path) -> None:
    assert write_first_screen(sweep, read_runs(sweep)) == link(bands=True)
    assert scalars(sweep / "mean" / "ucb", "Compare/2_online_objective") == [(1, 1.0), (2, 4.0), (3, 7.0)]
    assert scalars(sweep / "mean" / "ucb", "validation/apples") == [(1, 2.0), (2, 8.0), (3, 14.0)]
    low, high = (scalars(sweep / "mean" / "ucb" / end, "Compare/2_online_objective") for end in ("low95", "high95"))
    assert low[0] == high[0] == (1, 1.0)
    assert 4.5 < low[2][1] < 6 and 8 < high[2][1] < 9.5
    # Of what is no headline there is no band, and what is a repetition is nowhere.
    accumulator = EventAccumulator(str(sweep / "mean" / "ucb" / "low95"))
    accumulator.Reload()
    assert accumulator.Tags()["scalars"] == ["Compare/2_online_objective"]
    # They are nobody's runs.
    assert len(find_runs(sweep)) == 10 and write_first_screen(sweep, read_runs(sweep)) == link(bands=True)
    assert len(list((sweep / "mean" / "ucb").glob("events*"))) == 1


def test_changed_run_invalidates_means(tmp_path: Path) -> None:
    folders = [write(tmp_path, principal, 0, [1.0, 2.0]) for principal in ("ucb", "random")]
    assert find_first_screen(folders) is None
    address = write_first_screen(tmp_path / "town", read_runs(tmp_path))
    assert address is not None and find_first_screen(folders) == address
    (folders[0] / "status.json").touch()
    assert find_first_screen(folders) is None


def test_stale_groups_are_removed(tmp_path: Path) -> None:
    write(tmp_path, "ucb", 0, [1.0, 2.0])
    assert write_first_screen(tmp_path / "town", read_runs(tmp_path)) is None
    random_run = write(tmp_path, "random", 0, [1.0, 2.0])
    assert write_first_screen(tmp_path / "town", read_runs(tmp_path)) is not None
    assert {path.parent.name for path in (tmp_path / "town" / "mean").rglob("events*")} == {"ucb", "random"}
    shutil.rmtree(random_run.parent)
    write(tmp_path, "ucb", 1, [1.0, 2.0])
    write_first_screen(tmp_path / "town", read_runs(tmp_path))
    remaining = {
        path.parent.relative_to(tmp_path / "town" / "mean").as_posix() for path in tmp_path.rglob("mean/**/events*")
    }
    assert remaining == {"all-runs"}  # two runs have no interval


@pytest.mark.parametrize("bands", [True, False])
def test_link_selects_means(bands: bool) -> None:
    found = urlsplit(link(bands, 7000))
    query = {name: values[0] for name, values in parse_qs(found.query).items()}
    assert (found.netloc, found.fragment, query["smoothing"]) == ("localhost:7000", "timeseries", "0.6")
    runs = ["mean/ucb", "town/mean/ucb", "mean/ucb/low95", "mean/vs/untrained", "principal_ucb-1a2b3c4d/s0"]
    # TensorBoard searches without regard to case.
    matches = [run for run in runs if re.search(query["runFilter"], run, re.I)]
    assert matches == [run for run in runs if "mean/" in run and (bands or "low95" not in run)]
    pattern = query["runColorGroup"].removeprefix("regex:")
    groups = [found[1] if (found := re.search(pattern, run)) else None for run in runs]
    assert groups == ["ucb", "ucb", "ucb", "vs/untrained", None]
    assert re.search(query["tagFilter"], "Compare/2_online_objective") and not re.search(
        query["tagFilter"], "train/return"
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path (apt-get install chromium)")
def test_tensorboard_opens_link(sweep: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (the extra dev)")
    write_first_screen(sweep, read_runs(sweep))
    server = Server(sweep)
    try:
        server.wait_for_runs(6 + 2 * 3)  # and a mean of each group, with the ends of its interval
        port = urlsplit(server.url).port
        assert port is not None
        with playwright.sync_playwright() as started:
            # A root user, as in a container, has no sandbox.
            browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page()
            page.set_default_timeout(120_000)
            page.goto(link(bands=True, port=port).replace("localhost", "127.0.0.1"), wait_until="commit")
            page_shows_label = (
                r"said => document.body.innerText.replace(/\s/g, '').includes(said)"  # a tag has two lines
            )
            for label in ("mean/random/low95", "Compare/2_online_objective"):
                page.wait_for_function(page_shows_label, arg=label)
            text = "".join(page.locator("body").inner_text().split())
            browser.close()
        assert "Tagsmatchingfilter" in text and "validation/apples" not in text
        assert "mean/ucb" in text and "principal_ucb" not in text
    finally:
        server.close()
