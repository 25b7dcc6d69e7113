"""Recorded episodes of a run for the explorer: observations, calls, replies, actions and rewards of each step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmrl.analysis.explorer.conversations import Texts, call_record, drop_repeats
from llmrl.llms.call_log import FILE_NAME, read_calls
from llmrl.run.episode_files import EPISODES, FOLDER, REPLIES
from llmrl.run.files import read_json_lines

Calls = dict[str, list[Mapping[str, Any]]]
"""The calls of an episode by `<player>/<decision>`, or `<player>/lesson`."""

_PLACE = re.compile(r"episode (\d+), player (\d+), (\w+)")
_STEP = ("action", "reward", "reflection", "plan", "lesson", "said", "asked", "valid", "replies", "invalid", "failed")


def episode_rows(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each finished or recorded episode, by number.

    A row is the line of `episodes.jsonl` with `recorded`, whether its steps are recorded. An unfinished episode has no
    such line; its `end` is `not over`.
    """
    rows = {int(line["episode"]): dict(line) for line in read_json_lines(folder / EPISODES)}
    recorded = {int(path.parent.name) for path in (folder / FOLDER).glob(f"*/{REPLIES}") if path.parent.name.isdigit()}
    return [
        {"episode": k, **rows.get(k, {"end": "not over"}), "recorded": k in recorded}
        for k in sorted(rows.keys() | recorded)
    ]


def read_episodes(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield each episode of a run whose steps were recorded, in order.

    An episode is `{episode, players, texts, steps}`. `steps` is a list of lists with a record for each player. The
    `observation`, the `reply` and the messages of `calls` (`conversations.call_record`) are indices in `texts`.

    Raises:
        ValueError, KeyError: a line is damaged.
    """
    numbers = [row["episode"] for row in episode_rows(folder) if row["recorded"]]
    calls = _group_calls(folder, set(numbers))
    for k in numbers:
        yield _episode(k, read_json_lines(folder / FOLDER / str(k) / REPLIES), calls.pop(k, {}))


def _group_calls(folder: Path, episodes: set[int]) -> dict[int, Calls]:
    """Return the calls of players to language models, by episode and place in it."""
    calls: dict[int, Calls] = defaultdict(lambda: defaultdict(list))
    if not (folder / FILE_NAME).is_file():
        return calls
    # Prompts mostly repeat those of earlier steps, so equal texts are stored once.
    shared: dict[int, dict[str, str]] = defaultdict(dict)
    for call in read_calls(folder / FILE_NAME):
        place = _PLACE.fullmatch(str(call.get("place", "")))
        if place is None or (k := int(place[1])) not in episodes:
            continue
        texts = shared[k]
        for message in call.get("messages", ()):
            if isinstance(content := message.get("content"), str):
                message["content"] = texts.setdefault(content, content)
        calls[k][f"{place[2]}/{place[3]}"].append({**call, "identity": None, "spent": None, "schema": None})
    return calls


def _episode(number: int, lines: list[dict[str, Any]], calls: Calls) -> dict[str, Any]:
    texts = Texts()
    steps: list[list[dict[str, Any]]] = []
    decisions: dict[int, int] = defaultdict(int)
    for line in lines:
        player = int(line.get("agent", 0))
        while len(steps) <= int(line["step"]):
            steps.append([])
        record = {name: line[name] for name in _STEP if name in line}
        record |= {"player": player, "calls": []}
        if "observation" in line:
            observation = line["observation"]
            record["observation"] = texts.number(
                observation if isinstance(observation, str) else format_observation(observation)
            )
        if "reply" in line:
            record["reply"] = texts.number(str(line["reply"]))
        if "lesson" in line:
            record["lesson_calls"] = _step_record(calls.get(f"{player}/lesson", []), texts)
        # A player that repeats its action makes no call, and other kinds of players never do.
        if line.get("asked"):
            record["calls"] = _step_record(calls.get(f"{player}/{decisions[player]}", []), texts)
            decisions[player] += 1
        steps[int(line["step"])].append(record)
    players = 1 + max((int(line.get("agent", 0)) for line in lines), default=0)
    return {"episode": number, "players": players, "texts": texts.all, "steps": steps}


def _step_record(calls: list[Mapping[str, Any]], texts: Texts) -> list[dict[str, Any]]:
    return [call_record(call, texts) for call in drop_repeats(calls)]


def format_observation(observation: Any) -> str:
    """Return an observation as lines of `name: value`; a list of texts, such as a map, has a line for each."""
    import json

    if not isinstance(observation, Mapping):
        return json.dumps(observation, ensure_ascii=False)
    lines = []
    for name, value in observation.items():
        if isinstance(value, list) and value and all(isinstance(x, str) for x in value):
            lines += [f"{name}:", *(f"  {x}" for x in value)]
        else:
            lines.append(f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)
