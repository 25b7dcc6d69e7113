"""Recorded episodes of a run for the explorer: observations, calls, replies, actions, rewards and pictures of steps.

The pictures of an episode, without their column of text, are combined into a few sheets, which load faster.
"""

from __future__ import annotations

import io
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.analysis.explorer.conversations import drop_repeated_calls, to_call_record
from llmrl.core.text_array import TextTable
from llmrl.llms.call_log import CALL_LOG_NAME, read_calls
from llmrl.run.episode_files import EPISODES_FOLDER, EPISODES_NAME, REPLIES_NAME, TEXT_COLUMN_WIDTH
from llmrl.run.files import read_json_lines, write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

CallsByDecision = dict[str, list[Mapping[str, Any]]]
"""Calls of an episode by `<player>/<decision>`, or `<player>/lesson`; both are counted from 0."""

_CALL_LOCATION_PATTERN = re.compile(r"episode (\d+), player (\d+), (\w+)")
_DECISION_KEYS = (
    *("action", "reward", "reflection", "plan", "lesson", "message"),
    *("has_request", "valid", "replies", "invalid", "failed"),
)
"""Keys of a recorded decision that are copied to the records of the explorer."""


def read_episode_rows(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each finished or recorded episode, sorted by episode number.

    A row contains the line of `episodes.jsonl` and `recorded`: whether the steps of the episode are recorded. An
    unfinished episode has no such line; its `end` is `not over`.
    """
    rows = {int(line["episode"]): dict(line) for line in read_json_lines(folder / EPISODES_NAME)}
    folder_names = [path.parent.name for path in (folder / EPISODES_FOLDER).glob(f"*/{REPLIES_NAME}")]
    recorded_numbers = {int(name) for name in folder_names if name.isdigit()}
    return [
        {"episode": number, **rows.get(number, {"end": "not over"}), "recorded": number in recorded_numbers}
        for number in sorted(rows.keys() | recorded_numbers)
    ]


def read_episodes(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield each recorded episode of a run, in order.

    An episode is `{episode, players, texts, steps}`: its number, number of players, texts, and for each step a list
    with a record for each player. In a record, `observation`, `reply` and the messages of `calls`
    (`conversations.to_call_record`) are indices of `texts`.

    Raises:
        ValueError, KeyError: a line is damaged.
    """
    numbers = [row["episode"] for row in read_episode_rows(folder) if row["recorded"]]
    calls_by_episode = _group_calls(folder, set(numbers))
    for number in numbers:
        lines = read_json_lines(folder / EPISODES_FOLDER / str(number) / REPLIES_NAME)
        yield _build_episode(number, lines, calls_by_episode.pop(number, {}))


def _group_calls(folder: Path, episodes: set[int]) -> dict[int, CallsByDecision]:
    """Return the calls of players to language models in the given `episodes`, by episode number."""
    calls_by_episode: dict[int, CallsByDecision] = defaultdict(lambda: defaultdict(list))
    if not (folder / CALL_LOG_NAME).is_file():
        return calls_by_episode
    # Most messages repeat texts of earlier steps; equal texts are stored once to save memory.
    texts_by_episode: dict[int, dict[str, str]] = defaultdict(dict)
    for call in read_calls(folder / CALL_LOG_NAME):
        location = _CALL_LOCATION_PATTERN.fullmatch(str(call.get("question_id", "")))
        if location is None or (number := int(location[1])) not in episodes:
            continue
        texts = texts_by_episode[number]
        for message in call.get("messages", ()):
            if isinstance(content := message.get("content"), str):
                message["content"] = texts.setdefault(content, content)
        reduced_call = {**call, "identity": None, "spent": None, "schema": None}
        calls_by_episode[number][f"{location[2]}/{location[3]}"].append(reduced_call)
    return calls_by_episode


def _build_episode(number: int, lines: list[dict[str, Any]], calls: CallsByDecision) -> dict[str, Any]:
    texts = TextTable()
    steps: list[list[dict[str, Any]]] = []
    decision_counts: dict[int, int] = defaultdict(int)
    for line in lines:
        player = int(line.get("agent", 0))
        steps += [[] for _ in range(int(line["step"]) + 1 - len(steps))]
        record = {name: line[name] for name in _DECISION_KEYS if name in line} | {"player": player, "calls": []}
        if "observation" in line:
            observation = line["observation"]
            is_text = isinstance(observation, str)
            record["observation"] = texts.add(observation if is_text else format_observation(observation))
        if "reply" in line:
            record["reply"] = texts.add(str(line["reply"]))
        if "lesson" in line:
            record["lesson_calls"] = _build_call_records(calls.get(f"{player}/lesson", []), texts)
        # `has_request`: the player has called a language model for this decision, instead of repeating its last action.
        if line.get("has_request"):
            record["calls"] = _build_call_records(calls.get(f"{player}/{decision_counts[player]}", []), texts)
            decision_counts[player] += 1
        steps[int(line["step"])].append(record)
    n_players = 1 + max((int(line.get("agent", 0)) for line in lines), default=0)
    return {"episode": number, "players": n_players, "texts": texts.texts, "steps": steps}


def _build_call_records(calls: list[Mapping[str, Any]], texts: TextTable) -> list[dict[str, Any]]:
    return [to_call_record(call, texts) for call in drop_repeated_calls(calls)]


def format_observation(observation: Any) -> str:
    """Format an observation as lines `name: value`; each text of a list, such as a map, gets its own line."""
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


MAX_PICTURE_HEIGHT = 400
"""Maximum height of a picture on a sheet, pixels; higher pictures are scaled down."""
MAX_COLUMNS, MAX_ROWS = 5, 5
"""Numbers of columns and rows of pictures on a full sheet."""
JPEG_QUALITY = 82
"""Quality of sheets in Pillow's scale, 0 to 95."""


def write_picture_sheets(folder: Path, episode: int, out: Path, prefix: str) -> dict[str, Any] | None:
    """Write sheets with the pictures of an episode of the run in `folder` as `<prefix>-<i>.jpg` into the folder `out`.

    Returns:
        `{width, height, across, down, count, sheets}`: size of a picture in pixels, columns and rows of a sheet, number
        of pictures, and file names of the sheets. Picture t shows the state before step t, the last picture the final
        state. None if there are no pictures.

    Raises:
        RunFolderError: a sheet cannot be written.
        OSError: a picture cannot be read.
    """
    from PIL import Image

    sheets: list[str] = []  # file names
    sheet: Image.Image | None = None
    picture_size, n_pictures = (0, 0), 0
    for picture in _iterate_pictures(folder / EPISODES_FOLDER / str(episode)):
        picture_size = picture_size if n_pictures else picture.size
        cell_index = n_pictures % (MAX_COLUMNS * MAX_ROWS)
        if cell_index == 0:
            if sheet is not None:
                _save_sheet(sheet, out, prefix, sheets)
            sheet = Image.new("RGB", (picture_size[0] * MAX_COLUMNS, picture_size[1] * MAX_ROWS))
        assert sheet is not None
        sheet.paste(picture, (cell_index % MAX_COLUMNS * picture_size[0], cell_index // MAX_COLUMNS * picture_size[1]))
        n_pictures += 1
    if sheet is None:
        return None
    n_rows = math.ceil((n_pictures - len(sheets) * MAX_COLUMNS * MAX_ROWS) / MAX_COLUMNS)
    # The explorer expects the same number of columns on all sheets, so the last sheet is only cropped in height.
    _save_sheet(sheet.crop((0, 0, sheet.width, n_rows * picture_size[1])), out, prefix, sheets)
    return {
        "width": picture_size[0],
        "height": picture_size[1],
        "across": MAX_COLUMNS,
        "down": MAX_ROWS,
        "count": n_pictures,
        "sheets": sheets,
    }


def _save_sheet(sheet: Image, out: Path, prefix: str, sheets: list[str]) -> None:
    """Write a sheet into the folder `out`, and append its file name to the list `sheets`."""
    content = io.BytesIO()
    sheet.save(content, "JPEG", quality=JPEG_QUALITY)
    sheets.append(f"{prefix}-{len(sheets)}.jpg")
    write_bytes(out / sheets[-1], content.getvalue())


def _iterate_pictures(folder: Path) -> Iterator[Image]:
    """Yield the frames of an episode's video, or of an unfinished episode, without their column of text."""
    from PIL import Image, ImageSequence

    video = folder / "episode.gif"
    for path in [video] if video.is_file() else sorted((folder / "frames").glob("*.png")):
        with Image.open(path) as pictures:
            for frame in ImageSequence.Iterator(pictures):
                picture = frame.convert("RGB")
                picture = picture.crop((0, 0, max(picture.width - TEXT_COLUMN_WIDTH, 1), picture.height))
                if picture.height > MAX_PICTURE_HEIGHT:
                    width = max(1, picture.width * MAX_PICTURE_HEIGHT // picture.height)
                    picture = picture.resize((width, MAX_PICTURE_HEIGHT))
                yield picture
