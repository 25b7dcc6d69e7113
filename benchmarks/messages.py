"""Classification of the messages of citizens in runs of studies/communication.

    python benchmarks/messages.py outputs/communication/*/s[0-9] --data FILE

A message belongs to each class whose pattern matches, and to `other` if no pattern matches. Columns contain the share
of each class among valid messages with text; the column `examples` contains the first message of each class. Patterns
consist of English words and ignore negations: check the examples before comparing shares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from run_tables import tabulate_runs

from llmrl.llms.call_log import read_calls
from llmrl.run.artifacts import read_config
from llmrl.run.status import read_status

CLASSES: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "intention": r"\bI('ll| will| mean to| plan| intend| am going| want to)\b",
        "request": r"\b(please|let'?s|let us|we (should|must|need)|you (should|must|need)|everyone|all of you)\b",
        "promise": r"\b(promise|agree|deal|commit)",
        "threat": r"\b(or else|otherwise|punish|unless|if you don'?t)\b",
        "mechanism": r"\b(tax|taxes|taxed|pay|paid|payments?|incentives?|votes?|voted|voting)\b",
        "report": r"\b(I (took|caught|earned|was|went|have)|there (is|are)|left|remain|stock)\b",
        "question": r"\?",
    }.items()
}
"""Regular expressions by class."""
OTHER = "other"


def classify(text: str) -> list[str]:
    """Return the classes of a message.

    >>> classify("I will take 5. Please take less, or the stock is gone.")
    ['intention', 'request', 'report']
    """
    return [name for name, pattern in CLASSES.items() if pattern.search(text)] or [OTHER]


def summarize_messages(texts: Iterable[str]) -> dict[str, object]:
    """Return the number of messages, the share of each class, and an example of each class.

    Returns:
        `messages`: number; for each class: share in [0, 1], or None if there are no messages; `examples`: JSON object.
    """
    messages = list(texts)
    classes = {text: classify(text) for text in messages}
    examples = {name: text for text in reversed(messages) for name in classes[text]}
    shares = {
        name: round(sum(name in classes[text] for text in messages) / len(messages), 4) if messages else None
        for name in (*CLASSES, OTHER)
    }
    return {"messages": len(messages), **shares, "examples": json.dumps(examples, ensure_ascii=False)}


def read_run(folder: Path) -> dict[str, object]:
    """Return the row of a run: its settings and the statistics of its messages, by column."""
    config, status = read_config(folder, ()), read_status(folder)
    calls = [call for call in read_calls(folder / "llm_calls.jsonl") if call["purpose"] == "talk" and call["valid"]]
    return {
        "env": "" if status is None else status.env,
        "principal": config["principal"]["_target_"].rpartition(".")[2],
        "llm": "" if status is None else status.llm,
        "message_interval": config["agent"]["message_interval"],
        "seed": config["seed"],
        **summarize_messages(text for call in calls if (text := call["parsed_reply"]["text"])),
    }


if __name__ == "__main__":
    tabulate_runs(__doc__, read_run)
