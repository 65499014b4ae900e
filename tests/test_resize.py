"""imresize against MATLAB: the published files, a plain port of MATLAB's own code, fixed values."""

import math
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from srnet.resize import downscale, imresize, upscale


def matlab_axis(row: NDArray[np.float64], out_length: int) -> NDArray[np.float64]:
    """MATLAB's contributions() and resizeAlongDim() for one line, written out pixel by pixel."""
    length = len(row)
    scale = out_length / length
    width = 4.0 / scale if scale < 1 else 4.0
    mirror = [*range(1, length + 1), *range(length, 0, -1)]
    out = np.empty(out_length)
    for i in range(out_length):
        u = (i + 1) / scale + 0.5 * (1 - 1 / scale)
        left = math.floor(u - width / 2)
        values, weights = [], []
        for position in range(left, left + math.ceil(width) + 2):
            x = (u - position) * min(scale, 1.0)
            a = abs(x)
            weight = 0.0
            if a <= 1:
                weight = 1.5 * a**3 - 2.5 * a**2 + 1
            elif a <= 2:
                weight = -0.5 * a**3 + 2.5 * a**2 - 4 * a + 2
            weights.append(weight)
            values.append(row[mirror[(position - 1) % (2 * length)] - 1])
        out[i] = np.dot(weights, values) / sum(weights)
    return out


def matlab_imresize(image: NDArray[np.generic], size: tuple[int, int]) -> NDArray[np.generic]:
    """Plain (H, W) port of imresize; uint8 in, uint8 between the passes, uint8 out."""
    scales = [size[0] / image.shape[0], size[1] / image.shape[1]]
    for axis in np.argsort(scales, kind="stable"):
        result = np.apply_along_axis(matlab_axis, axis, image.astype(np.float64), size[axis])
        if image.dtype == np.uint8:
            result = np.clip(np.floor(result + 0.5), 0, 255)
        image = result.astype(image.dtype)
    return image


def batch(image: NDArray[np.generic]) -> torch.Tensor:
    """(H, W) or (H, W, C) array as (1, C, H, W)."""
    planes = image[..., None] if image.ndim == 2 else image
    return torch.from_numpy(np.ascontiguousarray(planes.transpose(2, 0, 1)))[None]


