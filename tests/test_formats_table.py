"""docs/formats.md says what the code does."""

from pathlib import Path

import formats_table

ROOT = Path(__file__).resolve().parents[1]


def test_the_table_of_formats_is_current_and_nothing_is_lost_by_png():
    page = formats_table.table()
    assert "NOT TURNED" not in page
    rows = {
        cells[1].strip(): cells[2].strip()
        for line in page.splitlines()
        if (cells := line.split("|"))[1:]
    }
    assert rows["PNG RGBA 16"] == "RGBA 16"
    assert rows["JPEG RGB, turned, all metadata"] == "RGB 8 icc xmp exif dpi o"
    assert page == (ROOT / "docs" / "formats.md").read_text(encoding="utf-8"), (
        "run python scripts/formats_table.py docs/formats.md"
    )
