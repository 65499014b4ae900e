"""Image files: depth, channels, orientation, profile and metadata survive; damage is refused."""

import io
import os

import numpy as np
import pytest
import pyvips
from PIL import Image, ImageCms

from srnet import image_io
from srnet.errors import ImageError

RNG = np.random.default_rng(0)
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def noise(*shape, dtype=np.uint8):
    high = 1 if dtype == np.float32 else np.iinfo(dtype).max
    return (RNG.random(shape) * high).astype(dtype)


@pytest.mark.parametrize("format", ["png", "tiff"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_lossless_round_trip_keeps_every_bit(tmp_path, format, channels, dtype):
    pixels = noise(17, 33, channels, dtype=dtype)
    image_io.write(tmp_path / "a", pixels, format)
    picture = image_io.read(tmp_path / "a")
    assert picture.format == format
    assert picture.pixels.dtype == dtype
    assert (picture.pixels == pixels).all()


def test_float_tiff_round_trip(tmp_path):
    pixels = noise(16, 16, 3, dtype=np.float32) * 4 - 1
    image_io.write(tmp_path / "a.tif", pixels, "tiff")
    assert (image_io.read(tmp_path / "a.tif").pixels == pixels).all()


def test_sixteen_bit_rgb_agrees_with_an_independent_decoder(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    pixels = noise(17, 33, 3, dtype=np.uint16)
    tifffile.imwrite(tmp_path / "in.tif", pixels, photometric="rgb")
    assert (image_io.read(tmp_path / "in.tif").pixels == pixels).all()


def test_sixteen_bit_grey_png_made_by_pillow(tmp_path):
    ramp = np.linspace(0, 65535, 33 * 17).astype(np.uint16).reshape(17, 33)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    assert (image_io.read(tmp_path / "a.png").pixels[..., 0] == ramp).all()


@pytest.mark.parametrize("format", ["webp", "avif"])
def test_lossless_option(tmp_path, format):
    pixels = noise(16, 16, 3)
    image_io.write(tmp_path / "a", pixels, format, lossless=True)
    assert (image_io.read(tmp_path / "a").pixels == pixels).all()
    image_io.write(tmp_path / "b", pixels, format)
    assert not (image_io.read(tmp_path / "b").pixels == pixels).all()


@pytest.mark.parametrize("format", ["jpeg", "webp", "avif"])
def test_quality_changes_the_size(tmp_path, format, photo):
    sizes = []
    for quality in (20, 95):
        image_io.write(tmp_path / "a", photo("coffee")[:64, :64], format, quality=quality)
        sizes.append((tmp_path / "a").stat().st_size)
    assert sizes[0] * 1.5 < sizes[1]


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "tiff", "avif", "gif", "bmp"])
def test_every_format_is_written_and_recognised_by_its_content(tmp_path, format, photo):
    pixels = photo("coffee")[:40, :50]
    image_io.write(tmp_path / "a", pixels, format)
    header = image_io.read_header(tmp_path / "a")
    assert (header.format, header.width, header.height, header.frames) == (format, 50, 40, 1)
    assert np.abs(image_io.read(tmp_path / "a").pixels[..., :3].astype(int) - pixels).mean() < 8
    with Image.open(tmp_path / "a") as image:
        assert image.size == (50, 40)


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
    picture = image_io.read(path)
    assert np.abs(picture.pixels.astype(int) - expected).max() <= 2
    header = image_io.read_header(path)
    assert (header.height, header.width) == expected.shape[:2]
    image_io.write(tmp_path / "b.jpg", picture.pixels, "jpeg", picture.metadata)
    again = image_io.read(tmp_path / "b.jpg").pixels
    assert again.shape == expected.shape
    assert np.abs(again.astype(int) - expected).max() <= 12


@pytest.mark.parametrize("format", ["jpeg", "png", "webp", "tiff", "avif"])
def test_metadata_survives(tmp_path, format):
    exif = Image.Exif()
    exif[0x013B] = "Ada"
    exif[0x0112] = 6
    exif.get_ifd(0x8769)[0xA002] = 40
    source = tmp_path / "a.jpg"
    xmp = b"<x:xmpmeta xmlns:x='adobe:ns:meta/'></x:xmpmeta>"
    image = Image.new("RGB", (40, 20), "red")
    image.save(source, exif=exif, dpi=(300, 300), xmp=xmp, icc_profile=SRGB)
    picture = image_io.read(source)
    assert picture.metadata.icc == SRGB
    big = picture.pixels.repeat(2, 0).repeat(2, 1)
    image_io.write(tmp_path / "b", big, format, picture.metadata)
    with Image.open(tmp_path / "b") as result:
        written = result.getexif()
        assert result.info["icc_profile"] == SRGB
        assert written.get(0x0112, 1) == 1
        found = result.info.get("xmp") or result.info["XML:com.adobe.xmp"].encode()
        assert xmp in found
        if format != "tiff":  # libvips writes no EXIF block in TIFF
            assert written[0x013B] == "Ada"
            assert written.get_ifd(0x8769)[0xA002] == 40
        if format in ("jpeg", "png", "tiff"):
            assert result.info["dpi"] == pytest.approx((300, 300), abs=0.01)


def test_the_thumbnail_is_left_out(tmp_path):
    small = io.BytesIO()
    Image.new("RGB", (16, 8), "red").save(small, "JPEG")
    exif = Image.Exif()
    exif[0x013B] = "Ada"
    Image.new("RGB", (64, 32), "red").save(tmp_path / "plain.jpg", exif=exif)
    source = pyvips.Image.new_from_file(str(tmp_path / "plain.jpg")).copy()
    source.set_type(pyvips.GValue.blob_type, "jpeg-thumbnail-data", small.getvalue())
    source.jpegsave(str(tmp_path / "a.jpg"))
    with Image.open(tmp_path / "a.jpg") as image:
        assert small.getvalue() in image.info["exif"]
    picture = image_io.read(tmp_path / "a.jpg")
    image_io.write(tmp_path / "b.jpg", picture.pixels, "jpeg", picture.metadata)
    with Image.open(tmp_path / "b.jpg") as image:
        assert image.getexif()[0x013B] == "Ada"
        assert b"\xff\xd8" not in image.info["exif"]


def test_stripping_keeps_only_the_profile(tmp_path):
    Image.new("RGB", (9, 5)).save(tmp_path / "a.png", icc_profile=SRGB, dpi=(300, 300))
    metadata = image_io.read(tmp_path / "a.png").metadata.only_icc()
    assert (metadata.icc, metadata.dpi, len(metadata.fields)) == (SRGB, None, 1)


def test_palette_transparency_and_colour_key_become_alpha(tmp_path):
    palette = Image.new("P", (33, 17))
    palette.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    palette.putdata([i % 4 for i in range(33 * 17)])
    palette.save(tmp_path / "p.png", transparency=bytes([0, 128, 255, 255]))
    expected = np.asarray(Image.open(tmp_path / "p.png").convert("RGBA"))
    assert (image_io.read(tmp_path / "p.png").pixels == expected).all()
    Image.new("RGB", (4, 4), (1, 2, 3)).save(tmp_path / "k.png", transparency=(1, 2, 3))
    assert (image_io.read(tmp_path / "k.png").pixels == (1, 2, 3, 0)).all()


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
    pixels = image_io.read(tmp_path / "a.png").pixels
    assert pixels.shape == (5, 9, len(expected))
    assert (pixels == expected).all()


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_cmyk_is_converted_not_taken_for_alpha(tmp_path, suffix):
    path = tmp_path / f"c.{suffix}"
    Image.new("CMYK", (33, 17), (0, 255, 255, 0)).save(path)
    picture = image_io.read(path)
    assert picture.pixels.shape == (17, 33, 3)
    red, green, blue = picture.pixels[8, 16]
    assert red > 200
    assert max(green, blue) < 60


def test_content_counts_not_the_suffix(tmp_path):
    Image.new("RGBA", (8, 8), (1, 2, 3, 4)).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / "fake.jpg")
    assert image_io.read(tmp_path / "fake.jpg").format == "png"


