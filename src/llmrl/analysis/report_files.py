"""Files of a report: an HTML page without external files, a Markdown summary, tables and figures."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import llmrl
from llmrl.analysis.figures import RenderedFigure
from llmrl.analysis.report import Report, Section
from llmrl.analysis.report_figures import draw_proposals, draw_section, draw_study
from llmrl.analysis.report_tables import (
    TASK_COMPARISON_NAME,
    TaskComparison,
    build_slugs,
    build_tables,
    compare_tasks,
    compute_online_performance,
)
from llmrl.analysis.story.story import Exchange
from llmrl.core.atomic_files import describe_write_error
from llmrl.core.errors import RunFolderError
from llmrl.results.groups import explain_scripted_groups
from llmrl.results.principal_scores import OBJECTIVE_METRIC, SCORES_NOTE
from llmrl.results.table_format import ReportTable
from llmrl.run.files import write_atomic, write_bytes
from llmrl.statistics.intervals import MINIMUM_UNITS

PAGE_FILE_NAME = "report.html"
_STUDY_KINDS = (
    *("study", "study_online", "study_landscape", "study_adaptation", "study_kinds", "study_regret", "study_scores"),
    *("study_time_to_solution", "study_comparisons", "study_published"),
)
"""Tables and figures in the chapter of a study, by kind: the name of a table or figure without the section's slug."""
_KINDS_BY_STORY_CHAPTER = {
    "Proposals over time": ("proposals", "best"),
    "Society of agents": ("society",),
    "Advice of teachers": ("teacher", "plans"),
}
"""Titles of the chapters of a section's `Story`, with the kinds of tables and figures in them."""


@dataclass(frozen=True)
class Chapter:
    """The content below one heading of a section.

    Attributes:
        title: heading; empty for the chapter of a study.
        notes: sentences below the heading.
        drawings: figures, shown after the notes.
        tables: tables, shown after the figures.
        exchanges: requests to language models with their replies, shown last.
    """

    title: str
    notes: Sequence[str] = ()
    drawings: Sequence[RenderedFigure] = ()
    tables: Sequence[ReportTable] = ()
    exchanges: Sequence[Exchange] = ()

    def __bool__(self) -> bool:
        return bool(self.drawings or self.tables or self.exchanges)


@dataclass(frozen=True)
class SectionContent:
    """A section of a report with its chapters.

    Attributes:
        slug: unique text with which the section's file names begin (`build_slugs`).
        section: results of a task.
        chapters: chapters that have figures, tables or exchanges.
    """

    slug: str
    section: Section
    chapters: Sequence[Chapter]


def write_report(
    report: Report, out: Path, figures: bool = True, on_progress: Callable[[str], None] = lambda text: None
) -> Path:
    """Write the files of a report into a folder, each atomically and `report.html` last; return the path of that page.

    The files are `report.html`, `summary.md`, `tables/*.csv` and `*.tex`, `figures/*.png` and `*.svg`. Existing files
    of these names are replaced; other files are not changed.

    Args:
        report: report to write.
        out: folder to write to; created if it does not exist.
        figures: whether to draw figures, which needs matplotlib.
        on_progress: function that is called with a progress message for each section's figures.

    Raises:
        ConfigError: figures are to be drawn, but matplotlib is not installed.
        RunFolderError: the folder cannot be written.
    """
    tables = build_tables(report)
    contents = []
    for number, (section, slug) in enumerate(zip(report.sections, build_slugs(report), strict=True), start=1):
        on_progress(f"figures of section {number} of {len(report.sections)}; --no-figures leaves them out")
        drawings = _draw_figures(section, slug, report) if figures else []
        contents.append(SectionContent(slug, section, _build_chapters(section, slug, tables, drawings)))
    comparison = compare_tasks(report)
    comparison_drawings = draw_study(comparison, TASK_COMPARISON_NAME) if comparison is not None and figures else []
    try:
        for folder in (out / "tables", out / "figures") if figures else (out / "tables",):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = describe_write_error(out, error, "--out")
        raise RunFolderError(f"cannot write the report {out}: {reason}; choose another folder with --out") from error
    for table in tables:
        write_atomic(out / "tables" / f"{table.name}.csv", table.to_csv())
        if table.columns:
            write_atomic(out / "tables" / f"{table.name}.tex", table.to_latex())
    section_drawings = [x for content in contents for chapter in content.chapters for x in chapter.drawings]
    for drawing in (*comparison_drawings, *section_drawings):
        write_bytes(out / "figures" / f"{drawing.name}.png", drawing.png)
        write_bytes(out / "figures" / f"{drawing.name}.svg", drawing.svg)
    for template, path in (("summary.md.j2", out / "summary.md"), ("report.html.j2", out / PAGE_FILE_NAME)):
        write_atomic(path, _render_template(template, report, contents, tables, comparison, comparison_drawings))
    return out / PAGE_FILE_NAME


def _draw_figures(section: Section, slug: str, report: Report) -> list[RenderedFigure]:
    """Return the figures of a section; a study gets the general figures of scores and curves only on request."""
    drawings = [] if section.study is None else draw_study(section.study, f"{slug}_study")
    if section.story.proposals:
        is_objective = section.study is not None and section.study.settings.metric in (None, OBJECTIVE_METRIC)
        unit = section.study.settings.unit if section.study is not None and is_objective else None
        drawings += draw_proposals(section.story.proposals, f"{slug}_proposals", unit or "objective")
    if section.study is None or report.settings.curves:
        drawings += draw_section(section, report, slug)
    return drawings


