"""Upscaling arrays: tiles give the whole image's result, every pixel kind survives, failures are loud."""

import logging
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from srnet.config import NetworkConfig
from srnet.device import select_device
from srnet.errors import CheckpointError, ConfigError, ImageError
from srnet.inference import Upscaler, fill_hidden
from srnet.network import SRNet


def random_network(scale=2, seed=0, **settings):
    """A small network in which every weight takes part, attention included."""
    torch.manual_seed(seed)
    shape = {
        "embed_dim": 12,
        "num_blocks": 2,
        "convs_per_block": 2,
        "attention_blocks": (1,),
        "region_size": 24,
        "top_k": 16,
    }
    network = SRNet(NetworkConfig(scale=scale, **shape | settings)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.2)
        network.upsampler.weight.normal_(0, 0.004)  # or values would leave the range of pictures
    return network


class Stub(SRNet):
    """Nearest-neighbour enlargement, with a hook on every window it sees."""

    def __init__(self, hook=lambda lr: None, scale=2):
        super().__init__(
            NetworkConfig(
                scale=scale, embed_dim=8, num_heads=1, num_blocks=1, attention_blocks=(0,)
            )
        )
        self.hook = hook

    def forward(self, lr):
        changed = self.hook(lr)
        sr = nn.functional.interpolate(lr, scale_factor=self.scale, mode="nearest")
        return sr if changed is None else changed(sr)


@pytest.fixture(scope="module")
def network():
    return random_network()


@pytest.mark.parametrize("tile", [24, 56, 104])
def test_tiled_equals_whole_exactly_at_the_receptive_field(network, photo, tile):
    image = photo("chelsea")[40:170, 60:245]
    whole = Upscaler(network, tile=0, precision="fp32")(image.astype(np.float32) / 255)
    tiled = Upscaler(network, tile=tile, overlap=network.receptive_field, precision="fp32")
    assert np.abs(tiled(image.astype(np.float32) / 255) - whole).max() == 0
    # the comparison can fail: without an overlap the seams show
    seams = Upscaler(network, tile=tile, overlap=0, precision="fp32")
    assert np.abs(seams(image.astype(np.float32) / 255) - whole).max() > 1e-3


def test_whole_image_is_what_the_network_gives(network, photo):
    image = photo("coffee")[100:137, 200:241]
    lr = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        expected = (network(lr)[0].clamp(0, 1) * 255).round().permute(1, 2, 0).numpy()
    result = Upscaler(network, precision="fp32")(image)  # auto is bfloat16 where that is native
    assert np.abs(result.astype(int) - expected).max() == 0


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 4),
    st.sampled_from([np.uint8, np.uint16, np.float32]),
    st.sampled_from([0, 1, 7, 30, 64]),
    st.sampled_from([2, 3]),
)
def test_every_size_kind_and_tile_gives_nearest_neighbours_of_a_stub(
    height, width, channels, dtype, tile, scale
):
    generator = np.random.default_rng(height * 41 + width)
    high = 1 if dtype == np.float32 else np.iinfo(dtype).max
    image = (generator.random((height, width, channels)) * high).astype(dtype)
    if channels in (2, 4):
        image[..., -1] = np.maximum(image[..., -1], high / 2)  # nothing hidden: colours must stay
    result = Upscaler(Stub(scale=scale), tile=tile, overlap=5)(image)
    assert result.dtype == dtype
    expected = image.repeat(scale, 0).repeat(scale, 1)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6 if dtype == np.float32 else 0)


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (3, 200)])
def test_small_and_thin_images(network, size):
    assert Upscaler(network, tile=64)(np.full((*size, 3), 90, np.uint8)).shape == (
        size[0] * 2,
        size[1] * 2,
        3,
    )


def test_grey_stays_grey(network, photo):
    grey = photo("chelsea")[:40, :50, 1]
    upscaler = Upscaler(network)
    as_grey = upscaler(grey)
    assert as_grey.shape == (80, 100)
    as_rgb = upscaler(np.repeat(grey[..., None], 3, axis=2))
    assert (as_rgb == as_rgb[..., :1]).all()
    assert (as_rgb[..., 0] == as_grey).all()


