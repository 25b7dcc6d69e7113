"""Recorded episodes of a run for the explorer: observations, calls, replies, actions, rewards and pictures of steps.

The pictures of an episode, without their column of text, are combined on a few sheets for faster pages.
"""

from __future__ import annotations

import io
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.analysis.explorer.conversations import drop_repeats, to_call_record
from llmrl.core.text_array import TextTable
from llmrl.llms.call_log import FILE_NAME, read_calls
from llmrl.run.episode_files import EPISODES, FOLDER, REPLIES, TEXT_COLUMN_WIDTH
from llmrl.run.files import read_json_lines, write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

Calls = dict[str, list[Mapping[str, Any]]]
"""The calls of an episode by `<player>/<decision>`, or `<player>/lesson`."""

_CALL_LOCATION_PATTERN = re.compile(r"episode (\d+), player (\d+), (\w+)")
_STEP_KEYS = (
    "action",
    "reward",
    "reflection",
    "plan",
    "lesson",
    "said",
    "asked",
    "valid",
    "replies",
    "invalid",
    "failed",
)


def read_episode_rows(folder: Path) -> list[dict[str, Any]]:
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
    `observation`, the `reply` and the messages of `calls` (`conversations.to_call_record`) are indices in `texts`.

    Raises:
        ValueError, KeyError: a line is damaged.
    """
    numbers = [row["episode"] for row in read_episode_rows(folder) if row["recorded"]]
    calls = _group_calls(folder, set(numbers))
    for k in numbers:
        yield _build_episode(k, read_json_lines(folder / FOLDER / str(k) / REPLIES), calls.pop(k, {}))


def _group_calls(folder: Path, episodes: set[int]) -> dict[int, Calls]:
    """Return the calls of players to language models, by episode and place in it."""
    calls: dict[int, Calls] = defaultdict(lambda: defaultdict(list))
    if not (folder / FILE_NAME).is_file():
        return calls
    # Prompts mostly repeat those of earlier steps, so equal texts are stored once.
    shared: dict[int, dict[str, str]] = defaultdict(dict)
    for call in read_calls(folder / FILE_NAME):
        place = _CALL_LOCATION_PATTERN.fullmatch(str(call.get("place", "")))
        if place is None or (k := int(place[1])) not in episodes:
            continue
        texts = shared[k]
        for message in call.get("messages", ()):
            if isinstance(content := message.get("content"), str):
                message["content"] = texts.setdefault(content, content)
        calls[k][f"{place[2]}/{place[3]}"].append({**call, "identity": None, "spent": None, "schema": None})
    return calls


def _build_episode(number: int, lines: list[dict[str, Any]], calls: Calls) -> dict[str, Any]:
    texts = TextTable()
    steps: list[list[dict[str, Any]]] = []
    decisions: dict[int, int] = defaultdict(int)
    for line in lines:
        player = int(line.get("agent", 0))
        steps += [[] for _ in range(int(line["step"]) + 1 - len(steps))]
        record = {name: line[name] for name in _STEP_KEYS if name in line} | {"player": player, "calls": []}
        if "observation" in line:
            observation = line["observation"]
            is_text = isinstance(observation, str)
            record["observation"] = texts.index(observation if is_text else format_observation(observation))
        if "reply" in line:
            record["reply"] = texts.index(str(line["reply"]))
        if "lesson" in line:
            record["lesson_calls"] = _build_call_records(calls.get(f"{player}/lesson", []), texts)
        # A player that repeats its action makes no call, and other kinds of players never do.
        if line.get("asked"):
            record["calls"] = _build_call_records(calls.get(f"{player}/{decisions[player]}", []), texts)
            decisions[player] += 1
        steps[int(line["step"])].append(record)
    players = 1 + max((int(line.get("agent", 0)) for line in lines), default=0)
    return {"episode": number, "players": players, "texts": texts.texts, "steps": steps}


def _build_call_records(calls: list[Mapping[str, Any]], texts: TextTable) -> list[dict[str, Any]]:
    return [to_call_record(call, texts) for call in drop_repeats(calls)]


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


SHEET_PICTURE_HEIGHT = 400
"""Maximum height of a picture on a sheet, pixels; larger ones are reduced."""
MAX_COLUMNS, MAX_ROWS = 5, 5
JPEG_QUALITY = 82
"""JPEG quality, 0 to 95."""


def write_sheets(folder: Path, episode: int, out: Path, name: str) -> dict[str, Any] | None:
    """Write the pictures of an episode as `<name>-<i>.jpg` into `out`.

    Returns:
        `{width, height, across, down, count, sheets}`: size of a picture in pixels, columns and rows of a sheet, number
        of pictures, and names of the sheets. Picture t shows the state before step t; the last one shows the end. None
        if there is no video.

    Raises:
        RunFolderError: a sheet cannot be written.
        OSError: a picture cannot be read.
    """
    from PIL import Image

    sheets: list[str] = []
    sheet: Image.Image | None = None
    size, count = (0, 0), 0
    for picture in _iterate_pictures(folder / FOLDER / str(episode)):
        size = size if count else picture.size
        at = count % (MAX_COLUMNS * MAX_ROWS)
        if at == 0:
            if sheet is not None:
                _save_sheet(sheet, out, name, sheets)
            sheet = Image.new("RGB", (size[0] * MAX_COLUMNS, size[1] * MAX_ROWS))
        assert sheet is not None
        sheet.paste(picture, (at % MAX_COLUMNS * size[0], at // MAX_COLUMNS * size[1]))
        count += 1
    if sheet is None:
        return None
    rows = math.ceil((count - len(sheets) * MAX_COLUMNS * MAX_ROWS) / MAX_COLUMNS)
    # The last sheet is cropped in height only, so that all sheets have the same columns.
    _save_sheet(sheet.crop((0, 0, sheet.width, rows * size[1])), out, name, sheets)
    return {
        "width": size[0],
        "height": size[1],
        "across": MAX_COLUMNS,
        "down": MAX_ROWS,
        "count": count,
        "sheets": sheets,
    }


def _save_sheet(sheet: Image, out: Path, name: str, sheets: list[str]) -> None:
    content = io.BytesIO()
    sheet.save(content, "JPEG", quality=JPEG_QUALITY)
    sheets.append(f"{name}-{len(sheets)}.jpg")
    write_bytes(out / sheets[-1], content.getvalue())


def _iterate_pictures(folder: Path) -> Iterator[Image]:
    """Yield the pictures of an episode's video, or its frames so far, without their column of text."""
    from PIL import Image, ImageSequence

    video = folder / "episode.gif"
    for path in [video] if video.is_file() else sorted((folder / "frames").glob("*.png")):
        with Image.open(path) as pictures:
            for frame in ImageSequence.Iterator(pictures):
                picture = frame.convert("RGB")
                picture = picture.crop((0, 0, max(picture.width - TEXT_COLUMN_WIDTH, 1), picture.height))
                if picture.height > SHEET_PICTURE_HEIGHT:
                    width = max(1, picture.width * SHEET_PICTURE_HEIGHT // picture.height)
                    picture = picture.resize((width, SHEET_PICTURE_HEIGHT))
                yield picture
