"""The burst script on a CPU: what it packs, what it samples, how it goes on."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import train_burst
from PIL import Image

from srnet.checkpoint import load_checkpoint
from srnet.datasets import Pair, read_pair, with_shrunk
from srnet.errors import DataError
from srnet.resize import downscale


@pytest.fixture
def place(tmp_path, photo, tiny_run, capsys):
    """A folder with a configuration and a packed file of two photographs."""
    (tmp_path / "images").mkdir()
    for name in ("chelsea", "coffee"):
        pixels = np.ascontiguousarray(photo(name)[:121, :90])
        Image.fromarray(pixels).save(tmp_path / "images" / f"{name}.png")
    tiny_run(tmp_path / "run.yaml", data={"batch_size": 4})
    packed = tmp_path / "burst.zip"
    assert train_burst.main(["pack", str(tmp_path / "images"), "-o", str(packed)]) == 0
    assert "2 of 2 images" in capsys.readouterr().out
    return tmp_path


def places(image, patch):
    """(turn, y, x) of every place of an image (3, H, W) that looks like the patch turned back."""
    side = patch.shape[-1]
    windows = image.unfold(1, side, 1).unfold(2, side, 1)  # (3, H - p + 1, W - p + 1, p, p)
    found = set()
    for turn in range(8):
        back = patch.flip(2) if turn & 2 else patch
        back = back.flip(1) if turn & 1 else back
        back = back.transpose(1, 2) if turn & 4 else back
        hits = (windows == back[:, None, None]).all(0).all(-1).all(-1).nonzero().tolist()
        found |= {(turn, y, x) for y, x in hits}
    return found


def test_patches_are_aligned_cuts_of_the_images(tmp_path, photo):
    pixels = np.ascontiguousarray(photo("chelsea")[60:92, 80:120])
    (tmp_path / "images").mkdir()
    Image.fromarray(pixels).save(tmp_path / "images" / "a.png")
    train_burst.pack([tmp_path / "images"], tmp_path / "a.zip", 1)
    images = train_burst.Images.read(tmp_path / "a.zip", 2, 6, torch.device("cpu"))
    lr, hr = images.sample(24, 6, torch.Generator().manual_seed(0))
    assert (lr.shape, hr.shape) == ((24, 3, 6, 6), (24, 3, 12, 12))
    whole = torch.tensor(pixels).permute(2, 0, 1)
    small = downscale(whole[None], 2)[0]
    turns = set()
    for one_lr, one_hr in zip(lr.mul(255).round().byte(), hr.mul(255).round().byte(), strict=True):
        lr_places, hr_places = places(small, one_lr), places(whole, one_hr)
        matching = {(turn, 2 * y, 2 * x) for turn, y, x in lr_places} & hr_places
        assert matching
        turns |= {turn for turn, _, _ in matching}
    assert len(turns) == 8


def test_images_are_read_at_every_size_as_other_runs_read_them(place):
    images = train_burst.Images.read(
        place / "burst.zip", 4, 12, torch.device("cpu"), (1, 0.75, 0.5)
    )
    paths = sorted((place / "images").iterdir())
    pairs = with_shrunk([Pair(path.stem, path, None) for path in paths], (1, 0.75, 0.5), 4, 12)
    assert [pair.hr_scale for pair in pairs] == [1, 1, 0.75, 0.75]  # half of 90 is too small
    expected = {tuple(lr.reshape(-1).tolist()) for lr, _ in (read_pair(pair, 4) for pair in pairs)}
    ends = images.sizes.prod(1).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    ours = [images.lr[first:last].reshape(-1) for first, last in zip(starts, ends, strict=True)]
    assert {tuple(lr.tolist()) for lr in ours} == expected
    assert len(images.hr) == 16 * len(images.lr)


def run(place, folder, *words, capsys):
    command = ["train", place / "run.yaml", place / "burst.zip", place / folder]
    code = train_burst.main([*map(str, command), *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_stopped_burst_goes_on_to_the_same_weights(place, capsys):
    budget = ("--minutes", "5", "--steps")
    assert run(place, "whole", *budget, "6", capsys=capsys)[0] == 0
    assert run(place, "parts", *budget, "2", capsys=capsys)[0] == 0
    code, out, err = run(place, "parts", *budget, "6", capsys=capsys)
    assert (code, json.loads(out)) == (0, {"step": 6, "patches": 24})
    assert "at step 2" in err
    whole, parts = (load_checkpoint(place / f / "last.safetensors") for f in ("whole", "parts"))
    for a, b in zip(
        whole.network.state_dict().values(), parts.network.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b)
    states = [torch.load(place / f / "state.pt", weights_only=True) for f in ("whole", "parts")]
    assert all(map(torch.equal, *(s["network"].values() for s in states)))
    # the published weights are the average, not the last ones
    last = states[0]["network"]["tail.weight"]
    assert not torch.equal(whole.network.state_dict()["tail.weight"], last)


def test_gradients_are_clipped_where_asked(place, capsys):
    asked = {
        "start": ("--steps", "0"),
        "free": ("--steps", "2"),
        "clipped": ("--steps", "2", "--set", "optim.gradient_clip=1e-12"),
    }
    weights = {}
    for folder, words in asked.items():
        words = ("--minutes", "5", *words, "--set", "optim.optimizer=adamw")
        assert run(place, folder, *words, capsys=capsys)[0] == 0
        state = torch.load(place / folder / "state.pt", weights_only=True)
        weights[folder] = state["network"]["tail.weight"]
    free, clipped = ((weights[name] - weights["start"]).abs().max() for name in ("free", "clipped"))
    assert clipped < free / 100  # AdamW's eps is far above such gradients


def test_time_is_kept_and_the_state_is_that_before_the_decay(place, capsys, monkeypatch):
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(seconds))  # one second a look
    monkeypatch.setattr(train_burst, "time", clock)
    words = ("--minutes", "0.5", "--decay", "0.5", "--batch", "2")
    code, out, _ = run(place, "timed", *words, capsys=capsys)
    done = json.loads(out)
    state = torch.load(place / "timed" / "state.pt", weights_only=True)
    assert code == 0
    assert 5 < state["step"] < done["step"] - 5
    assert next(seconds) < 40
    assert done["patches"] == 2 * done["step"]
    assert state["optimizer"]["param_groups"][0]["lr"] == pytest.approx(2.5e-3)


def test_the_limit_of_the_packed_file_is_kept(place):
    sizes = [path.stat().st_size for path in (place / "images").iterdir()]
    limit = (max(sizes) + 1000) / 2**20
    taken, found = train_burst.pack([place / "images"], place / "one.zip", limit)
    assert (taken, found) == (1, 2)
    assert (place / "one.zip").stat().st_size <= limit * 2**20


def test_what_cannot_be_used_is_refused(place, capsys):
    (place / "bad.zip").write_bytes(b"no zip file")
    with pytest.raises(DataError, match="not a packed file"):
        train_burst.Images.read(place / "bad.zip", 2, 8, torch.device("cpu"))
    words = ("--minutes", "1", "--steps", "1")
    assert run(place, "p", *words, "--set", "data.degradation={}", capsys=capsys)[0] == 2
    assert run(place, "q", *words, capsys=capsys)[0] == 0
    code, _, err = run(place, "q", *words, "--set", "network.embed_dim=16", capsys=capsys)
    assert code == 2
    assert "another network" in err
