"""The page of results holds what was measured, and measures nothing twice."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import results
from PIL import Image

from srnet.checkpoint import load_checkpoint, shipped_models
from srnet.datasets import find_pairs
from srnet.evaluation import evaluate

ROOT = Path(__file__).resolve().parents[1]


def test_page_holds_what_eval_measures(tmp_path, photo, monkeypatch):
    folder = tmp_path / "sets" / "Set5"
    folder.mkdir(parents=True)
    Image.fromarray(np.ascontiguousarray(photo("chelsea")[:64, :64])).save(folder / "cat.png")
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(ROOT / "docs" / "training-log.csv", docs)
    words = ["--docs", str(docs), "--data", str(tmp_path / "sets"), "--models", "srnet-small-x4"]
    assert results.main([*words, "--validation", str(folder)]) == 0
    loaded = load_checkpoint("srnet-small-x4")
    mean = evaluate(loaded.network, find_pairs(folder, 4), 4, model="m", data="d").mean
    page = (docs / "results.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| **srnet-small-x4**"))
    assert f"| {mean.psnr_y:.2f} / {mean.ssim_y:.4f} |".replace(" 0.", " .") in row
    bicubic = next(line for line in page.splitlines() if "bicubic, measured here" in line)
    assert f"| {mean.bicubic_psnr_y:.2f} / " in bicubic
    stored = json.loads((docs / "results.json").read_text())[loaded.sha256]
    assert stored["validation"]["psnr_y"] == mean.psnr_y
    assert stored["validation JPEG"]["psnr_y"] < mean.psnr_y
    shrunk = evaluate(loaded.network, find_pairs(folder, 2), 2, model="m", data="d").mean
    assert stored["validation at x2"]["psnr_y"] == shrunk.psnr_y
    assert re.search(rf"\| x2 \| srnet-small-x4, shrunk \| .* {shrunk.psnr_y:.2f} / ", page)
    drawn = stored["drawn pictures"]
    assert f"| x4 | srnet-small-x4 | {drawn['psnr_y']:.2f} / " in page
    assert drawn["images"] == 8
    assert "<svg" in (docs / "training-log.svg").read_text()

    monkeypatch.setattr(results, "evaluate", None)  # a second run must not need it
    assert results.main([*words, "--validation", str(folder)]) == 0
    assert (docs / "results.md").read_text() == page


def test_patches_count_since_the_last_start_from_another_checkpoint():
    def row(patches, init_from=""):
        return {"patches": str(patches), "hours": "0.5", "init_from": init_from}

    assert results.seen([row(1000), row(2000)]) == ("3 K", "1.0")
    assert results.seen([row(1000), row(2000, "a"), row(4000)]) == ("6 K", "1.0")
    assert results.seen([]) == ("-", "-")


def test_published_rows_are_whole():
    for scale, rows in results.PUBLISHED.items():
        assert [row[0] for row in rows][:3] == ["bicubic", "IMDN", "SwinIR-light"], scale
        for name, _, _, values, source in rows:
            assert all(re.fullmatch(r"\d\d\.\d\d / \.\d{4}", value) for value in values), name
            assert "/" in source
            # harder sets and larger scales have lower scores
            psnr = [float(value.split()[0]) for value in values]
            assert psnr[0] > psnr[1] > psnr[2], name
            larger = {r[0]: r for r in results.PUBLISHED.get(scale + 1, [])}
            if name in larger:
                assert psnr[0] > float(larger[name][3][0].split()[0])


def test_the_readme_has_the_scores_of_what_ships():
    """Whoever publishes a checkpoint and forgets the README sees it here; other lines stay as they are."""
    text = (ROOT / "README.md").read_text("utf-8")
    measured = json.loads((ROOT / "docs" / "results.json").read_text("utf-8"))
    models = shipped_models()
    assert results.with_scores(text, models, measured) == text
    for model in models:
        scores = [f"{measured[model.sha256][s]['psnr_y']:.2f} (" for s in ("Set5", "BSD100")]
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{model.name}`")]
        assert all(f" | {score}" in row for score in scores)
    wrong = re.sub(r"\d\d\.\d\d \(", "11.11 (", text)
    assert wrong != text
    assert results.with_scores(wrong, models, measured) == text