def test_float_values_beyond_white_are_kept():
    image = np.linspace(-0.5, 4, 48, dtype=np.float32).reshape(4, 4, 3)
    np.testing.assert_allclose(Upscaler(Stub())(image), image.repeat(2, 0).repeat(2, 1), atol=1e-5)


def test_float_values_beyond_white_reach_the_network_between_0_and_1():
    seen = []

    def hook(lr):
        seen.append((float(lr.min()), float(lr.max())))
        return lambda sr: sr.clamp(0, 1)  # as networks of other projects do

    image = np.linspace(-0.5, 4, 48, dtype=np.float32).reshape(4, 4, 3)
    result = Upscaler(Stub(hook))(image)
    assert seen == [(0, 1)]
    np.testing.assert_allclose(result, image.repeat(2, 0).repeat(2, 1), atol=1e-5)


@pytest.mark.parametrize(("low", "span"), [(0, 1e-5), (270, 40), (-1e4, 1e3), (0, 1e6)])
def test_float_values_of_any_range_are_upscaled_alike(network, photo, low, span):
    image = photo("coffee")[100:130, 200:240].astype(np.float32) / 255
    image[0, :2] = [[0, 0, 0], [1, 1, 1]]  # the whole range
    expected = Upscaler(network)(image)
    result = Upscaler(network)((image.astype(np.float64) * span + low).astype(np.float32))
    np.testing.assert_allclose((result - low) / span, expected, atol=2e-4)


def test_float_alpha_has_a_range_of_its_own(network, photo):
    image = photo("coffee")[100:130, 200:240].astype(np.float32) / 255
    image[0, :2] = [[0, 0, 0], [1, 1, 1]]
    alpha = np.linspace(0.1, 1, 40, dtype=np.float32)[None, :, None].repeat(30, 0)
    expected = Upscaler(network)(np.concatenate([image, alpha], 2))
    result = Upscaler(network)(np.concatenate([image * np.float32(1e-5), alpha], 2))
    np.testing.assert_allclose(result[..., 3], expected[..., 3], atol=1e-6)
    np.testing.assert_allclose(result[..., :3] * 1e5, expected[..., :3], atol=1e-4)


@pytest.mark.parametrize("missing", [-3.4e38, 3.4e38, -1e7])
def test_values_for_missing_data_are_refused_rather_than_spread(network, missing):
    heights = np.linspace(500, 600, 30 * 40, dtype=np.float32).reshape(30, 40)
    heights[:3, :3] = missing
    with pytest.raises(ImageError, match=r"reach from .* to .*missing data"):
        Upscaler(network)(heights)


def test_sixteen_bits_are_more_than_eight(network):
    ramp = np.linspace(20000, 24000, 60 * 8).astype(np.uint16).reshape(8, 60)
    assert len(np.unique(Upscaler(network)(ramp))) > 256


def test_hidden_colour_does_not_reach_visible_pixels(network):
    def picture(hidden):
        image = np.zeros((24, 24, 4), np.uint8)
        image[...] = (200, 40, 40, 255)
        image[:, 12:] = (*hidden, 0)
        return Upscaler(network)(image)

    assert (picture((0, 255, 0)) == picture((0, 0, 0))).all()


def test_fill_hidden_takes_the_nearest_visible_colour_and_keeps_the_rest():
    colour = np.zeros((5, 6, 3), np.uint8)
    colour[:, :2] = 77
    alpha = np.zeros((5, 6, 1), np.uint8)
    alpha[:, :2] = 1
    assert (fill_hidden(colour, alpha) == 77).all()
    assert fill_hidden(colour, np.ones_like(alpha)) is colour


def test_opaque_alpha_stays_opaque(network, photo):
    image = np.dstack([photo("coffee")[:20, :30], np.full((20, 30), 255, np.uint8)])
    assert (Upscaler(network)(image)[..., 3] == 255).all()


