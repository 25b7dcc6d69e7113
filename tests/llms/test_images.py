"""Images in messages: API format, token estimates and storage."""

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
from llmrl.llms.cache import compute_request_key
from llmrl.llms.call_log import CallLog, read_calls
from llmrl.llms.images import (
    IMAGE_FOLDER,
    count_image_tokens,
    encode_frame,
    estimate_image_tokens,
    get_image_size,
    to_content_parts,
    with_image_files,
    with_image_hashes,
)
from models import make_client, make_openai_model


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def pixels(url):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))


@given(st.integers(2, 60), st.integers(2, 60), st.integers(1, 200))
def test_image_size_limit(height, width, side):
    frame = noise(height, width)
    url = encode_frame(frame, side)
    decoded = pixels(url)
    assert get_image_size(url) == (decoded.shape[1], decoded.shape[0]) and max(decoded.shape[:2]) <= max(side, 2)
    longest = max(height, width)
    if longest <= side:
        factor = side // longest
        even = frame.repeat(factor, 0).repeat(factor, 1)
        assert np.array_equal(decoded, even[: decoded.shape[0], : decoded.shape[1]])
        assert all(a - b in (0, 1) for a, b in zip(even.shape, decoded.shape, strict=True))


def test_large_frame_is_downsampled_with_means():
    frame = np.zeros((400, 200, 3), dtype=np.uint8)
    frame[::2] = 200
    assert np.array_equal(pixels(encode_frame(frame, 200)), np.full((200, 100, 3), 100))


def test_invalid_frame_raises():
    with pytest.raises(ConfigError, match="height, width, 3"):
        encode_frame(np.zeros((4, 4, 3), dtype=np.float32), 100)


def test_token_estimate_is_maximum_rule():
    assert estimate_image_tokens(336, 336) == 258  # Google's least
    assert estimate_image_tokens(512, 512) == 350  # 512 * 512 / 750, Anthropic's
    assert estimate_image_tokens(1024, 200) == 85 + 2 * 170  # OpenAI's two tiles
    message = {"role": "user", "content": "", "images": [encode_frame(noise(8, 8), 336)] * 2}
    assert count_image_tokens(message) == 2 * 258


def test_images_follow_text_in_api_format():
    url = encode_frame(noise(4, 4), 4)
    part = {"type": "image_url", "image_url": {"url": url}}
    plain = {"role": "user", "content": "look"}
    assert to_content_parts(plain) == plain
    assert to_content_parts({**plain, "images": [url]}) == {
        "role": "user",
        "content": [{"type": "text", "text": "look"}, part],
    }
    parts = [{"type": "text", "text": "lo"}, {"type": "text", "text": "ok"}]
    assert to_content_parts({"role": "user", "content": parts, "images": [url, url]})["content"] == [*parts, part, part]


def test_cache_key_depends_on_pixels():
    """The key is independent of the encoding of the file; different pixels give a different key."""
    frame = noise(16, 16)
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG", compress_level=0)
    urls = [encode_frame(frame, 16), "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()]
    assert urls[0] != urls[1]
    keys = [compute_request_key({}, ChatRequest(({"role": "user", "content": "?", "images": [url]},))) for url in urls]
    changed = frame.copy()
    changed[3, 3, 0] ^= 1
    for images in ([encode_frame(changed, 16)], [urls[0]] * 2, [encode_frame(frame.reshape(8, 32, 3), 32)]):
        keys.append(compute_request_key({}, ChatRequest(({"role": "user", "content": "?", "images": images},))))
    assert keys[0] == keys[1] and len(set(keys)) == 4


def test_images_are_deduplicated_next_to_log(tmp_path):
    frames = [encode_frame(noise(6, 6, seed), 6) for seed in (0, 1, 0)]
    records = with_image_files([{"role": "user", "content": "?", "images": frames}], tmp_path)
    files = records[0]["images"]
    assert files[0] == files[2] != files[1] and sorted(p.name for p in (tmp_path / IMAGE_FOLDER).iterdir()) == sorted(
        {file.rpartition("/")[2] for file in files}
    )
    for file, url in zip(files, frames, strict=True):
        assert np.array_equal(np.asarray(Image.open(tmp_path / file)), pixels(url))
    assert with_image_hashes([{"role": "user", "content": "?"}]) == [{"role": "user", "content": "?"}]


def test_server_receives_images(tmp_path):
    frame, received = noise(12, 20), []

    def look(messages):
        [text, image] = messages[-1]["content"]
        received.append(pixels(image["image_url"]["url"]))
        return text["text"]

    with FakeOpenAIServer(reply=look) as server:
        provider = make_openai_model(server.url, "fake-model", None)
        client = make_client(provider, call_log=CallLog(tmp_path / "llm_calls.jsonl"), budget=Budget())
        request = ChatRequest(({"role": "user", "content": "What is it?", "images": [encode_frame(frame, 20)]},))
        [reply] = client.chat([request])
        client.close()
    assert reply.text == "What is it?" and np.array_equal(received[0], frame)
    [call] = read_calls(tmp_path / "llm_calls.jsonl")
    [file] = call["messages"][0]["images"]
    assert np.array_equal(np.asarray(Image.open(tmp_path / file)), frame) and "base64" not in json.dumps(call)
