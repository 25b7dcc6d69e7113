"""Export of the episodes of a run as a log of Inspect (inspect.aisi.org.uk), for its viewer and data frames."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import llmrl
from llmrl.analysis.explorer.conversations import CallRecord
from llmrl.analysis.explorer.episodes import episode_rows, read_episodes
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.secrets import redact, redact_nested
from llmrl.results.run_records import RunRecord
from llmrl.run.artifacts import read_config

FORMATS = (".eval", ".json")
SCORE = "return"
_SCORES = (SCORE, "success", "length", "objective", "invalid_rate")
_STATUS = {"finished": "success", "failed": "error", "running": "started", "queued": "started"}


def check_inspect() -> None:
    """Raise ConfigError if Inspect is not installed; it is not imported."""
    if importlib.util.find_spec("inspect_ai") is None:
        raise ConfigError(
            "an Inspect log needs Inspect, which is not installed: pip install 'llmrl[inspect]', in a separate "
            "environment if pip reports version conflicts (boto3, fsspec)"
        )


def write_inspect_log(record: RunRecord, out: Path) -> int:
    """Write the recorded episodes of a run as an Inspect log; return the number of episodes.

    An episode is a sample. Its messages are the conversation in the order of the steps. Its events are the calls with
    their complete prompts, and a note after each step with its action and reward. Its scores are the return and other
    measurements.

    Args:
        record: record of the run.
        out: file that ends in `.eval` or `.json`; an existing one is replaced.

    Raises:
        ConfigError: Inspect is not installed, or the file name ends otherwise.
        RunFolderError: no steps of an episode were recorded, or the file cannot be written.
    """
    check_inspect()
    if out.suffix not in FORMATS:
        raise ConfigError(f"{out} must end in {' or '.join(FORMATS)}, which selects the format")
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSpec, write_eval_log

    rows = {row["episode"]: row for row in episode_rows(record.folder)}
    samples = [_sample(record, rows[sample["episode"]], sample) for sample in read_episodes(record.folder)]
    if not samples:
        raise RunFolderError(
            f"{record.folder} has no recorded steps (episodes/<k>/replies.jsonl); use agent=llm_player, or "
            "play.records=<n> with other players"
        )
    log = EvalLog(
        status=_STATUS.get(record.state, "cancelled"),
        eval=EvalSpec(
            created=datetime.fromtimestamp(record.started, UTC).isoformat(),
            task=record.env or record.name,
            task_args=redact_nested(dict(record.overrides)),
            dataset=EvalDataset(name=record.env, samples=len(samples), sample_ids=[sample.id for sample in samples]),
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
        raise RunFolderError(
            f"cannot write {out}: {error.strerror or error}; choose another file with --out"
        ) from error
    return len(samples)


def _config(record: RunRecord) -> Any:
    return redact_nested({name: x for name, x in read_config(record.folder, []).items() if name != "trusted_modules"})


def _sample(record: RunRecord, row: Mapping[str, Any], episode: Mapping[str, Any]) -> Any:
    from inspect_ai.event import InfoEvent
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ModelOutput

    message = _messages([redact(text) for text in episode["texts"]])
    conversation: list[Any] = []
    system_ids: set[int] = set()  # identities of system messages already in the conversation
    events: list[Any] = []
    for number, lines in enumerate(episode["steps"]):
        for line in lines:
            for call in line["calls"]:
                prompt = [message(role, text) for role, text in call["messages"]]
                output = _output(call)
                conversation += [
                    item for item in prompt if item.role == "system" and id(item) not in system_ids
                ] + prompt[-1:]
                system_ids |= {id(item) for item in prompt if item.role == "system"}
                conversation += [output.message] if call["reply"] is not None else []
                events.append(_event(call, prompt, output))
            outcome = {name: line[name] for name in ("action", "reward", "valid", "invalid", "asked") if name in line}
            faults = [call["fault"] for call in line["calls"] if call["fault"]]
            note = {"step": number, "player": line["player"], **outcome, **({"faults": faults} if faults else {})}
            events.append(InfoEvent(source="llmrl", data=redact_nested(note)))
    return EvalSample(
        id=int(row["episode"]) + 1,
        epoch=1,
        input=conversation[:2] or f"{record.env}, episode {row['episode']}",
        target="",
        messages=conversation,
        output=next((item.output for item in reversed(events) if item.event == "model"), ModelOutput()),
        scores=_scores(row),
        metadata={name: x for name, x in row.items() if name != "recorded"},
        events=events,
    )


def _messages(texts: list[str]) -> Callable[[str, int], Any]:
    """Return a function that creates the message of a role from the index of its text.

    Equal arguments give the same object, because most messages of a prompt are those of the previous step.
    """
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser

    cache: dict[tuple[str, int], Any] = {}
    kinds = {"system": ChatMessageSystem, "assistant": ChatMessageAssistant}

    def message(role: str, text: int) -> Any:
        if (role, text) not in cache:
            cache[role, text] = kinds.get(role, ChatMessageUser)(content=texts[text])
        return cache[role, text]

    return message


def _output(call: CallRecord) -> Any:
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ContentReasoning,
        ContentText,
        ModelOutput,
        ModelUsage,
    )

    text = redact(call["reply"] or "")
    reasoning = redact(call["thought"])
    content = [ContentReasoning(reasoning=reasoning), ContentText(text=text)] if reasoning else text
    verdict = {"valid": call["valid"], "fault": redact(call["fault"]), "understood": redact_nested(call["understood"])}
    message = ChatMessageAssistant(content=content, source="generate", metadata=verdict)
    prompt, completion = (x if isinstance(x, int) else 0 for x in call["tokens"])
    return ModelOutput(
        model=call["model"],
        choices=[
            ChatCompletionChoice(message=message, stop_reason="max_tokens" if call["finish"] == "length" else "stop")
        ],
        usage=ModelUsage(input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion),
    )


def _event(call: CallRecord, prompt: list[Any], output: Any) -> Any:
    from inspect_ai.event import ModelEvent
    from inspect_ai.model import GenerateConfig

    timestamp = {"timestamp": datetime.fromtimestamp(call["time"], UTC)} if call["time"] else {}
    return ModelEvent(
        model=call["model"],
        input=prompt,
        tools=[],
        tool_choice="none",
        config=GenerateConfig(),
        output=output,
        error=redact(call["error"]) or None,
        cache="read" if call["cached"] else None,
        **timestamp,
    )


def _scores(row: Mapping[str, Any]) -> dict[str, Any]:
    from inspect_ai.scorer import Score

    return {name: Score(value=float(row[name])) for name in _SCORES if isinstance(row.get(name), int | float)}


def _results(samples: list[Any]) -> Any:
    """Return means over samples and their standard errors."""
    from inspect_ai.log import EvalMetric, EvalResults, EvalScore

    scores = []
    for name in _SCORES:
        values = [sample.scores[name].value for sample in samples if name in sample.scores]
        if not values:
            continue
        mean = math.fsum(values) / len(values)
        metrics = {"mean": mean}
        if len(values) > 1:
            variance = math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)
            metrics["stderr"] = math.sqrt(variance / len(values))
        eval_metrics = {sample: EvalMetric(name=sample, value=x) for sample, x in metrics.items()}
        scores.append(EvalScore(name=name, scorer=name, scored_samples=len(values), metrics=eval_metrics))
    return EvalResults(total_samples=len(samples), completed_samples=len(samples), scores=scores)