@pytest.mark.parametrize(
    "name", ["a b.png", "フォト é –.png", "-x.png", "a[Q=3].png", "50%d.png", "~.png"]
)
def test_any_file_name(tmp_path, name):
    pixels = noise(5, 7, 3)
    image_io.write(tmp_path / name, pixels, "png")
    assert (image_io.read(tmp_path / name).pixels == pixels).all()
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "tiff", "avif", "gif", "bmp"])
def test_a_file_cut_anywhere_is_refused(tmp_path, format, photo):
    image_io.write(tmp_path / "a", photo("coffee")[:40, :50], format)
    data = (tmp_path / "a").read_bytes()
    for share in (0.2, 0.5, 0.9):
        (tmp_path / "b").write_bytes(data[: int(len(data) * share)])
        with pytest.raises(ImageError) as caught:
            image_io.read(tmp_path / "b")
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
        image_io.read(tmp_path / "a.png")


def test_missing_file(tmp_path):
    with pytest.raises(ImageError, match="No such file"):
        image_io.read_header(tmp_path / "nope.png")


def test_bomb_is_refused_by_its_header(tmp_path):
    Image.new("1", (20000, 20000)).save(tmp_path / "bomb.png")
    with pytest.raises(
        ImageError, match=r"20000 x 20000 = 400 megapixels, over the limit of 300.*--max-pixels"
    ):
        image_io.read_header(tmp_path / "bomb.png")
    assert image_io.read_header(tmp_path / "bomb.png", 400_000_000).width == 20000


