"""The recorded episodes of a run for the explorer: observations, calls, replies, actions and rewards of each step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmrl.analysis.explorer.conversations import Texts, told, without_repeats
from llmrl.llms.call_log import FILE_NAME, read_calls
from llmrl.run.episode_files import EPISODES, FOLDER, REPLIES
from llmrl.run.files import read_lines

Calls = dict[str, list[Mapping[str, Any]]]
"""The calls of an episode by `<player>/<decision>`, or `<player>/lesson`."""

_PLACE = re.compile(r"episode (\d+), player (\d+), (\w+)")
_STEP = ("action", "reward", "reflection", "plan", "lesson", "said", "asked", "valid", "replies", "invalid", "failed")


def episode_rows(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each finished or recorded episode, by number: its line of `episodes.jsonl`, and `recorded`,
    whether its steps are there. An unfinished episode has no such line; its `end` is `not over`."""
    rows = {int(line["episode"]): dict(line) for line in read_lines(folder / EPISODES)}
    recorded = {int(path.parent.name) for path in (folder / FOLDER).glob(f"*/{REPLIES}") if path.parent.name.isdigit()}
    return [
        {"episode": k, **rows.get(k, {"end": "not over"}), "recorded": k in recorded}
        for k in sorted(rows.keys() | recorded)
    ]


def read_episodes(folder: Path, wanted: set[int] | None = None) -> Iterator[dict[str, Any]]:
    """Yield each episode of a run whose steps were recorded, in order.

    An episode is `{episode, players, texts, steps}`. `steps` is a list of lists with one entry for each player. The
    `observation`, the `reply` and the messages of `calls` (`conversations.told`) are indices in `texts`.

    Args:
        folder: run folder.
        wanted: numbers of the episodes to read; None: all.

    Raises:
        ValueError, KeyError: a line is damaged.
    """
    numbers = [row["episode"] for row in episode_rows(folder) if row["recorded"]]
    calls = _calls_of(folder, set(numbers) if wanted is None else wanted)
    for k in numbers:
        if wanted is None or k in wanted:
            yield _episode(k, read_lines(folder / FOLDER / str(k) / REPLIES), calls.pop(k, {}))


def _calls_of(folder: Path, wanted: set[int]) -> dict[int, Calls]:
    """Return the calls of players to language models, by episode and place in it."""
    found: dict[int, Calls] = defaultdict(lambda: defaultdict(list))
    if not (folder / FILE_NAME).is_file():
        return found
    # Most of a prompt repeats that of the step before, so equal texts are stored once.
    shared: dict[int, dict[str, str]] = defaultdict(dict)
    for call in read_calls(folder / FILE_NAME):
        place = _PLACE.fullmatch(str(call.get("place", "")))
        if place is None or (k := int(place[1])) not in wanted:
            continue
        known = shared[k]
        for message in call.get("messages", ()):
            if isinstance(content := message.get("content"), str):
                message["content"] = known.setdefault(content, content)
        found[k][f"{place[2]}/{place[3]}"].append({**call, "identity": None, "spent": None, "schema": None})
    return found


def _episode(number: int, lines: list[dict[str, Any]], calls: Calls) -> dict[str, Any]:
    texts = Texts()
    steps: list[list[dict[str, Any]]] = []
    decisions: dict[int, int] = defaultdict(int)
    for line in lines:
        player = int(line.get("agent", 0))
        while len(steps) <= int(line["step"]):
            steps.append([])
        shown = {name: line[name] for name in _STEP if name in line}
        shown |= {"player": player, "calls": []}
        if "observation" in line:
            seen = line["observation"]
            shown["observation"] = texts.number(seen if isinstance(seen, str) else readable(seen))
        if "reply" in line:
            shown["reply"] = texts.number(str(line["reply"]))
        if "lesson" in line:
            shown["lesson_calls"] = _told(calls.get(f"{player}/lesson", []), texts)
        # A player that repeats its action makes no call, and other kinds of players never do.
        if line.get("asked"):
            shown["calls"] = _told(calls.get(f"{player}/{decisions[player]}", []), texts)
            decisions[player] += 1
        steps[int(line["step"])].append(shown)
    players = 1 + max((int(line.get("agent", 0)) for line in lines), default=0)
    return {"episode": number, "players": players, "texts": texts.all, "steps": steps}


def _told(calls: list[Mapping[str, Any]], texts: Texts) -> list[dict[str, Any]]:
    return [told(call, texts) for call in without_repeats(calls)]


def readable(seen: Any) -> str:
    """Return an observation as lines of `name: value`; a list of texts, such as a map, has a line for each."""
    import json

    if not isinstance(seen, Mapping):
        return json.dumps(seen, ensure_ascii=False)
    lines = []
    for name, value in seen.items():
        if isinstance(value, list) and value and all(isinstance(x, str) for x in value):
            lines += [f"{name}:", *(f"  {x}" for x in value)]
        else:
            lines.append(f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)
