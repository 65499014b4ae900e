"""The before-and-after picture and its number."""

import math

import numpy as np
import pytest
import torch

from srnet.compare import compare
from srnet.resize import imresize


def test_the_number_is_the_psnr_of_the_shrunk_result(photo):
    after = photo("chelsea")[40:200, 60:260]
    before = photo("chelsea")[40:80, 60:110]
    _, psnr = compare(before, after)
    shrunk = imresize(torch.from_numpy(after.copy()).permute(2, 0, 1)[None], (40, 50))[0]
    error = (shrunk.permute(1, 2, 0).double().numpy() - before) ** 2
    assert psnr == pytest.approx(10 * math.log10(255**2 / error.mean()))


def test_a_result_that_shrinks_back_exactly_has_no_error():
    flat = np.full((8, 8, 3), 77, np.uint8)
    assert compare(flat, np.full((32, 32, 3), 77, np.uint8))[1] == math.inf


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 3), (330, 500)])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_picture_shows_both_side_by_side(size, channels):
    before = np.zeros((*size, channels), np.uint8)
    after = np.full((size[0] * 2, size[1] * 2, channels), 200, np.uint8)
    picture, psnr = compare(before, after)
    assert picture.shape[1:] == (644, 3)
    assert psnr == pytest.approx(20 * math.log10(255 / 200))
    assert (picture[16, 0] == 0).all()
    assert (picture[16, 324] == 200).all()
    assert picture[:16].min() < 100  # words


def test_parts_with_the_most_detail_are_zoomed():
    after = np.zeros((640, 640, 3), np.uint8)
    after[320:480:2, 160:320] = 255  # stripes in one part only
    picture, _ = compare(after[::2, ::2], after)
    top = 16 + 320 + 16
    first = picture[top : top + 320, 324:]
    assert (first[:2] == 255).all()
    assert (first[2:4] == 0).all()