def test_pillow_and_tensors_come_back_as_what_they_were(network, photo):
    upscaler = Upscaler(network)
    array = photo("coffee")[:20, :30]
    expected = upscaler(array)
    image = upscaler(Image.fromarray(array))
    assert (image.mode, image.size) == ("RGB", (60, 40))
    assert (np.asarray(image) == expected).all()
    assert upscaler(Image.new("1", (9, 5))).mode == "L"
    assert upscaler(Image.new("LA", (9, 5))).mode == "LA"
    palette = Image.new("P", (9, 5))
    palette.info["transparency"] = 0
    assert upscaler(palette).mode == "RGBA"
    lr = torch.from_numpy(array.copy()).permute(2, 0, 1).double() / 255
    sr = upscaler(lr)
    assert (sr.dtype, sr.shape) == (torch.float64, (3, 40, 60))
    assert upscaler(lr[None].repeat(2, 1, 1, 1)).shape == (2, 3, 40, 60)
    rounded = (sr.clamp(0, 1) * 255).round().permute(1, 2, 0).numpy()
    assert np.abs(rounded - expected).max() <= 1


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4, 5), np.uint8),
        np.zeros((4, 4), np.int64),
        np.zeros((0, 4), np.uint8),
        "a.png",
        torch.zeros(1, 4, 4),
    ],
)
def test_what_cannot_be_upscaled_is_named(image):
    with pytest.raises(ImageError, match="cannot upscale"):
        Upscaler(Stub())(image)


def test_only_tiles_reach_the_network_and_progress_adds_up():
    seen, steps = [], []
    upscaler = Upscaler(Stub(lambda lr: seen.append(lr.shape)), tile=32, overlap=8)
    upscaler(np.zeros((100, 90, 3), np.uint8), lambda done, total: steps.append((done, total)))
    assert max(max(shape[2:]) for shape in seen) <= 32 + 2 * 8
    assert steps[-1] == (9000, 9000)
    assert steps == sorted(steps)


def test_out_of_memory_halves_the_tile(caplog):
    def hook(lr):
        if max(lr.shape[2:]) > 64:
            raise torch.OutOfMemoryError("CUDA out of memory")

    image = np.random.default_rng(0).integers(0, 255, (200, 150, 3), dtype=np.uint8)
    with caplog.at_level(logging.WARNING, "srnet"):
        result = Upscaler(Stub(hook), tile=0, overlap=8)(image)
    assert (result == image.repeat(2, 0).repeat(2, 1)).all()
    assert "200" in caplog.text


def test_out_of_memory_at_the_floor_names_the_sizes_tried():
    def hook(lr):
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        )

    with pytest.raises(ImageError, match=r"out of memory; tiles of 100, 48, 24 pixels were tried"):
        Upscaler(Stub(hook), tile=0)(np.zeros((100, 90, 3), np.uint8))


def test_other_runtime_errors_are_not_taken_for_memory():
    def hook(lr):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        Upscaler(Stub(hook))(np.zeros((4, 4, 3), np.uint8))


def test_a_tile_that_is_not_finite_is_computed_again_in_float32(caplog):
    def hook(lr):
        if torch.is_autocast_enabled("cpu"):
            return lambda sr: sr * float("nan")
        return None

    image = np.full((4, 4, 3), 9, np.uint8)
    with caplog.at_level(logging.WARNING, "srnet"):
        assert (Upscaler(Stub(hook), precision="bf16")(image) == 9).all()
    assert "float32" in caplog.text


def test_a_tile_that_stays_not_finite_fails_its_image():
    with pytest.raises(ImageError, match="not finite"):
        Upscaler(Stub(lambda lr: lambda sr: sr / 0))(np.zeros((4, 4, 3), np.uint8))


@pytest.mark.parametrize("values", [(-4.5, 0.5), (0.5, 5.5)])
def test_a_picture_on_which_the_network_fails_is_an_error_with_both_numbers(values, caplog):
    low, high = values

    def hook(lr):
        return lambda sr: sr.clamp(0, 0) + torch.linspace(low, high, sr.shape[-1])

    upscaler = Upscaler(Stub(hook), precision="bf16")
    with (
        caplog.at_level(logging.WARNING, "srnet"),
        pytest.raises(ImageError, match=f"from {low:g} to {high:g}, .* another model"),
    ):
        upscaler(np.zeros((4, 4, 3), np.uint8))
    assert "computed again in float32" in caplog.text


