"""A report as files: a page that needs nothing else, a Markdown summary, tables and figures."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import llmrl
from llmrl.analysis.figures import Drawing, drawings_of
from llmrl.analysis.groups import scripted_notes
from llmrl.analysis.intervals import MINIMUM_UNITS
from llmrl.analysis.once import left_out, narrowed, remarks_of
from llmrl.analysis.principal_scores import SCORES_NOTE
from llmrl.analysis.reference_lines import OBJECTIVE
from llmrl.analysis.report import ESTIMATES, Report, Section
from llmrl.analysis.report_tables import online_performance, slugs, tables_of
from llmrl.analysis.story.talks import VIDEO_BYTES, Exchange, StoryVideo
from llmrl.analysis.story.timeline_figure import timeline_drawing
from llmrl.analysis.study_figures import drawings_of_study, tasks_drawing
from llmrl.analysis.study_tasks import NAME as OVERVIEW
from llmrl.analysis.study_tasks import TasksCompared, tasks_compared
from llmrl.analysis.table_format import ReportTable
from llmrl.core.atomic_files import why
from llmrl.core.errors import RunFolderError
from llmrl.run.files import write_atomic, write_bytes
from llmrl.run.tensorboard_evaluations import pictures

PAGE = "report.html"
_STUDY = (
    "study",
    "study_online",
    "study_landscape",
    "study_adaptation",
    "study_scores",
    "study_time_to_solution",
    "study_comparisons",
    "study_published",
)
_SCORES = ("scores", "efficiency", "improvement")
"""Tables of a section that are in the texts."""
_STORY = {
    "What was proposed": ("proposals", "best"),
    "How the agents lived": ("society",),
    "What the teacher said": ("teacher", "plans"),
}
"""Chapters of a story, and the tables and figures in them."""


@dataclass(frozen=True)
class Chapter:
    """What one heading of a section has below it.

    Attributes:
        title: empty for what stands first.
        notes: sentences before all else.
        drawings, tables: figures, then tables.
        exchanges, videos: of players.
    """

    title: str
    notes: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[ReportTable] = ()
    exchanges: Sequence[Exchange] = ()
    videos: Sequence[EncodedVideo] = ()

    def __bool__(self) -> bool:
        return bool(self.drawings or self.tables or self.exchanges or self.videos)


@dataclass(frozen=True)
class EncodedVideo:
    """A video that is small enough for a page."""

    video: StoryVideo
    name: str
    content: bytes


@dataclass(frozen=True)
class Part:
    """A section as it is shown: its chapters that have anything to tell."""

    name: str
    section: Section
    chapters: Sequence[Chapter]


def write_report(
    report: Report, out: Path, figures: bool = True, said: Callable[[str], None] = lambda text: None
) -> Path:
    """Write all files of `report` into the folder `out`, each in one step, the page last; returns the page.

    `report.html`, `summary.md`, `tables/*.csv` and `*.tex`, `figures/*.png` and `*.svg`. Files of these names that are
    there are replaced, others are left alone.

    Args:
        report: what to write.
        out: created if it is not there.
        figures: False leaves the figures out, which need matplotlib.
        said: is told how far the work is, figure by figure, which are nearly all of it.

    Raises:
        ConfigError: figures are wanted and matplotlib is not installed.
        RunFolderError: the folder cannot be written.
    """
    tables = tables_of(report)
    parts = [
        Part(name, section, _chapters(section, name, report, tables, _drawn(section, name, report, said, figures)))
        for section, name in zip(report.sections, slugs(report), strict=True)
    ]
    over = tasks_compared(report)
    overview = [tasks_drawing(over, OVERVIEW)] if over is not None and figures else []
    try:
        for folder in (out / "tables", out / "figures") if figures else (out / "tables",):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = why(out, error, "--out")
        raise RunFolderError(f"cannot write the report {out}: {reason}; choose a place with --out") from error
    for table in tables:
        write_atomic(out / "tables" / f"{table.name}.csv", table.csv())
        if table.columns:
            write_atomic(out / "tables" / f"{table.name}.tex", table.latex())
    chapters = [chapter for part in parts for chapter in part.chapters]
    for drawing in (*overview, *(drawing for chapter in chapters for drawing in chapter.drawings)):
        write_bytes(out / "figures" / f"{drawing.name}.png", drawing.png)
        write_bytes(out / "figures" / f"{drawing.name}.svg", drawing.svg)
    for shown in (shown for chapter in chapters for shown in chapter.videos):
        write_bytes(out / "figures" / f"{shown.name}.gif", shown.content)
    for template, path in (("summary.md.j2", out / "summary.md"), ("report.html.j2", out / PAGE)):
        write_atomic(path, _render(template, report, parts, tables, over, overview))
    return out / PAGE


def _drawn(
    section: Section, name: str, report: Report, said: Callable[[str], None], figures: bool
) -> dict[str, Drawing]:
    """The figures of a section by what they show; none if none are wanted."""
    if not figures:
        return {}
    place = f"{report.sections.index(section) + 1} of {len(report.sections)}"
    said(f"figures of section {place}; --no-figures leaves them out")
    study = [] if section.study is None else drawings_of_study(section.study, f"{name}_study")
    told = section.story.proposals
    without = left_out(section, drawn=True)
    drawn = told and "proposals" not in without
    story = [timeline_drawing(told, f"{name}_proposals", _unit(section, report))] if drawn else []
    found = [*study, *story, *drawings_of(section, report, without)]
    return {drawing.name.removeprefix(f"{name}_"): drawing for drawing in found}


def _small(video: Path) -> bytes:
    """A video as it is, or with fewer and smaller pictures where it is too large for a page."""
    return video.read_bytes() if video.stat().st_size <= VIDEO_BYTES else pictures(video, VIDEO_BYTES)[0]


def _unit(section: Section, report: Report) -> str:
    """What proposals are judged by, in words where a study has some for it."""
    study = section.study
    about = study is not None and study.settings.metric in (None, OBJECTIVE)
    return (study.settings.unit if study is not None and about else None) or "objective"


def _chapters(
    section: Section, name: str, report: Report, tables: Sequence[ReportTable], drawn: Mapping[str, Drawing]
) -> list[Chapter]:
    """The chapters of a section that have anything to tell, in the order in which a reader asks."""
    without = left_out(section, drawn=bool(drawn))
    own = {
        table.name.removeprefix(f"{name}_"): table
        for table in tables
        if table.columns and table.name.startswith(f"{name}_")
    }
    own = {what: table for what, table in own.items() if f"{what}_table" not in without and what not in without}

    def chapter(title: str, whats: Sequence[str], notes: Sequence[str] = (), **more: Any) -> Chapter:
        figures = [drawn[what] for what in whats if what in drawn]
        return Chapter(title, notes, figures, [own[what] for what in whats if what in own], **more)

    studied = chapter("", _STUDY, section.study.sentences if section.study is not None else ())
    found = [chapter(title, whats) for title, whats in _STORY.items()]
    story = section.story
    videos = [
        EncodedVideo(video, f"{name}_video_{i}", _small(video.path)) for i, video in enumerate(story.videos) if drawn
    ]
    found.append(Chapter("What a language model was asked and answered", exchanges=story.exchanges, videos=videos))
    curves = [what for what in drawn if what.startswith("curve_")]
    gap = "scores" in own and ESTIMATES["gap"] in own["scores"].columns
    notes = [_target(section)] if gap or section.target is None else []
    notes += [] if "scores" in own else remarks_of(section)
    notes += section.not_shown if drawn else []  # else the table of probabilities says so
    scores = chapter("Scores", (*curves, *_SCORES, "profile"), [*notes, *section.notes])
    # A study begins with its answer; for other runs the scores are it.
    kept = [each for each in ([studied, *found, scores] if studied else [scores, *found]) if each]
    if kept and not scores and any(scores.notes):
        kept.append(replace(scores, title="Remarks"))
    return kept


def counted(report: Report) -> str:
    """How many runs there are, of which state, and how many are in the numbers, in a sentence."""
    states = ", ".join(f"{count} {state}" for state, count in sorted(report.states.items()))
    missing = sum(len(left.seeds) for left in report.excluded if left.state == "missing")
    more = f" {missing} more {'has' if missing == 1 else 'have'} no folder." if missing else ""
    return f"{report.counted} of {len(report.runs)} runs are in the numbers ({states}).{more}"


def method(report: Report) -> list[str]:
    """What the numbers mean, line by line."""
    settings = report.settings
    lines = [
        f"A run's score is {settings.rule}. Higher is taken to be better. Only finished runs count.",
        "Runs that differ in their seed alone, or in the seed of the pre-training run that they begin with, are a "
        "group; there should be one for every seed that any group of the task has.",
        "Intervals of means are 95% Student t intervals over pre-training runs, if the runs name any, else over "
        "runs; the scores of the runs of one pre-training run are averaged first. With fewer than "
        f"{MINIMUM_UNITS} of these there is no interval.",
        "IQM, the interquartile mean, is the mean of the middle half: a quarter of the runs, rounded down, is dropped "
        "at either end. With fewer than four runs it is the mean. IQM, median and optimality gap have no interval.",
        "The optimality gap is the mean shortfall below a target; what lies above it does not make up for it.",
        "The probability of improvement is how often a run of one group beats a run of the other, ties counting half. "
        "Its interval is Newcombe's; runs that share a pre-training run have none.",
        "Profiles have pointwise Wilson intervals, curves pointwise t intervals. Curves are the mean over a group's "
        "finished runs; where these logged at different places, values in between are interpolated linearly, and only "
        "places that all of them cover are drawn.",
    ]
    if any(section.references for section in report.sections):
        lines.append(
            "Untrained agents, no mechanism and the best of a coarse scan were measured before the runs, once for all "
            "of them; the error is that of a few measurements. The best of the scan is the highest of several noisy "
            "numbers. Over contexts, each is the mean."
        )
    if any(online_performance(section, settings) for section in report.sections):
        lines.append(SCORES_NOTE)
    if not any(section.study for section in report.sections):  # else its sentences say so
        lines += scripted_notes(group for _, group, _, _ in report.runs)
    if any(section.over_tasks for section in report.sections):
        lines.append(
            "Over tasks, scores are normalised within each task, so that 0 is the worst and 1 the best of all finished "
            "runs there; intervals take these two as known. Mean and median are of the tasks' means; IQM and "
            "optimality gap are over all runs, so that a task with more runs weighs more; the probability of "
            "improvement is averaged over tasks."
        )
    return lines


def _target(section: Section) -> str:
    if section.target is None:
        return "No run has finished."
    return f"The optimality gap is the mean shortfall below {section.target:.4g} ({section.target_source})."


def _render(
    template: str,
    report: Report,
    parts: Sequence[Part],
    tables: Sequence[ReportTable],
    over: TasksCompared | None,
    overview: Sequence[Drawing],
) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("llmrl.analysis"),
        autoescape=".html" in template,
        undefined=StrictUndefined,
    )
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
    environment.filters["quoted"] = lambda text: "\n".join(f"    {line}" for line in text.split("\n"))
    named = {table.name: narrowed(table) for table in tables}
    text = environment.get_template(template).render(
        report=report,
        parts=parts,
        left=named.get("not_in_the_numbers"),
        calls=named.get("llm_calls"),
        players=named.get("players"),
        over=over,
        overview=overview,
        count=counted(report),
        method=method(report),
        version=llmrl.__version__,
        date=time.strftime("%Y-%m-%d %H:%M"),
    )
    return re.sub(r"\n{3,}", "\n\n", text)
