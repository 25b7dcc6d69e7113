"""Exchanges of players and principals with language models, and videos of agents, a few for each task."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from llmrl.analysis.explorer.episodes import read_episodes
from llmrl.core.errors import RunFolderError
from llmrl.core.frames import SIDE_BY_SIDE
from llmrl.llms.call_log import FILE_NAME, read_calls
from llmrl.results.groups import Group
from llmrl.results.run_records import RunRecord
from llmrl.run.episode_files import FOLDER
from llmrl.run.tensorboard_evaluations import pictures

log = logging.getLogger(__name__)

MAX_CHARACTERS = 900
"""Maximum number of characters of a text: the end of a prompt, the beginning of a reply."""
MAX_VIDEOS = 4
VIDEO_BYTES = 1_500_000
"""Maximum size of a video in the page, bytes."""


@dataclass(frozen=True)
class Exchange:
    """A prompt and the reply to it.

    Attributes:
        name: name of the group.
        place: decision of a player, or call of a principal, as text.
        prompt: end of the prompt.
        reply: beginning of the reply.
        action: action of a player; empty for a principal.
        reward: reward of the step; 0 for a principal.
    """

    name: str
    place: str
    prompt: str
    reply: str
    action: str = ""
    reward: float = 0.0


@dataclass(frozen=True)
class StoryVideo:
    """An episode, or several side by side, as an animation.

    Attributes:
        name: name of the group.
        run: reference of the run.
        path: GIF file.
    """

    name: str
    run: str
    path: Path

    @property
    def caption(self) -> str:
        """Caption of the video."""
        return f"{self.name}, mechanisms side by side" if self.path.stem == SIDE_BY_SIDE else self.name

    @cached_property
    def content(self) -> bytes:
        """The animation, with fewer and smaller pictures if it is too large for a page."""
        is_small = self.path.stat().st_size <= VIDEO_BYTES
        return self.path.read_bytes() if is_small else pictures(self.path, VIDEO_BYTES)[0]


def find_exchanges(groups: Sequence[tuple[str, Group, Sequence[RunRecord]]]) -> tuple[Exchange, ...]:
    """Return one exchange of each group whose players or principal asked a language model.

    Players need recorded steps.

    Args:
        groups: short name, group and finished runs of each.
    """
    exchanges = []
    for name, _, runs in groups:
        for run in runs:
            if (exchange := _exchange(name, run) or _principal_exchange(name, run)) is not None:
                exchanges.append(exchange)
                break
    return tuple(exchanges)


def find_videos(groups: Sequence[tuple[str, Group, Sequence[RunRecord]]]) -> tuple[StoryVideo, ...]:
    """Return a video of each group that has one, of at most `MAX_VIDEOS` groups.

    Args:
        groups: short name, group and finished runs of each.
    """
    videos = []
    for name, _, runs in groups:
        for run in runs:
            if (path := next(_videos(run.folder), None)) is not None:
                videos.append(StoryVideo(name, run.reference, path))
                break
    return tuple(videos[:MAX_VIDEOS])


def _videos(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob(f"evaluation*/videos/{SIDE_BY_SIDE}.gif"), key=lambda path: -path.stat().st_mtime)
    yield from sorted((folder / FOLDER).glob("*/episode.gif"), key=lambda path: int(path.parent.name))
    yield from sorted(folder.glob("evaluation*/videos/**/*.gif"))


def _exchange(name: str, run: RunRecord) -> Exchange | None:
    """Return the first decision with a valid reply of a language model in a run's first recorded episode."""
    try:
        for episode in islice(read_episodes(run.folder), 1):
            for number, step in enumerate(episode["steps"]):
                for player in step:
                    if player.get("calls") and player.get("valid") is not False and "reply" in player:
                        return _player_exchange(name, episode, number, player)
    except (RunFolderError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: its episodes cannot be read (%r)", run.folder, error)
    return None


def _player_exchange(name: str, episode: dict[str, Any], number: int, player: dict[str, Any]) -> Exchange:
    texts = episode["texts"]
    prompt = "\n".join(texts[text] for role, text in player["calls"][-1]["messages"] if role != "assistant")
    reply = texts[player["reply"]]
    return Exchange(
        name,
        f"episode {int(episode['episode'])}, step {number}",
        truncate_start(prompt),
        truncate_end(reply),
        str(player.get("action", "")),
        float(player.get("reward", 0.0) or 0.0),
    )


def _principal_exchange(name: str, run: RunRecord) -> Exchange | None:
    """Return the last call of a run's principal with a valid reply."""
    path, last = run.folder / FILE_NAME, None
    for number, call in enumerate(read_calls(path), start=1) if path.exists() else ():
        if call.get("purpose") == "principal" and call.get("valid") is not False and call.get("reply"):
            prompt = "\n".join(m["content"] for m in call.get("messages", ()) if isinstance(m["content"], str))
            last = Exchange(name, f"principal, call {number}", prompt, str(call["reply"]))
    return last and replace(last, prompt=truncate_start(last.prompt), reply=truncate_end(last.reply))


def truncate_end(text: str) -> str:
    """Return the first words of a text, at most `MAX_CHARACTERS` characters, with the length of a longer text."""
    return (
        text
        if len(text) <= MAX_CHARACTERS
        else f"{text[:MAX_CHARACTERS].rsplit(' ', 1)[0]}\n[{len(text):,} characters in total]"
    )


def truncate_start(text: str) -> str:
    """Return the last paragraphs of a text, at most `MAX_CHARACTERS` characters, with the number of others."""
    text = re.sub(r"\n{3,}", "\n\n", text.strip())
    if len(text) <= MAX_CHARACTERS:
        return text
    tail = text[-MAX_CHARACTERS:]
    tail = tail[tail.find("\n") + 1 :] if "\n" in tail else tail[tail.find(" ") + 1 :]
    return f"[{len(text) - len(tail):,} characters before]\n{tail}"
