"""Files of played episodes: written during play, and cut back to the checkpoint when a run resumes.

episodes.jsonl                  one line for each finished episode
episodes/<k>/replies.jsonl      one line for each step and player: observation, reflection, action, reward, ...
episodes/<k>/frames/<i>.png     frames of a video, kept until the end of the run, which may resume within the episode
episodes/<k>/episode.gif, .mp4  the video
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import create_folder, open_file, read_bytes
from llmrl.core.frames import save_video
from llmrl.core.records import State
from llmrl.core.secrets import redact_nested
from llmrl.run.files import read_json_lines, report_write_errors

EPISODES_NAME = "episodes.jsonl"
EPISODES_FOLDER = "episodes"
REPLIES_NAME = "replies.jsonl"
VIDEO_TAG = "episode/video"
"""Tag of videos in sinks."""
TEXT_COLUMN_WIDTH = 520
"""Width of the text column at the right of each video frame, pixels."""
_EMPTY_FILE_END = {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}


class EpisodeFiles:
    """The files of a run's episodes.

    Args:
        folder: run folder.
        state: `state_dict()` at the resumed checkpoint; later lines and files are removed. None: a new run.

    Attributes:
        finished_lines: lines of the finished episodes before the first unfinished one, in order.

    Raises:
        RunFolderError: the files cannot be written, or are shorter than at the checkpoint or changed since.
    """

    def __init__(self, folder: Path, state: State | None) -> None:
        self._episodes_path, self._folder = folder / EPISODES_NAME, folder / EPISODES_FOLDER
        self._frame_counts: dict[int, dict[str, int]] = {}  # numbers of frames by unfinished episode
        self._hashes: dict[Path, hashlib._Hash] = {}  # SHA-256 of each file that still grows
        self.finished_lines: list[dict[str, Any]] = []
        self._n_episodes_shown = 0  # finished episodes whose videos `list_new_videos` has returned
        # Arguments of `finish_episode` by episode, while an earlier episode is unfinished.
        self._finished_out_of_order: dict[int, tuple[dict[str, Any], float | None]] = {}
        with report_write_errors(self._folder):
            self._truncate_to({"list": _EMPTY_FILE_END, "open": [], "waiting": []} if state is None else state)

    def write_step(self, episode: int, line: Mapping[str, Any]) -> None:
        """Append the line of one player's step in an episode."""
        self._append(self._folder / str(episode) / REPLIES_NAME, line)

    def write_frame(self, episode: int, picture: np.ndarray) -> None:
        """Write the next frame of an episode's video, [height, width, 3] uint8."""
        from PIL import Image

        counts = self._frame_counts.setdefault(episode, {"frames": 0})
        path = self._folder / str(episode) / "frames" / f"{counts['frames']:06d}.png"
        create_folder(path.parent, self._folder.parent)
        with open_file(path, "wb", self._folder.parent) as file:
            # Low compression is fast, and the files are removed at the end of the run.
            Image.fromarray(picture).save(file, format="PNG", compress_level=1)
        counts["frames"] += 1

    def finish_episode(self, episode: int, line: Mapping[str, Any], fps: float | None) -> None:
        """Record the end of an episode, and make its video with `fps` frames per second; None: make no video."""
        self._finished_out_of_order[episode] = dict(line), fps
        while (episode := len(self.finished_lines)) in self._finished_out_of_order:
            line, fps = self._finished_out_of_order.pop(episode)
            folder = self._folder / str(episode)
            frames = sorted((folder / "frames").glob("*.png"))
            if frames and fps is not None:
                save_video(frames, folder, "episode", fps)
            self._frame_counts.pop(episode, None)
            self._hashes.pop(folder / REPLIES_NAME, None)
            self._append(self._episodes_path, line)
            self.finished_lines.append(dict(line))

    def list_new_videos(self, metrics: Mapping[str, Any]) -> list[Path]:
        """Return the GIF videos of the episodes that ended between the previous row of metrics and this one.

        Call it once for each row of `metrics.jsonl`, in order. `episodes` in a row is the number of finished episodes.
        """
        n_finished = metrics.get("episodes", self._n_episodes_shown)
        episodes, self._n_episodes_shown = self.finished_lines[self._n_episodes_shown : n_finished], n_finished
        videos = [self._folder / str(episode["episode"]) / "episode.gif" for episode in episodes]
        return [path for path in videos if path.is_file()]

    def close(self) -> None:
        """Remove the frames of finished videos, at the end of the run."""
        for line in self.finished_lines:
            shutil.rmtree(self._folder / str(line["episode"]) / "frames", ignore_errors=True)

    def state_dict(self) -> State:
        """Return the lengths and digests of the files, for a checkpoint."""
        episodes = [] if not self._folder.is_dir() else sorted(int(path.name) for path in self._folder.iterdir())
        finished_episodes = {line["episode"] for line in self.finished_lines}
        return {
            "list": self._get_end(self._episodes_path),
            "open": [
                [k, self._get_end(self._folder / str(k) / REPLIES_NAME), self._frame_counts.get(k, {}).get("frames", 0)]
                for k in episodes
                if k not in finished_episodes
            ],
            "waiting": [[k, dict(line), fps] for k, (line, fps) in self._finished_out_of_order.items()],
        }

    def _truncate_to(self, state: State) -> None:
        """Cut the files of all episodes to their ends in `state`, and remove later files."""
        self._truncate(self._episodes_path, state["list"])
        self.finished_lines = read_json_lines(self._episodes_path)
        finished_episodes = {line["episode"] for line in self.finished_lines}
        self._finished_out_of_order = {int(k): (dict(line), fps) for k, line, fps in state["waiting"]}
        unfinished_ends = {int(k): (end, int(n_frames)) for k, end, n_frames in state["open"]}
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            episode = int(path.name)
            if episode in finished_episodes:
                shutil.rmtree(path / "frames", ignore_errors=True)
                continue
            if episode not in unfinished_ends:
                shutil.rmtree(path)
                continue
            end, n_frames = unfinished_ends[episode]
            self._truncate(path / REPLIES_NAME, end)
            for picture in (path / "frames").glob("*.png"):
                if int(picture.stem) >= n_frames:
                    picture.unlink()
            for video in path.glob("episode.*"):
                video.unlink()
            self._frame_counts[episode] = {"frames": n_frames}

    def _get_end(self, path: Path) -> State:
        """Return the size and digest of a file."""
        size = path.stat().st_size if path.exists() else 0
        return {"bytes": size, "sha256": self._hashes.get(path, hashlib.sha256()).hexdigest()}

    def _truncate(self, path: Path, end: State) -> None:
        """Cut a file to `end`, which `_get_end` returned at the checkpoint."""
        try:
            data = read_bytes(path, self._folder.parent)
        except FileNotFoundError:
            data = b""
        digest = hashlib.sha256(memoryview(data)[: end["bytes"]])
        if len(data) < end["bytes"] or digest.hexdigest() != end["sha256"]:
            change = "is shorter than" if len(data) < end["bytes"] else "has other content than"
            raise RunFolderError(
                f"{path} {change} at the checkpoint: the file has been cut, changed or replaced. Start this run anew "
                "with rerun=true, which moves the old content aside."
            )
        if data:
            with open_file(path, "ab", self._folder.parent) as file:
                file.truncate(end["bytes"])
        self._hashes[path] = digest

    def _append(self, path: Path, line: Mapping[str, Any]) -> None:
        """Append a line in one write, so that a kill leaves at most one incomplete line."""
        create_folder(path.parent, self._folder.parent)
        data = memoryview(
            (json.dumps(redact_nested(line), ensure_ascii=False) + "\n").encode("utf-8", errors="replace")
        )
        self._hashes.setdefault(path, hashlib.sha256()).update(data)
        with open_file(path, "ab", self._folder.parent) as file:
            while data:
                data = data[os.write(file.fileno(), data) :]
