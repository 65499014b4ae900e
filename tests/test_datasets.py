import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from srnet.atomic import is_partial
from srnet.datasets import (
    PackedPairs,
    find_pairs,
    read_pair,
    sample_patches,
    scan,
    with_shrunk,
)
from srnet.errors import DataError
from srnet.resize import downscale, imresize

BUILD_AND_WAIT = """
import sys, time
from pathlib import Path
from srnet.datasets import PackedPairs, find_pairs
def wait(done, total):
    print(done, total, flush=True)
    time.sleep(60)
PackedPairs.build(find_pairs(Path(sys.argv[1]), 4), 4, Path(sys.argv[2]), progress=wait)
"""
BUILD_WITH_SMALL_FILES = """
import resource, sys
from pathlib import Path
from srnet.datasets import PackedPairs, find_pairs
from srnet.errors import DataError
pairs = find_pairs(Path(sys.argv[1]), 4)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
try:
    PackedPairs.build(pairs, 4, Path(sys.argv[2]))
except DataError as error:
    print(error)
"""


@pytest.fixture
def folder(tmp_path, photo):
    """Three photographs; two have sides that are no multiple of 4."""
    path = tmp_path / "photos"
    path.mkdir()
    Image.fromarray(photo("astronaut")[100:230, 150:300]).save(path / "a.png")
    Image.fromarray(photo("coffee")[:96, :64]).save(path / "b.png")
    Image.fromarray(photo("chelsea")[50:121, 100:243]).save(path / "c.jpg", quality=95)
    return path


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def build(folder, cache, scale=4, **options):
    return PackedPairs.build(find_pairs(folder, scale), scale, cache, **options)


def pack_arrays(tmp_path, pairs, scale):
    """Packs {name: (lr, hr)} arrays by way of files."""
    for name, (lr, hr) in pairs.items():
        for side, pixels in (("HR", hr), (f"LR_bicubic/X{scale}", lr)):
            (tmp_path / side).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / side / f"{name}.png")
    return build(tmp_path, tmp_path / "cache", scale)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def repeated(lr, scale):
    return lr.repeat(scale, 0).repeat(scale, 1)


