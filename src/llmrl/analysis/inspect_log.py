"""Episodes of a run as a log of Inspect (inspect.aisi.org.uk), which its viewer and its data frames read."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import llmrl
from llmrl.analysis.explorer.conversations import Told
from llmrl.analysis.explorer.episodes import episode_rows, read_episodes
from llmrl.analysis.runs import RunRecord
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.secrets import redact, redact_all
from llmrl.run.artifacts import read_config

FORMATS = (".eval", ".json")
SCORE = "return"
_SCORES = (SCORE, "success", "length", "objective", "invalid_rate")
_STATUS = {"finished": "success", "failed": "error", "running": "started", "queued": "started"}


def check_inspect() -> None:
    """Raise ConfigError if Inspect is not installed; it is not imported."""
    if importlib.util.find_spec("inspect_ai") is None:
        raise ConfigError(
            "an Inspect log is written by Inspect itself, which is not installed: pip install 'llmrl[inspect]', in an "
            "environment of its own if pip finds versions in conflict (boto3, fsspec)"
        )


def write_inspect_log(record: RunRecord, out: Path) -> int:
    """Write the episodes of a run whose steps were written down as an Inspect log; return how many there are.

    An episode is a sample: its messages are the talk in the order of the steps, its events the calls with all that was
    asked, and a note of what was done and earned after each; its scores are the return and what else was measured.

    Args:
        record: of the run.
        out: the file, `.eval` or `.json`; replaced if it is there.

    Raises:
        ConfigError: Inspect is not installed, or the ending is another.
        RunFolderError: no steps of an episode were written down, or the file cannot be written.
    """
    check_inspect()
    if out.suffix not in FORMATS:
        raise ConfigError(f"{out} must end in {' or '.join(FORMATS)}: Inspect goes by the ending")
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSpec, write_eval_log

    rows = {row["episode"]: row for row in episode_rows(record.folder)}
    samples = [_sample(record, rows[each["episode"]], each) for each in read_episodes(record.folder)]
    if not samples:
        raise RunFolderError(
            f"{record.folder} has no steps of episodes (episodes/<k>/replies.jsonl); agent=llm_player writes them, and "
            "other players with play.records=<n>"
        )
    log = EvalLog(
        status=_STATUS.get(record.state, "cancelled"),
        eval=EvalSpec(
            created=datetime.fromtimestamp(record.started, UTC).isoformat(),
            task=record.env or record.name,
            task_args=redact_all(dict(record.overrides)),
            dataset=EvalDataset(name=record.env, samples=len(samples), sample_ids=[each.id for each in samples]),
            model=record.llm or str(record.overrides.get("agent", "agent")),
            config=EvalConfig(),
            packages={"llmrl": llmrl.__version__},
            metadata={"run": f"{record.name}/{record.group}/s{record.seed}", "config": _config(record)},
        ),
        results=_results(samples),
        samples=samples,
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_eval_log(log, str(out))
    except OSError as error:
        raise RunFolderError(f"cannot write {out}: {error.strerror or error}; choose a place with --out") from error
    return len(samples)


def _config(record: RunRecord) -> Any:
    return redact_all({name: x for name, x in read_config(record.folder, []).items() if name != "trusted_modules"})


def _sample(record: RunRecord, row: Mapping[str, Any], episode: Mapping[str, Any]) -> Any:
    from inspect_ai.event import InfoEvent
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ModelOutput

    message = _messages([redact(text) for text in episode["texts"]])
    talk: list[Any] = []
    begun: set[int] = set()  # places of system messages that the talk has
    events: list[Any] = []
    for number, lines in enumerate(episode["steps"]):
        for line in lines:
            for call in line["calls"]:
                asked = [message(role, text) for role, text in call["messages"]]
                output = _output(call)
                talk += [each for each in asked if each.role == "system" and id(each) not in begun] + asked[-1:]
                begun |= {id(each) for each in asked if each.role == "system"}
                talk += [output.message] if call["reply"] is not None else []
                events.append(_event(call, asked, output))
            done = {name: line[name] for name in ("action", "reward", "valid", "invalid", "asked") if name in line}
            faults = [call["fault"] for call in line["calls"] if call["fault"]]
            note = {"step": number, "player": line["player"], **done, **({"faults": faults} if faults else {})}
            events.append(InfoEvent(source="llmrl", data=redact_all(note)))
    return EvalSample(
        id=int(row["episode"]) + 1,
        epoch=1,
        input=talk[:2] or f"{record.env}, episode {row['episode']}",
        target="",
        messages=talk,
        output=next((each.output for each in reversed(events) if each.event == "model"), ModelOutput()),
        scores=_scores(row),
        metadata={name: x for name, x in row.items() if name != "recorded"},
        events=events,
    )


def _messages(texts: list[str]) -> Callable[[str, int], Any]:
    """A function that gives the message of a role and the number of a text: the same one each time, as most of a
    question is that of the step before."""
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser

    made: dict[tuple[str, int], Any] = {}
    kinds = {"system": ChatMessageSystem, "assistant": ChatMessageAssistant}

    def message(role: str, text: int) -> Any:
        if (role, text) not in made:
            made[role, text] = kinds.get(role, ChatMessageUser)(content=texts[text])
        return made[role, text]

    return message


def _output(call: Told) -> Any:
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ContentReasoning,
        ContentText,
        ModelOutput,
        ModelUsage,
    )

    text = redact(call["reply"] or "")
    thought = redact(call["thought"])
    content = [ContentReasoning(reasoning=thought), ContentText(text=text)] if thought else text
    verdict = {"valid": call["valid"], "fault": redact(call["fault"]), "understood": redact_all(call["understood"])}
    said = ChatMessageAssistant(content=content, source="generate", metadata=verdict)
    prompt, completion = (x if isinstance(x, int) else 0 for x in call["tokens"])
    return ModelOutput(
        model=call["model"],
        choices=[
            ChatCompletionChoice(message=said, stop_reason="max_tokens" if call["finish"] == "length" else "stop")
        ],
        usage=ModelUsage(input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion),
    )


def _event(call: Told, asked: list[Any], output: Any) -> Any:
    from inspect_ai.event import ModelEvent
    from inspect_ai.model import GenerateConfig

    when = {"timestamp": datetime.fromtimestamp(call["time"], UTC)} if call["time"] else {}
    return ModelEvent(
        model=call["model"],
        input=asked,
        tools=[],
        tool_choice="none",
        config=GenerateConfig(),
        output=output,
        error=redact(call["error"]) or None,
        cache="read" if call["cached"] else None,
        **when,
    )


def _scores(row: Mapping[str, Any]) -> dict[str, Any]:
    from inspect_ai.scorer import Score

    return {name: Score(value=float(row[name])) for name in _SCORES if isinstance(row.get(name), int | float)}


def _results(samples: list[Any]) -> Any:
    """Means over samples, and their standard errors."""
    from inspect_ai.log import EvalMetric, EvalResults, EvalScore

    found = []
    for name in _SCORES:
        values = [each.scores[name].value for each in samples if name in each.scores]
        if not values:
            continue
        mean = math.fsum(values) / len(values)
        metrics = {"mean": mean}
        if len(values) > 1:
            spread = math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)
            metrics["stderr"] = math.sqrt(spread / len(values))
        told = {each: EvalMetric(name=each, value=x) for each, x in metrics.items()}
        found.append(EvalScore(name=name, scorer=name, scored_samples=len(values), metrics=told))
    return EvalResults(total_samples=len(samples), completed_samples=len(samples), scores=found)
