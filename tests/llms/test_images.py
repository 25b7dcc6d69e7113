"""Pictures in messages: what is sent, how much it counts, and what is kept of it."""

import base64
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError
from llmrl.core.records import ChatRequest
from llmrl.llms.budget import Budget
from llmrl.llms.call_log import CallLog, read_calls
from llmrl.llms.client import ChatClient
from llmrl.llms.images import FOLDER, image_tokens, in_parts, kept, named, picture, size, tokens_of
from llmrl.llms.openai_compatible import OpenAICompatibleChat
from llmrl.llms.request_key import request_key


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def pixels(url):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))


@given(st.integers(2, 60), st.integers(2, 60), st.integers(1, 200))
def test_no_side_is_longer_than_asked_and_small_frames_stay_sharp(height, width, side):
    frame = noise(height, width)
    url = picture(frame, side)
    found = pixels(url)
    assert size(url) == (found.shape[1], found.shape[0]) and max(found.shape[:2]) <= max(side, 2)
    longest = max(height, width)
    if longest <= side:
        factor = side // longest
        even = frame.repeat(factor, 0).repeat(factor, 1)
        assert np.array_equal(found, even[: found.shape[0], : found.shape[1]])
        assert all(a - b in (0, 1) for a, b in zip(even.shape, found.shape, strict=True))


def test_a_large_frame_is_shrunk_to_means():
    frame = np.zeros((400, 200, 3), dtype=np.uint8)
    frame[::2] = 200
    assert np.array_equal(pixels(picture(frame, 200)), np.full((200, 100, 3), 100))


def test_what_is_no_frame_is_refused():
    with pytest.raises(ConfigError, match="height, width, 3"):
        picture(np.zeros((4, 4, 3), dtype=np.float32), 100)


def test_tokens_are_the_most_of_three_rules():
    assert image_tokens(336, 336) == 258  # Google's least
    assert image_tokens(512, 512) == 350  # 512 * 512 / 750, Anthropic's
    assert image_tokens(1024, 200) == 85 + 2 * 170  # OpenAI's two tiles
    message = {"role": "user", "content": "", "images": [picture(noise(8, 8), 336)] * 2}
    assert tokens_of(message) == 2 * 258


def test_they_follow_the_text_in_the_form_of_the_api():
    url = picture(noise(4, 4), 4)
    part = {"type": "image_url", "image_url": {"url": url}}
    plain = {"role": "user", "content": "look"}
    assert in_parts(plain) == plain
    assert in_parts({**plain, "images": [url]}) == {"role": "user", "content": [{"type": "text", "text": "look"}, part]}
    cut = [{"type": "text", "text": "lo"}, {"type": "text", "text": "ok"}]
    assert in_parts({"role": "user", "content": cut, "images": [url, url]})["content"] == [*cut, part, part]


def test_the_address_of_a_question_is_that_of_its_pixels():
    """However a library writes the file; and other pixels are another question."""
    frame = noise(16, 16)
    other = io.BytesIO()
    Image.fromarray(frame).save(other, "PNG", compress_level=0)
    urls = [picture(frame, 16), "data:image/png;base64," + base64.b64encode(other.getvalue()).decode()]
    assert urls[0] != urls[1]
    keys = [request_key({}, ChatRequest(({"role": "user", "content": "?", "images": [url]},))) for url in urls]
    changed = frame.copy()
    changed[3, 3, 0] ^= 1
    for images in ([picture(changed, 16)], [urls[0]] * 2, [picture(frame.reshape(8, 32, 3), 32)]):
        keys.append(request_key({}, ChatRequest(({"role": "user", "content": "?", "images": images},))))
    assert keys[0] == keys[1] and len(set(keys)) == 4


def test_each_is_kept_once_beside_the_log(tmp_path):
    frames = [picture(noise(6, 6, seed), 6) for seed in (0, 1, 0)]
    told = kept([{"role": "user", "content": "?", "images": frames}], tmp_path)
    files = told[0]["images"]
    assert files[0] == files[2] != files[1] and sorted(p.name for p in (tmp_path / FOLDER).iterdir()) == sorted(
        {file.rpartition("/")[2] for file in files}
    )
    for file, url in zip(files, frames, strict=True):
        assert np.array_equal(np.asarray(Image.open(tmp_path / file)), pixels(url))
    assert named([{"role": "user", "content": "?"}]) == [{"role": "user", "content": "?"}]


def test_a_server_gets_them_and_the_log_names_them(tmp_path):
    frame, seen = noise(12, 20), []

    def look(messages):
        [text, image] = messages[-1]["content"]
        seen.append(pixels(image["image_url"]["url"]))
        return text["text"]

    with FakeOpenAIServer(reply=look) as server:
        provider = OpenAICompatibleChat(server.url, "fake-model", None)
        client = ChatClient(provider, ledger=CallLog(tmp_path / "llm_calls.jsonl"), budget=Budget())
        request = ChatRequest(({"role": "user", "content": "What is it?", "images": [picture(frame, 20)]},))
        [reply] = client.chat([request])
        client.close()
    assert reply.text == "What is it?" and np.array_equal(seen[0], frame)
    [call] = read_calls(tmp_path / "llm_calls.jsonl")
    [file] = call["messages"][0]["images"]
    assert np.array_equal(np.asarray(Image.open(tmp_path / file)), frame) and "base64" not in json.dumps(call)
