"""Results collected on disk."""

import numpy as np
import pytest

from srnet.atomic import is_partial
from srnet.images.canvas import Canvas


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_a_canvas_on_disk_gives_back_its_rows(tmp_path, channels, dtype, noise):
    pixels = noise(700, 601, channels, dtype=dtype)
    with Canvas(tmp_path, 601, 700, max_bytes=1000) as canvas:
        for top in range(0, 700, 64):
            canvas.put(pixels[top : top + 64])
        assert canvas.on_disk
        image = canvas.image()
        assert (image.numpy().reshape(pixels.shape) == pixels).all()
        (path,) = tmp_path.iterdir()
        assert is_partial(path)
    assert list(tmp_path.iterdir()) == []
