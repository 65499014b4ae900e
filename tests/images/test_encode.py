"""What is written comes back: every bit, the metadata, any file name."""

import io
import os

import numpy as np
import pytest
import pyvips
from PIL import Image, ImageCms

from srnet.errors import ImageError
from srnet.images import decode, encode
from srnet.images.picture import Metadata

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


@pytest.mark.parametrize("format", ["png", "tiff"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_lossless_round_trip_keeps_every_bit(tmp_path, format, channels, dtype, noise):
    pixels = noise(17, 33, channels, dtype=dtype)
    encode.write(tmp_path / "a", pixels, format)
    picture = decode.read(tmp_path / "a")
    assert picture.format == format
    assert picture.pixels.dtype == dtype
    assert (picture.pixels == pixels).all()


def test_float_tiff_round_trip(tmp_path, noise):
    pixels = noise(16, 16, 3, dtype=np.float32) * 4 - 1
    encode.write(tmp_path / "a.tif", pixels, "tiff")
    assert (decode.read(tmp_path / "a.tif").pixels == pixels).all()


@pytest.mark.parametrize("format", ["webp", "avif"])
def test_lossless_option(tmp_path, format, noise):
    pixels = noise(16, 16, 3)
    encode.write(tmp_path / "a", pixels, format, lossless=True)
    assert (decode.read(tmp_path / "a").pixels == pixels).all()
    encode.write(tmp_path / "b", pixels, format)
    assert not (decode.read(tmp_path / "b").pixels == pixels).all()


@pytest.mark.parametrize("format", ["jpeg", "webp", "avif"])
def test_quality_changes_the_size(tmp_path, format, photo):
    sizes = []
    for quality in (20, 95):
        encode.write(tmp_path / "a", photo("coffee")[:64, :64], format, quality=quality)
        sizes.append((tmp_path / "a").stat().st_size)
    assert sizes[0] * 1.5 < sizes[1]


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "tiff", "avif", "gif", "bmp"])
def test_every_format_is_written_and_recognised_by_its_content(tmp_path, format, photo):
    pixels = photo("coffee")[:40, :50]
    encode.write(tmp_path / "a", pixels, format)
    header = decode.read_header(tmp_path / "a")
    assert (header.format, header.width, header.height, header.frames) == (format, 50, 40, 1)
    assert np.abs(decode.read(tmp_path / "a").pixels[..., :3].astype(int) - pixels).mean() < 8
    with Image.open(tmp_path / "a") as image:
        assert image.size == (50, 40)


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
    picture = decode.read(source)
    assert picture.metadata.icc == SRGB
    big = picture.pixels.repeat(2, 0).repeat(2, 1)
    encode.write(tmp_path / "b", big, format, picture.metadata)
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
    picture = decode.read(tmp_path / "a.jpg")
    encode.write(tmp_path / "b.jpg", picture.pixels, "jpeg", picture.metadata)
    with Image.open(tmp_path / "b.jpg") as image:
        assert image.getexif()[0x013B] == "Ada"
        assert b"\xff\xd8" not in image.info["exif"]


def test_stripping_keeps_only_the_profile(tmp_path):
    Image.new("RGB", (9, 5)).save(tmp_path / "a.png", icc_profile=SRGB, dpi=(300, 300))
    metadata = decode.read(tmp_path / "a.png").metadata.only_icc()
    assert (metadata.icc, metadata.dpi, len(metadata.fields)) == (SRGB, None, 1)


@pytest.mark.parametrize(
    "name", ["a b.png", "フォト é –.png", "-x.png", "a[Q=3].png", "50%d.png", "~.png"]
)
def test_any_file_name(tmp_path, name, noise):
    pixels = noise(5, 7, 3)
    encode.write(tmp_path / name, pixels, "png")
    assert (decode.read(tmp_path / name).pixels == pixels).all()
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (5, 7), (300, 1501)])
def test_bmp_is_written_in_strips_as_pillow_reads_it(tmp_path, channels, size, noise):
    pixels = noise(*size, channels)
    encode.write(tmp_path / "a.bmp", pixels, "bmp", Metadata(dpi=(300, 300)), recipe="x")
    with Image.open(tmp_path / "a.bmp") as image:
        assert image.mode == {1: "L", 3: "RGB"}[channels]
        assert (np.asarray(image).reshape(pixels.shape) == pixels).all()
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.02)


def test_a_description_in_tiff_stays_and_the_recipe_is_replaced(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.tif", description="my scan")
    for recipe in ("one", "two"):
        picture = decode.read(tmp_path / "a.tif")
        encode.write(tmp_path / "a.tif", picture.pixels, "tiff", picture.metadata, recipe=recipe)
    with Image.open(tmp_path / "a.tif") as image:
        assert image.tag_v2[270] == "my scan\nsrnet recipe two"


def test_a_folder_that_is_not_there_is_one_line(tmp_path, noise):
    with pytest.raises(ImageError, match=r"b\.png: cannot be written"):
        encode.write(tmp_path / "no" / "b.png", noise(2, 2, 3), "png")


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "tiff", "avif", "gif", "bmp"])
def test_a_stamp_is_found_at_the_start_or_the_end_of_a_file(tmp_path, noise, format, monkeypatch):
    monkeypatch.setattr(encode, "_LOOKED_AT", 1500)
    for recipe in ("0" * 32, None):
        path = tmp_path / f"a.{format}"
        encode.write(path, noise(64, 64, 3), format, recipe=recipe)
        assert path.stat().st_size > 3000
        assert encode.is_stamped(path) is (recipe is not None)
    assert not encode.is_stamped(tmp_path / "missing.png")
