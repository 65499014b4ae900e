"""What is read of image files: depth, channels, orientation; damage is refused."""

import os
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import pyvips
import tifffile
from PIL import ExifTags, Image, ImageOps

from srnet.errors import ImageError
from srnet.images import decode, encode, png
from srnet.images.fit import fit_format
from srnet.images.picture import Header


def test_sixteen_bit_rgb_agrees_with_an_independent_decoder(tmp_path, noise):
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


def png_file(path, *, before=(), behind=(), pixels=None, depth=8):
    """A PNG with these chunks before and behind its pixels."""
    pixels = np.arange(2 * 3 * 3).reshape(2, 3, 3) * 10 if pixels is None else pixels
    rows = b"".join(b"\0" + row.astype(f">u{depth // 8}").tobytes() for row in pixels)
    size = pixels.shape[1].to_bytes(4, "big") + pixels.shape[0].to_bytes(4, "big")
    chunks = [(b"IHDR", size + bytes([depth, 2, 0, 0, 0])), *before]
    chunks += [(b"IDAT", zlib.compress(rows)), *behind, (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(png.chunk(*c) for c in chunks))
    return path


def exif_block(**tags):
    exif = Image.Exif()
    for name, value in tags.items():
        exif[getattr(ExifTags.Base, name)] = value
    return exif.tobytes().removeprefix(b"Exif\0\0")


@pytest.mark.parametrize("place", ["before", "behind"])
def test_metadata_of_a_png_counts_wherever_it_stands(tmp_path, place):
    chunks = [
        (b"eXIf", exif_block(Orientation=6, Artist="someone")),
        (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x:xmpmeta>here</x:xmpmeta>"),
    ]
    path = png_file(tmp_path / "a.png", **{place: chunks})
    with Image.open(path) as image:
        image.load()
        upright = np.asarray(ImageOps.exif_transpose(image))
    picture = decode.read(path)
    assert (picture.pixels == upright).all()
    assert decode.read_header(path) == Header("png", 2, 3, 1)
    encode.write(tmp_path / "b.png", picture.pixels, "png", picture.metadata)
    with Image.open(tmp_path / "b.png") as image:
        image.load()
        assert image.getexif()[ExifTags.Base.Artist] == "someone"
        assert image.getexif()[ExifTags.Base.Orientation] == 1
        assert "here" in image.info["XML:com.adobe.xmp"]


def test_text_of_a_png_keeps_its_letters(tmp_path):
    texts = [
        (b"tEXt", b"Author\0J\xfcrgen"),
        (b"iTXt", b"Title\0\0\0de\0Titel\0" + "日本".encode()),
        (b"zTXt", b"Long\0\0" + zlib.compress(b"x" * 1000)),
    ]
    path = png_file(tmp_path / "a.png", before=texts[:2], behind=texts[2:])
    picture = decode.read(path)
    encode.write(tmp_path / "b.png", picture.pixels, "png", picture.metadata, recipe="0")
    with Image.open(tmp_path / "b.png") as image:
        image.load()
        assert image.text == {"Author": "Jürgen", "Title": "日本", "Long": "x" * 1000}
        assert (np.asarray(image) == picture.pixels).all()
    assert picture.metadata.lost_in("jpeg") == "text"
    assert picture.metadata.lost_in("png") == ""


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        ([(b"gAMA", (100000).to_bytes(4, "big"))], "gAMA 1"),
        ([(b"cICP", bytes([9, 16, 0, 1]))], "cICP"),
        ([(b"cHRM", b"".join(n.to_bytes(4, "big") for n in (31270, 32900, 68000, 32000, 26500,
                                                            69000, 15000, 6000)))], "cHRM"),
        ([(b"gAMA", (45455).to_bytes(4, "big"))], None),
        ([(b"sRGB", b"\0"), (b"gAMA", (100000).to_bytes(4, "big"))], None),
        ([(b"cICP", bytes([1, 13, 0, 1]))], None),
        ([], None),
    ],
)  # fmt: skip
def test_colours_that_only_a_png_states_are_told(tmp_path, chunks, said):
    notes = decode.read(png_file(tmp_path / "a.png", before=chunks)).notes
    assert [said in note for note in notes] == ([] if said is None else [True])