def read(path: Path) -> torch.Tensor:
    with Image.open(path) as image:
        return batch(np.array(image.convert("RGB")))


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize("name", ["Set5", "Set14"])
def test_reproduces_benchmark_files(shared_data: Path, name: str, scale: int) -> None:
    folder = shared_data / "benchmarks" / name
    differences = {}
    for path in sorted((folder / "HR").glob("*.png")):
        made = downscale(read(path), scale).int()
        kept = read(folder / "LR_bicubic" / f"X{scale}" / f"{path.stem}x{scale}.png").int()
        differences[path.stem] = (made - kept).abs().max().item()
    assert len(differences) == {"Set5": 5, "Set14": 14}[name]
    assert max(differences.values()) == 0, differences


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize(
    ("photo", "window"),
    [("astronaut", np.s_[20:109, 150:227]), ("coffee", np.s_[101:178, 330:421])],
)
def test_shrinks_like_matlab(photo: str, window: tuple[slice, slice], scale: int) -> None:
    image = getattr(skimage.data, photo)()[window][..., 0]
    height, width = (side // scale for side in image.shape)
    expected = matlab_imresize(image[: height * scale, : width * scale], (height, width))
    np.testing.assert_array_equal(downscale(batch(image), scale)[0, 0].numpy(), expected)


@pytest.mark.parametrize(
    "size", [(62, 94), (93, 141), (124, 188), (13, 47), (31, 20), (45, 31), (1, 1), (32, 48)]
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_any_size_like_matlab(size: tuple[int, int], dtype: type[np.generic]) -> None:
    image = skimage.data.camera()[200:231, 230:277].astype(dtype)  # 31x47, hard edges
    result = imresize(batch(image), size)[0, 0].numpy()
    expected = matlab_imresize(image, size)
    if dtype is np.uint8:
        np.testing.assert_array_equal(result, expected)
    else:
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-11)


def test_known_values() -> None:
    # By hand: at x2 the taps are [-3 -9 29 111 111 29 -9 -3] / 256; mirrored at the border.
    step = torch.tensor([0, 0, 0, 0, 255, 255, 255, 255], dtype=torch.uint8)
    rows = step.expand(1, 1, 8, 8)
    # 255 * [-3, 17, 239, 259] / 256: below 0 and above 255 are clipped, 16.93 and 238.07 rounded.
    assert downscale(rows, 2)[0, 0].tolist() == [[0, 17, 238, 255]] * 4
    floats = downscale(rows.double(), 2)[0, 0, 0] * 256 / 255
    torch.testing.assert_close(floats, torch.tensor([-3.0, 17.0, 239.0, 259.0]).double())


def test_half_is_rounded_up() -> None:
    # x2 enlarging of [1, 1, 2, 2] never gives .5; the mean of 1 and 2 does: one output pixel.
    pair = torch.tensor([[1, 2], [1, 2]], dtype=torch.uint8).expand(1, 1, 2, 2)
    assert imresize(pair, (1, 1)).item() == 2


def test_rounds_between_the_passes() -> None:
    image = torch.from_numpy(skimage.data.text()[:, :444].copy())[None, None]
    twice = downscale(image, 4).int()
    once = downscale(image.double(), 4).add(0.5).floor().clamp(0, 255).int()
    assert 0 < (twice - once).abs().max() <= 12


@pytest.mark.parametrize("size", [(5, 7), (40, 28), (29, 9), (1, 1), (10, 14)])
def test_constant_stays_constant(size: tuple[int, int]) -> None:
    assert (imresize(torch.full((2, 3, 10, 14), 77, dtype=torch.uint8), size) == 77).all()
    floats = imresize(torch.full((2, 3, 10, 14), 0.3, dtype=torch.float32), size)
    torch.testing.assert_close(floats, torch.full((2, 3, *size), 0.3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_interior_equals_torch_antialias(scale: int) -> None:
    image = batch(skimage.data.chelsea()[:240, :360] / 255.0)
    height, width = 240 // scale, 360 // scale
    theirs = F.interpolate(
        image, (height, width), mode="bicubic", antialias=True, align_corners=False
    )
    inside = (..., slice(2, -2), slice(2, -2))
    torch.testing.assert_close(downscale(image, scale)[inside], theirs[inside], rtol=0, atol=1e-12)


def test_same_size_is_identity() -> None:
    image = batch(skimage.data.astronaut()[:17, :23])
    assert torch.equal(imresize(image, (17, 23)), image)
    assert torch.equal(upscale(image, 1), image)


def test_images_and_channels_are_independent() -> None:
    image = batch(skimage.data.astronaut()[:32, :40])
    stacked = torch.cat([image, image.flip(1)])
    result = downscale(stacked, 3)
    for b in range(2):
        for c in range(3):
            assert torch.equal(result[b, c], downscale(stacked[b : b + 1, c : c + 1], 3)[0, 0])


def test_float_passes_gradients() -> None:
    image = torch.rand(1, 2, 7, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    image.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: imresize(x, (3, 13)), image)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_float_types_are_kept(dtype: torch.dtype) -> None:
    image = batch(skimage.data.astronaut()[:40, :40] / 255.0)
    result = downscale(image.to(dtype), 2)
    assert result.dtype == dtype
    # One rounding of the input and one of the result, nothing from the sum in between.
    atol = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), downscale(image, 2), rtol=0, atol=atol)


def test_crops_to_a_multiple() -> None:
    image = batch(skimage.data.astronaut()[:50, :43])
    assert torch.equal(downscale(image, 4), downscale(image[..., :48, :40], 4))


def test_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="has 3 dimensions"):
        imresize(torch.zeros(3, 4, 4), (2, 2))
    with pytest.raises(TypeError, match=r"torch\.int64"):
        imresize(torch.zeros(1, 1, 4, 4, dtype=torch.int64), (2, 2))
    with pytest.raises(ValueError, match="4x4 to 0x2"):
        imresize(torch.zeros(1, 1, 4, 4), (0, 2))
    with pytest.raises(ValueError, match="3x9 is smaller than scale 4"):
        downscale(torch.zeros(1, 1, 3, 9), 4)