def test_sharp_edges_may_leave_the_range_a_little():
    hook = lambda lr: lambda sr: sr * 2.4 - 0.7  # noqa: E731
    result = Upscaler(Stub(hook))(np.array([[[0], [255]]], np.uint8).repeat(3, 2))
    assert result[0, ::2, 0].tolist() == [0, 255]


def test_no_float64_reaches_the_device(network):
    dtypes = set()
    Upscaler(Stub(lambda lr: dtypes.add(lr.dtype)))(torch.zeros(3, 4, 4, dtype=torch.float64))
    assert dtypes == {torch.float32}


def test_threads_share_one_upscaler(network, photo):
    upscaler = Upscaler(network, tile=16, overlap=8)
    images = [photo("coffee")[i : i + 30, :40] for i in range(4)]
    expected = [upscaler(image) for image in images]
    results = [None] * 4

    def work(index):
        results[index] = upscaler(images[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((a == b).all() for a, b in zip(expected, results, strict=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "tpu9"}, "device 'tpu9'"),
        ({"device": "cuda:99"}, "this machine has"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"tile": -1}, "tile is -1"),
        ({"overlap": -1}, "overlap is -1"),
    ],
)
def test_wrong_settings_are_one_line_with_the_way_out(options, words):
    with pytest.raises(ConfigError, match=words):
        Upscaler(Stub(), **options)


def test_unknown_model_is_named():
    with pytest.raises(CheckpointError, match="no-such-model"):
        Upscaler("no-such-model")


def test_auto_device_exists():
    assert torch.zeros(1, device=select_device("auto")).item() == 0


def test_tile_is_bounded_by_free_memory(monkeypatch):
    network = random_network()
    assert Upscaler(network, device="cpu").tile == 256
    monkeypatch.setattr("srnet.inference.free_memory", lambda device: 20_000_000)
    assert 32 <= Upscaler(network, device="cpu").tile < 128


@pytest.mark.parametrize(("native", "used"), [(False, "fp32"), (True, "bf16")])
def test_auto_precision_on_a_cpu_is_what_it_computes_natively_and_never_half(
    network, monkeypatch, native, used
):
    monkeypatch.setattr("srnet.device.has_native_bf16", lambda device_type: native)
    assert Upscaler(network, device="cpu").precision == used
    dtypes = set()

    def hook(lr):
        dtypes.add(
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else lr.dtype
        )

    Upscaler(Stub(hook), device="cpu")(np.zeros((4, 4, 3), np.uint8))
    assert dtypes == {torch.bfloat16 if native else torch.float32}


def test_nothing_is_compiled_unasked(network, monkeypatch):
    monkeypatch.setattr(torch, "compile", None)
    Upscaler(network)(np.zeros((4, 4, 3), np.uint8))


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 45), st.integers(1, 45), st.integers(1, 4), st.integers(1, 40), st.booleans())
def test_tiles_of_a_real_network_equal_the_whole_at_any_size(height, width, channels, tile, deep):
    network = random_network(num_blocks=1, convs_per_block=1, attention_blocks=(0,), region_size=8)
    kind = np.uint16 if deep else np.uint8
    high = np.iinfo(kind).max
    image = np.random.default_rng(height).integers(0, high, (height, width, channels), dtype=kind)
    whole = Upscaler(network, tile=0, precision="fp32")(image)
    tiled = Upscaler(network, tile=tile, overlap=network.receptive_field, precision="fp32")(image)
    assert whole.shape == (2 * height, 2 * width, channels)
    assert (tiled == whole).all()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_a_flat_image_stays_flat_away_from_the_border(channels, dtype):
    network = random_network(num_blocks=1, convs_per_block=1, attention_blocks=(0,), region_size=8)
    value = 0.3 if dtype == np.float32 else np.iinfo(dtype).max // 3
    result = Upscaler(network, precision="fp32")(np.full((96, 96, channels), value, dtype))
    inner = 2 * network.receptive_field
    assert 2 * inner < len(result)
    # a random network gives each of the four sub-pixels a value of its own
    middle = result[inner:-inner:2, inner:-inner:2].reshape(-1, channels).astype(np.float64)
    assert np.ptp(middle, axis=0).max() <= (1e-4 if dtype == np.float32 else 1)