def test_xmp_and_exif_lose_what_is_no_longer_true(tmp_path, noise):
    xmp = (
        b'<rdf:Description tiff:Orientation=\'6\' dc:title="kept" exif:PixelXDimension = "26">'
        b"<tiff:ImageWidth>26</tiff:ImageWidth><tiff:Make>kept too</tiff:Make>"
        b"<xmp:Thumbnails><rdf:Alt><rdf:li>AAAA</rdf:li></rdf:Alt></xmp:Thumbnails></rdf:Description>"
    )
    exif = Image.Exif()
    exif.load(b"Exif\0\0" + exif_block(Orientation=6, ImageWidth=26, ImageLength=18, Artist="a"))
    Image.fromarray(noise(18, 26, 3)).save(tmp_path / "a.jpg", exif=exif, xmp=xmp)
    picture = decode.read(tmp_path / "a.jpg")
    encode.write(tmp_path / "b.jpg", picture.pixels, "jpeg", picture.metadata)
    with Image.open(tmp_path / "b.jpg") as image:
        tags = image.getexif()
        assert tags[ExifTags.Base.Artist] == "a"
        assert (tags[ExifTags.Base.ImageWidth], tags[ExifTags.Base.ImageLength]) == image.size
        assert image.info["xmp"] == (
            b'<rdf:Description dc:title="kept"><tiff:Make>kept too</tiff:Make></rdf:Description>'
        )


def test_further_pictures_of_a_file_are_counted(tmp_path, noise):
    frames = [Image.fromarray(noise(32, 40, 3)) for _ in range(3)]
    for name, format in (
        ("a.jpg", "MPO"),
        ("a.avif", "AVIF"),
        ("a.png", "PNG"),
        ("a.webp", "WEBP"),
    ):
        frames[0].save(tmp_path / name, format, save_all=True, append_images=frames[1:])
        assert decode.read(tmp_path / name).frames == 3, name
        frames[0].save(tmp_path / name, format)
        assert decode.read(tmp_path / name).frames == 1, name


@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.uint64])
def test_rare_kinds_of_tiff_are_not_called_damaged(tmp_path, dtype):
    tifffile.imwrite(tmp_path / "a.tif", np.ones((5, 7), dtype), photometric="minisblack")
    with pytest.raises(ImageError, match="a kind of tiff that srnet cannot read"):
        decode.read(tmp_path / "a.tif")


def test_sixteen_bit_lab_stays_sixteen_bit(tmp_path):
    grey = pyvips.Image.xyz(200, 1)[0] * (65535 / 199)
    rgb = pyvips.Image.bandjoin(grey, [grey, grey]).cast("ushort").copy(interpretation="rgb16")
    rgb.colourspace("labs").tiffsave(str(tmp_path / "a.tif"))
    pixels = decode.read(tmp_path / "a.tif").pixels
    assert pixels.dtype == np.uint16
    np.testing.assert_allclose(pixels[0, :, 0], rgb[0].numpy()[0], atol=150)


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems keep names as Unicode")
def test_names_need_not_be_unicode(tmp_path, noise):
    path = Path(os.fsdecode(os.fsencode(tmp_path / "f") + b"\xe9"))
    path.mkdir()
    for format in ("png", "tiff", "bmp", "avif"):
        encode.write(path / os.fsdecode(b"\xff.x"), noise(5, 7, 3), format)
        assert decode.read(path / os.fsdecode(b"\xff.x")).format == format
    (path / "cut.png").write_bytes(png_file(tmp_path / "a.png").read_bytes()[:60])
    with pytest.raises(ImageError, match="cut short"):
        decode.read(path / "cut.png")