def decoded(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_packed_pixels_are_those_of_the_files(folder, cache, scale):
    packed = build(folder, cache, scale)
    assert packed.scale == scale
    assert packed.names == ["a", "b", "c"]
    assert len(packed) == 3
    for i, name in enumerate(("a.png", "b.png", "c.jpg")):
        whole = decoded(folder / name)
        height, width = (side // scale for side in whole.shape[:2])
        wanted = whole[: height * scale, : width * scale]
        lr, hr = packed.image(i)
        np.testing.assert_array_equal(hr, wanted)
        assert lr.shape == (height, width, 3)
        made = downscale(torch.tensor(wanted).permute(2, 0, 1)[None], scale)[0].permute(1, 2, 0)
        np.testing.assert_array_equal(lr, made.numpy())


def test_shrunk_copies_are_images_of_their_own(folder, cache):
    """150x130, 64x96 and 143x71: the copies at half the size are 75x65, 32x48 and 72x36 (halves to even)."""
    pairs = with_shrunk(find_pairs(folder, 4), (1, 0.5), 4, 9)
    packed = PackedPairs.build(pairs, 4, cache)
    assert packed.names == ["a", "b", "c", "a@0.5", "c@0.5"]  # the copy of b has an LR of 8x12
    for i, file, size in ((3, "a.png", (65, 75)), (4, "c.jpg", (36, 72))):
        whole = torch.tensor(decoded(folder / file)).permute(2, 0, 1)[None]
        shrunk = imresize(whole, size)[..., : size[0] // 4 * 4, : size[1] // 4 * 4]
        lr, hr = packed.image(i)
        np.testing.assert_array_equal(hr, shrunk[0].permute(1, 2, 0))
        np.testing.assert_array_equal(lr, downscale(shrunk, 4)[0].permute(1, 2, 0))
    assert not scan(pairs, 4, 9)
    assert [p.name for p in scan(pairs, 4, 10)] == ["c@0.5"]
    assert len(build(folder, cache)) == 3  # another packed file
    assert len(list(cache.glob("*.pack"))) == 2


def test_shrunk_copies_leave_a_published_lr_aside(tmp_path):
    pack_arrays(tmp_path, {"a": (noise(10, 8), repeated(noise(10, 8), 4))}, 4)
    pairs = with_shrunk(find_pairs(tmp_path, 4), (0.75, 1), 4, 1)
    assert [(p.name, p.lr is None) for p in pairs] == [("a@0.75", True), ("a", False)]
    lr, hr = read_pair(pairs[0], 4)
    assert (lr.shape, hr.shape) == ((7, 6, 3), (28, 24, 3))


def test_published_lr_is_used_and_hr_is_cut(tmp_path):
    packed = pack_arrays(tmp_path, {"a": (noise(10, 8), noise(43, 35, 1))}, 4)
    lr, hr = packed.image(0)
    np.testing.assert_array_equal(lr, noise(10, 8))
    np.testing.assert_array_equal(hr, noise(43, 35, 1)[:40, :32])


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "webp"])
def test_read_pair_decodes_every_lossless_format_without_a_warning(tmp_path, suffix):
    Image.fromarray(noise(16, 20)).save(tmp_path / f"a.{suffix}", lossless=True)
    lr, hr = read_pair(find_pairs(tmp_path, 4)[0], 4)
    np.testing.assert_array_equal(hr, noise(16, 20))
    assert lr.shape == (4, 5, 3)


def test_read_pair_refuses_what_does_not_fit(tmp_path):
    for side, size in (("HR", 64), ("LR/X4", 17)):
        (tmp_path / side).mkdir(parents=True)
        Image.fromarray(noise(size, size)).save(tmp_path / side / "a.png")
    pair = find_pairs(tmp_path, 4)[0]
    with pytest.raises(
        DataError, match=r"X4/a\.png: LR is 17x17, but HR 64x64 at scale 4 needs LR 16x16"
    ):
        read_pair(pair, 4)
    Image.fromarray(noise(3, 64)).save(tmp_path / "HR/a.png")
    with pytest.raises(DataError, match=r"HR/a\.png is 64x3, smaller than the scale 4"):
        read_pair(pair, 4)
    (tmp_path / "HR/a.png").write_text("text")
    with pytest.raises(DataError, match=r"HR/a\.png: not an image"):
        read_pair(pair, 4)


def test_valid_cache_is_reused(folder, cache):
    steps = []
    first = build(folder, cache, progress=lambda *step: steps.append(step))
    assert steps == [(1, 3), (2, 3), (3, 3)]
    status = first.path.stat()
    again = build(folder, cache, progress=lambda *step: pytest.fail("built again"))
    assert again.path == first.path
    assert (status.st_mtime_ns, status.st_ino) == (
        first.path.stat().st_mtime_ns,
        first.path.stat().st_ino,
    )
    assert build(folder, cache, 2).path != first.path


@pytest.mark.parametrize("side", ["HR", "LR_bicubic/X4"])
def test_changed_file_is_packed_again_in_the_same_place(tmp_path, side):
    packed = pack_arrays(tmp_path, {"a": (noise(8, 8), noise(32, 32))}, 4)
    path = tmp_path / side / "a.png"
    size = 32 if side == "HR" else 8
    before = path.stat()
    path.write_bytes(path.read_bytes())  # the same pixels, another time of change
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert build(tmp_path, tmp_path / "cache").fingerprint != packed.fingerprint
    Image.fromarray(noise(size, size, 9)).save(path)
    again = build(tmp_path, tmp_path / "cache")
    np.testing.assert_array_equal(again.image(0)[side == "HR"], noise(size, size, 9))
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [packed.path.name]
    # Whoever still maps the old file keeps its pixels.
    np.testing.assert_array_equal(packed.image(0)[1], noise(32, 32))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"x" * 10,
        lambda data: b"x" * len(data),
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: data[:-60] + bytes([data[-60] ^ 1]) + data[-59:],
        lambda data: data[:-8] + bytes([data[-8] ^ 1]) + data[-7:],
        lambda data: data[:-16] + b"\xff" * 8 + data[-8:],
        lambda data: data + b"\0",
    ],
)
def test_damaged_cache_is_refused_and_made_again(folder, cache, damage):
    packed = build(folder, cache)
    whole = packed.path.read_bytes()
    hr = packed.image(2)[1].copy()
    path = packed.path
    del packed
    path.unlink()
    path.write_bytes(damage(whole))
    with pytest.raises(DataError, match="packed images"):
        PackedPairs(path)
    np.testing.assert_array_equal(build(folder, cache).image(2)[1], hr)
    assert path.read_bytes() == whole