def _build_chapters(
    section: Section, slug: str, tables: Sequence[ReportTable], drawings: Sequence[RenderedFigure]
) -> list[Chapter]:
    """Return the chapters of a section that are not empty, in reading order; names of its content begin with `slug`."""
    tables_by_kind = {
        table.name.removeprefix(f"{slug}_"): table
        for table in tables
        if table.columns and table.name.startswith(f"{slug}_")
    }
    drawings_by_kind = {drawing.name.removeprefix(f"{slug}_"): drawing for drawing in drawings}

    def build_chapter(title: str, kinds: Sequence[str], notes: Sequence[str] = ()) -> Chapter:
        return Chapter(
            title,
            notes,
            [drawings_by_kind[kind] for kind in kinds if kind in drawings_by_kind],
            [tables_by_kind[kind] for kind in kinds if kind in tables_by_kind],
        )

    study_chapter = build_chapter("", _STUDY_KINDS, section.study.sentences if section.study is not None else ())
    story_chapters = [build_chapter(title, kinds) for title, kinds in _KINDS_BY_STORY_CHAPTER.items()]
    story_chapters.append(Chapter("Requests and replies of language models", exchanges=section.story.exchanges))
    curve_kinds = [kind for kind in drawings_by_kind if kind.startswith("curve_")]
    notes = ["No run has finished."] if not section.scored_groups else [*section.omitted_groups_notes, *section.notes]
    scores_chapter = build_chapter("Scores", (*curve_kinds, "scores", "efficiency", "improvement"), notes)
    chapters = [scores_chapter, *story_chapters]
    if section.study is not None:  # the scores are in the chapter of the study, so the general table comes last
        chapters = [study_chapter, *story_chapters, scores_chapter]
    return [chapter for chapter in chapters if chapter]


def describe_run_counts(report: Report) -> str:
    """Return a sentence with the number of runs in each state, and the number of runs that have a score."""
    states = ", ".join(f"{count} {state}" for state, count in sorted(report.n_runs_by_state.items()))
    n_missing = sum(len(excluded.seeds) for excluded in report.excluded if excluded.state == "missing")
    missing_text = f" {n_missing} more {'has' if n_missing == 1 else 'have'} no folder." if n_missing else ""
    return f"{report.n_scored_runs} of {len(report.runs)} runs are in the numbers ({states}).{missing_text}"


def explain_method(report: Report) -> list[str]:
    """Return sentences that explain how scores, intervals and curves are computed, for a list."""
    settings = report.settings
    sentences = [
        f"A run's score is {settings.rule}. Higher is assumed to be better. Only finished runs count.",
        "Runs that differ only in their seed, or in the seed of the pre-training run that they start from, are a "
        "group; one run is expected for every seed that any group of the task has.",
        "Intervals of means are 95% Student t intervals over pre-training runs, if there are any, else over "
        "runs; the scores of the runs of one pre-training run are averaged first. With fewer than "
        f"{MINIMUM_UNITS} of these units there is no interval.",
        "IQM, the interquartile mean, is the mean of the middle half: a quarter of the runs, rounded down, is dropped "
        "at either end. With fewer than four runs it is the mean. IQM and median have no interval.",
        "The probability of improvement is that of a run of one group beating a run of the other; ties count half. "
        "Its interval is Newcombe's; runs that share a pre-training run have none.",
        "Curves are the mean over a group's finished runs with pointwise t intervals; if these runs logged at "
        "different places, values are interpolated linearly. Only the range that all of them cover is drawn.",
    ]
    if any(section.references for section in report.sections):
        sentences.append(
            "Untrained agents, no mechanism and the best of a coarse scan were measured before the runs, once for all "
            "of them; their standard errors are over a few measurements. The best of the scan is the highest of "
            "several noisy means, and so biased upward. Each level is the mean over contexts."
        )
    if any(compute_online_performance(section, settings) for section in report.sections):
        sentences.append(SCORES_NOTE)
    if not any(section.study for section in report.sections):  # the sentences of a study contain these notes
        sentences += explain_scripted_groups(group for _, group, _, _ in report.runs)
    return sentences


def _render_template(
    template: str,
    report: Report,
    contents: Sequence[SectionContent],
    tables: Sequence[ReportTable],
    comparison: TaskComparison | None,
    comparison_drawings: Sequence[RenderedFigure],
) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("llmrl.analysis")
    environment = Environment(loader=loader, autoescape=".html" in template, undefined=StrictUndefined)
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
    environment.filters["quoted"] = lambda text: "\n".join(f"    {line}" for line in text.split("\n"))
    tables_by_name: Mapping[str, ReportTable] = {table.name: table for table in tables}
    text = environment.get_template(template).render(
        report=report,
        contents=contents,
        excluded=tables_by_name.get("not_in_the_numbers"),
        calls=tables_by_name.get("llm_calls"),
        players=tables_by_name.get("players"),
        comparison=comparison,
        comparison_drawings=comparison_drawings,
        run_counts_sentence=describe_run_counts(report),
        method_sentences=explain_method(report),
        version=llmrl.__version__,
        date=time.strftime("%Y-%m-%d %H:%M"),
    )
    return re.sub(r"\n{3,}", "\n\n", text)