def test_nan_in_a_float_image_is_refused(tmp_path):
    pixels = np.ones((4, 4, 1), np.float32)
    pixels[1, 1] = np.nan
    image_io.write(tmp_path / "a.tif", pixels, "tiff")
    with pytest.raises(ImageError, match="1 pixel values"):
        image_io.read(tmp_path / "a.tif")


def test_unsupported_pixel_type_is_named(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((8, 8), np.int32))
    with pytest.raises(ImageError, match="type int"):
        image_io.read(tmp_path / "a.tif")


def test_limits_of_a_format_are_known_before_writing():
    image_io.check_target("webp", 16383, 9)
    with pytest.raises(ImageError, match=r"16400 x 8 is over the webp limit of 16383"):
        image_io.check_target("webp", 16400, 8)


def test_alpha_is_flattened_on_the_background_for_jpeg():
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, 1] = (200, 100, 0, 255)
    pixels[0, 2] = (200, 100, 0, 51)
    flat = image_io.fit_format(pixels, "jpeg", (255, 0, 255))
    assert flat.tolist() == [[[255, 0, 255], [200, 100, 0], [244, 20, 204]]]
    grey = image_io.fit_format(np.array([[[10, 0]]], np.uint8), "jpeg", (255, 255, 255))
    assert grey.tolist() == [[[255]]]


def test_read_rgb8_for_data_sets(tmp_path):
    Image.fromarray(np.array([[0, 128, 129, 65535]], np.uint16)).save(tmp_path / "a.png")
    assert image_io.read_rgb8(tmp_path / "a.png").tolist() == [
        [[0] * 3, [0] * 3, [1] * 3, [255] * 3]
    ]
    Image.new("RGBA", (2, 1), (1, 2, 3, 4)).save(tmp_path / "b.png")
    assert image_io.read_rgb8(tmp_path / "b.png").tolist() == [[[1, 2, 3]] * 2]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def interrupted():
        with image_io.atomic_output(path) as partial:
            partial.write_bytes(b"half")
            assert image_io.is_partial(partial)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == ["a.png"]
    assert path.read_bytes() == b"old"
    with pytest.raises(ImageError, match="cannot be written"):
        image_io.write(tmp_path / "no" / "b.png", noise(2, 2, 3), "png")


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "tiff", "avif", "gif", "bmp"])
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path, format):
    image_io.write(tmp_path / "a", image_io.fit_format(noise(12, 16, 4), format, (0, 0, 0)), format)
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
            image_io.read(tmp_path / "b", 1_000_000)
        except ImageError as error:
            messages.append(str(error))
    assert len(messages) >= 5
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (5, 7), (300, 1501)])
def test_bmp_is_written_in_strips_as_pillow_reads_it(tmp_path, channels, size):
    pixels = noise(*size, channels)
    image_io.write(tmp_path / "a.bmp", pixels, "bmp", image_io.Metadata(dpi=(300, 300)), recipe="x")
    with Image.open(tmp_path / "a.bmp") as image:
        assert image.mode == {1: "L", 3: "RGB"}[channels]
        assert (np.asarray(image).reshape(pixels.shape) == pixels).all()
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.02)


def test_a_description_in_tiff_stays_and_the_recipe_is_replaced(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.tif", description="my scan")
    for recipe in ("one", "two"):
        picture = image_io.read(tmp_path / "a.tif")
        image_io.write(tmp_path / "a.tif", picture.pixels, "tiff", picture.metadata, recipe=recipe)
    with Image.open(tmp_path / "a.tif") as image:
        assert image.tag_v2[270] == "my scan\nsrnet recipe two"


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_a_canvas_on_disk_gives_back_its_rows(tmp_path, channels, dtype):
    pixels = noise(700, 601, channels, dtype=dtype)
    with image_io.Canvas(tmp_path, 601, 700, max_bytes=1000) as canvas:
        for top in range(0, 700, 64):
            canvas.put(pixels[top : top + 64])
        assert canvas.on_disk
        image = canvas.image()
        assert (image.numpy().reshape(pixels.shape) == pixels).all()
        (path,) = tmp_path.iterdir()
        assert image_io.is_partial(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["png", "tiff", "avif", "jpeg", "webp"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_sixteen_bits_are_kept_where_the_format_has_them_and_rounded_elsewhere(format, channels):
    pixels = noise(6, 8, channels, dtype=np.uint16)
    pixels[..., 3:] = 65535
    result = image_io.fit_format(pixels, format, (0, 0, 0))
    if format in ("png", "tiff", "avif"):
        assert result is pixels
    else:
        expected = np.round(pixels[..., : result.shape[2]] / 257).astype(np.uint8)
        assert (result == expected).all()