def test_killed_builder_leaves_nothing_under_the_final_name(folder, cache):
    with subprocess.Popen(
        [sys.executable, "-c", BUILD_AND_WAIT, folder, cache], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "1 3\n"
        process.send_signal(signal.SIGKILL)
    (leftover,) = cache.iterdir()
    assert is_partial(leftover)
    path = build(folder, cache).path
    assert list(cache.iterdir()) == [path]


def _build_at_once(folder, cache, barrier, results):
    barrier.wait()
    results.put(build(folder, cache).image(0)[1].sum())


def test_two_processes_build_at_once(folder, cache):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=_build_at_once, args=(folder, cache, barrier, results))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    sums = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sums == [decoded(folder / "a.png")[:128, :148].sum()] * 2
    assert [p.suffix for p in cache.iterdir()] == [".pack"]


def test_too_little_space_is_told_before_writing(folder, cache, monkeypatch):
    usage = type("Usage", (), {"free": 2**16})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(DataError, match=r"packing 3 images needs 0 MiB but .* has 0 MiB free"):
        build(folder, cache)
    assert list(cache.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_failed_write_is_one_line_and_leaves_nothing(folder, cache):
    done = subprocess.run(
        [sys.executable, "-c", BUILD_WITH_SMALL_FILES, folder, cache],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"cannot write the packed images to {cache}")
    assert "File too large" in done.stdout
    assert done.stdout.count("\n") == 1
    assert list(cache.iterdir()) == []


def test_cache_folder_that_is_a_file(folder, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(DataError, match="cannot write the packed images to"):
        build(folder, tmp_path / "cache")


def test_images_that_cannot_be_used_stop_the_build(folder, cache):
    (folder / "text.png").write_text("hello")
    Image.fromarray(noise(3, 50)).save(folder / "tiny.png")
    with pytest.raises(DataError, match=r"2 images cannot be used: .*text\.png.*; .*tiny\.png"):
        build(folder, cache)
    assert not cache.exists()
    with pytest.raises(DataError, match="no images to pack"):
        PackedPairs.build([], 4, cache)


def test_truncated_image_stops_the_build_and_leaves_nothing(folder, cache):
    path = folder / "b.png"
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(DataError, match=r"b\.png: .*; replace or remove it"):
        build(folder, cache)
    assert list(cache.iterdir()) == []


def test_file_that_vanished(folder, cache):
    pairs = find_pairs(folder, 4)
    (folder / "b.png").unlink()
    with pytest.raises(DataError, match=r"b\.png cannot be read: No such file"):
        PackedPairs.build(pairs, 4, cache)


def test_pickle_carries_the_path_only(folder, cache):
    packed = build(folder, cache)
    data = pickle.dumps(packed)
    assert len(data) < 500
    copy = pickle.loads(data)
    for mine, its in zip(packed.image(1), copy.image(1), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_images_are_read_only_views(folder, cache):
    for pixels in build(folder, cache).image(0):
        assert not pixels.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            pixels[0, 0, 0] = 1


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_crops_are_aligned_under_every_symmetry(tmp_path, scale):
    lrs = {f"i{i}": noise(9 + 5 * i, 20 - 3 * i, i) for i in range(4)}
    packed = pack_arrays(tmp_path, {n: (lr, repeated(lr, scale)) for n, lr in lrs.items()}, scale)
    lr, hr = sample_patches(packed, 400, 7, torch.Generator().manual_seed(1))
    assert lr.shape == (400, 3, 7, 7)
    assert hr.shape == (400, 3, 7 * scale, 7 * scale)
    assert lr.dtype == hr.dtype == torch.uint8
    assert lr.is_contiguous()
    assert hr.is_contiguous()
    assert torch.equal(hr, lr.repeat_interleave(scale, 2).repeat_interleave(scale, 3))


def test_each_patch_is_one_of_the_eight_symmetries_of_a_crop_all_equally_often(tmp_path):
    lr = noise(5, 5)
    packed = pack_arrays(tmp_path, {"a": (lr, repeated(lr, 2))}, 2)
    forms = [np.rot90(form, k) for form in (lr, lr.swapaxes(0, 1)) for k in range(4)]
    keys = {form.transpose(2, 0, 1).tobytes(): i for i, form in enumerate(forms)}
    assert len(keys) == 8
    patches, _ = sample_patches(packed, 4000, 5, torch.Generator().manual_seed(2))
    counts = np.bincount([keys[patch.numpy().tobytes()] for patch in patches], minlength=8)
    # 500 each on average; five standard deviations are 105.
    assert np.abs(counts - 500).max() < 105


def test_every_place_is_reached_equally_often_also_the_corners(tmp_path):
    lr = np.zeros((7, 9, 3), dtype=np.uint8)
    lr[..., 0], lr[..., 1] = np.mgrid[:7, :9]
    packed = pack_arrays(tmp_path, {"a": (lr, repeated(lr, 2))}, 2)
    patches, _ = sample_patches(packed, 8000, 4, torch.Generator().manual_seed(3))
    corners = patches[:, :2].flatten(2).amin(2).tolist()  # smallest row and column in each patch
    counts = np.zeros((4, 6))
    np.add.at(counts, tuple(np.array(corners).T), 1)
    # 333 each on average; five standard deviations are 90.
    assert np.abs(counts - 8000 / 24).max() < 90


def test_images_are_drawn_by_area(tmp_path):
    flat = {name: np.full((h, w, 3), value, np.uint8) for name, h, w, value in
            (("a", 4, 6, 10), ("b", 12, 8, 20), ("c", 4, 6, 30))}  # fmt: skip
    packed = pack_arrays(tmp_path, {n: (lr, repeated(lr, 2)) for n, lr in flat.items()}, 2)
    patches, _ = sample_patches(packed, 6000, 4, torch.Generator().manual_seed(4))
    counts = np.bincount(patches[:, 0, 0, 0].numpy(), minlength=31)[[10, 20, 30]]
    # Areas 1 : 4 : 1; five standard deviations are 183 for the large and 145 for a small one.
    assert np.abs(counts - [1000, 4000, 1000]).max() < 145


def test_the_generator_alone_decides(folder, cache):
    packed = build(folder, cache)

    def draw(generator):
        return sample_patches(packed, 6, 8, generator)

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(5)
    first, state, second = draw(generator), generator.get_state(), draw(generator)
    torch.manual_seed(1)
    assert not torch.equal(first[1], second[1])
    for mine, its in zip(first, draw(torch.Generator().manual_seed(5)), strict=True):
        assert torch.equal(mine, its)
    restored = torch.Generator()
    restored.set_state(state)
    for mine, its in zip(second, draw(restored), strict=True):
        assert torch.equal(mine, its)
    assert not torch.equal(first[1], draw(torch.Generator().manual_seed(6))[1])


def test_patch_larger_than_an_image_names_it(folder, cache):
    packed = build(folder, cache)
    sample_patches(packed, 1, 16, torch.Generator())
    with pytest.raises(
        DataError, match="LR of b is 16x24, smaller than patch_size 17; use patch_size 16"
    ):
        sample_patches(packed, 1, 17, torch.Generator())


def test_image_kit(shared_data, cache):
    packed = build(shared_data / "benchmarks/Set5", cache)
    assert packed.names == ["baby", "bird", "butterfly", "head", "woman"]
    made = PackedPairs.build(
        [type(p)(p.name, p.hr, None) for p in find_pairs(shared_data / "benchmarks/Set5", 4)],
        4,
        cache,
    )
    for i in range(5):
        for published, own in zip(packed.image(i), made.image(i), strict=True):
            np.testing.assert_array_equal(published, own)


def test_informative_places_are_those_that_bicubic_restores_worst(tmp_path):
    flat = np.full((20, 40, 3), 90, dtype=np.uint8)
    hr = np.concatenate([repeated(flat, 2), noise(40, 80, 1)], axis=1)
    lr = np.concatenate([flat, flat], axis=1)  # the right half hides all its detail
    packed = pack_arrays(tmp_path, {"a": (lr, hr)}, 2)

    def share(informative):
        generator = torch.Generator().manual_seed(5)
        _, patches = sample_patches(packed, 400, 4, generator, informative=informative)
        return (patches.float().std((1, 2, 3)) > 1).float().mean().item()

    # a patch avoids the detail when all its places do, each with probability 37/77
    for informative in (1, 3):
        assert share(informative) == pytest.approx(1 - (37 / 77) ** informative, abs=0.1)
    arrays = {"b": (noise(9, 20), repeated(noise(9, 20), 2))}
    packed = pack_arrays(tmp_path / "other", arrays, 2)
    generator = torch.Generator().manual_seed(6)
    aligned, enlarged = sample_patches(packed, 50, 5, generator, informative=3)
    assert torch.equal(enlarged, aligned.repeat_interleave(2, 2).repeat_interleave(2, 3))


def test_processes_share_informative_batches_as_one_process_would_see_them(tmp_path):
    from srnet.training.datamodule import PatchBatches

    packed = pack_arrays(tmp_path, {"a": (noise(20, 30), noise(40, 60, 1))}, 2)
    whole = PatchBatches(packed, 4, 8, seed=3, informative=2).batch(5)
    parts = [PatchBatches(packed, 2, 8, seed=3, rank=r, informative=2).batch(5) for r in (0, 1)]
    for i in (0, 1):
        assert torch.equal(whole[i], torch.cat([part[i] for part in parts]))
