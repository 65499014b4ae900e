"""Results brought to the depth and channels of a format."""

import numpy as np
import pytest

from srnet.images.fit import fit_format


def test_alpha_is_flattened_on_the_background_for_jpeg():
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, 1] = (200, 100, 0, 255)
    pixels[0, 2] = (200, 100, 0, 51)
    flat = fit_format(pixels, "jpeg", (255, 0, 255))
    assert flat.tolist() == [[[255, 0, 255], [200, 100, 0], [244, 20, 204]]]
    grey = fit_format(np.array([[[10, 0]]], np.uint8), "jpeg", (255, 255, 255))
    assert grey.tolist() == [[[255]]]


@pytest.mark.parametrize("format", ["png", "tiff", "avif", "jpeg", "webp"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_sixteen_bits_are_kept_where_the_format_has_them_and_rounded_elsewhere(
    format, channels, noise
):
    pixels = noise(6, 8, channels, dtype=np.uint16)
    pixels[..., 3:] = 65535
    result = fit_format(pixels, format, (0, 0, 0))
    if format in ("png", "tiff", "avif"):
        assert result is pixels
    else:
        expected = np.round(pixels[..., : result.shape[2]] / 257).astype(np.uint8)
        assert (result == expected).all()
