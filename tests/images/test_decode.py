"""What is read of image files: depth, channels, orientation; damage is refused."""

import numpy as np
import pytest
from PIL import Image

from srnet.errors import ImageError
from srnet.images import decode, encode
from srnet.images.fit import fit_format


def test_sixteen_bit_rgb_agrees_with_an_independent_decoder(tmp_path, noise):
    tifffile = pytest.importorskip("tifffile")
    pixels = noise(17, 33, 3, dtype=np.uint16)
    tifffile.imwrite(tmp_path / "in.tif", pixels, photometric="rgb")
    assert (decode.read(tmp_path / "in.tif").pixels == pixels).all()


def test_sixteen_bit_grey_png_made_by_pillow(tmp_path):
    ramp = np.linspace(0, 65535, 33 * 17).astype(np.uint16).reshape(17, 33)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    assert (decode.read(tmp_path / "a.png").pixels[..., 0] == ramp).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once_as_pillow_does(tmp_path, orientation):
    path = tmp_path / "a.jpg"
    image = Image.new("RGB", (40, 20), (255, 0, 0))
    image.paste((0, 0, 255), (20, 0, 40, 20))
    image.paste((0, 255, 0), (0, 10, 10, 20))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(path, exif=exif, quality=95, subsampling=0)
    from PIL import ImageOps

    expected = np.asarray(ImageOps.exif_transpose(Image.open(path)))
    picture = decode.read(path)
    assert np.abs(picture.pixels.astype(int) - expected).max() <= 2
    header = decode.read_header(path)
    assert (header.height, header.width) == expected.shape[:2]
    encode.write(tmp_path / "b.jpg", picture.pixels, "jpeg", picture.metadata)
    again = decode.read(tmp_path / "b.jpg").pixels
    assert again.shape == expected.shape
    assert np.abs(again.astype(int) - expected).max() <= 12


def test_palette_transparency_and_colour_key_become_alpha(tmp_path):
    palette = Image.new("P", (33, 17))
    palette.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    palette.putdata([i % 4 for i in range(33 * 17)])
    palette.save(tmp_path / "p.png", transparency=bytes([0, 128, 255, 255]))
    expected = np.asarray(Image.open(tmp_path / "p.png").convert("RGBA"))
    assert (decode.read(tmp_path / "p.png").pixels == expected).all()
    Image.new("RGB", (4, 4), (1, 2, 3)).save(tmp_path / "k.png", transparency=(1, 2, 3))
    assert (decode.read(tmp_path / "k.png").pixels == (1, 2, 3, 0)).all()


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 7, (7,)),
        ("1", 1, (255,)),
        ("LA", (100, 50), (100, 50)),
        ("RGBA", (1, 2, 3, 4), (1, 2, 3, 4)),
    ],
)
def test_modes(tmp_path, mode, colour, expected):
    Image.new(mode, (9, 5), colour).save(tmp_path / "a.png")
    pixels = decode.read(tmp_path / "a.png").pixels
    assert pixels.shape == (5, 9, len(expected))
    assert (pixels == expected).all()


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_cmyk_is_converted_not_taken_for_alpha(tmp_path, suffix):
    path = tmp_path / f"c.{suffix}"
    Image.new("CMYK", (33, 17), (0, 255, 255, 0)).save(path)
    picture = decode.read(path)
    assert picture.pixels.shape == (17, 33, 3)
    red, green, blue = picture.pixels[8, 16]
    assert red > 200
    assert max(green, blue) < 60


def test_content_counts_not_the_suffix(tmp_path):
    Image.new("RGBA", (8, 8), (1, 2, 3, 4)).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / "fake.jpg")
    assert decode.read(tmp_path / "fake.jpg").format == "png"


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "tiff", "avif", "gif", "bmp"])
def test_a_file_cut_anywhere_is_refused(tmp_path, format, photo):
    encode.write(tmp_path / "a", photo("coffee")[:40, :50], format)
    data = (tmp_path / "a").read_bytes()
    for share in (0.2, 0.5, 0.9):
        (tmp_path / "b").write_bytes(data[: int(len(data) * share)])
        with pytest.raises(ImageError) as caught:
            decode.read(tmp_path / "b")
        assert str(tmp_path / "b") in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"hello, I am text\n" * 9, "not an image"),
        (b"<svg xmlns='a'/>", "not an image"),
    ],
)
def test_what_is_no_image_is_refused(tmp_path, data, words):
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(ImageError, match=words):
        decode.read(tmp_path / "a.png")


def test_missing_file(tmp_path):
    with pytest.raises(ImageError, match="No such file"):
        decode.read_header(tmp_path / "nope.png")


def test_bomb_is_refused_by_its_header(tmp_path):
    Image.new("1", (20000, 20000)).save(tmp_path / "bomb.png")
    with pytest.raises(
        ImageError, match=r"20000 x 20000 = 400 megapixels, over the limit of 300.*--max-pixels"
    ):
        decode.read_header(tmp_path / "bomb.png")
    assert decode.read_header(tmp_path / "bomb.png", 400_000_000).width == 20000


def test_nan_in_a_float_image_is_refused(tmp_path):
    pixels = np.ones((4, 4, 1), np.float32)
    pixels[1, 1] = np.nan
    encode.write(tmp_path / "a.tif", pixels, "tiff")
    with pytest.raises(ImageError, match="1 pixel values"):
        decode.read(tmp_path / "a.tif")


def test_unsupported_pixel_type_is_named(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((8, 8), np.int32))
    with pytest.raises(ImageError, match="type int"):
        decode.read(tmp_path / "a.tif")


def test_read_rgb8_for_data_sets(tmp_path):
    Image.fromarray(np.array([[0, 128, 129, 65535]], np.uint16)).save(tmp_path / "a.png")
    assert decode.read_rgb8(tmp_path / "a.png").tolist() == [[[0] * 3, [0] * 3, [1] * 3, [255] * 3]]
    Image.new("RGBA", (2, 1), (1, 2, 3, 4)).save(tmp_path / "b.png")
    assert decode.read_rgb8(tmp_path / "b.png").tolist() == [[[1, 2, 3]] * 2]


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "tiff", "avif", "gif", "bmp"])
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path, format, noise):
    encode.write(tmp_path / "a", fit_format(noise(12, 16, 4), format, (0, 0, 0)), format)
    data = (tmp_path / "a").read_bytes()
    random = np.random.default_rng(1)
    messages = []
    for step in range(60):
        damaged = bytearray(data)
        place = int(random.integers(len(damaged) if step % 2 else min(80, len(damaged))))
        if step % 3:
            damaged[place] = int(random.integers(256))
        else:
            del damaged[place : place + int(random.integers(1, 40))]
        (tmp_path / "b").write_bytes(damaged)
        try:
            decode.read(tmp_path / "b", 1_000_000)
        except ImageError as error:
            messages.append(str(error))
    assert len(messages) >= 5
    assert not any("\n" in message for message in messages)
