"""The study's script: its variants, its judgement, and that it writes its page."""

import json
import math
import sys

import pytest
import scaling_page
import scaling_study as study
import torch


def attention(net):
    return net.blocks[0].attention


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_plain_sqrt_is_the_projects_operator(mode):
    layer = attention(study.build(study.VARIANTS[0], 0))
    getattr(layer, mode)()
    x = torch.randn(2, 16, 24, 32, generator=torch.Generator().manual_seed(0))
    expected = super(type(layer), layer).forward(x)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=0)


def test_variants_differ_as_named():
    x = torch.randn(1, 16, 24, 24, generator=torch.Generator().manual_seed(0))
    by_name = {v.name: v for v in study.VARIANTS}

    def output(name, change=None):
        layer = attention(study.build(by_name[name], 0)).eval()
        if change:
            change(layer)
        with torch.no_grad():
            return layer(x)

    def times(factor):
        return lambda layer: layer.q.weight.data.mul_(factor)

    plain = output("sqrt(d_k)")
    torch.testing.assert_close(output("no scale"), output("sqrt(d_k)", times(4.0)))
    torch.testing.assert_close(
        output("exponent 0.8"), output("sqrt(d_k)", times(16**-0.3)), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(output("learned scalar"), plain)
    torch.testing.assert_close(output("learned slopes"), plain)
    torch.testing.assert_close(output("no scale, v over sqrt(d_k)") * 4, output("no scale"))
    for name in ("layer norm on the scores", "far keys over 2 sqrt(d_k)", "no slopes"):
        assert not torch.allclose(output(name), plain, atol=1e-4)


def test_a_difference_within_the_spread_is_none():

    def runs(*scores):
        return [{"curve": [{"psnr_y": s}]} for s in scores]

    def outcome(*scores):
        result = {"super_resolution": {"sqrt(d_k)": runs(30.0, 30.1, 30.2), "x": runs(*scores)}}
        return scaling_page.compare(result, "x")

    assert outcome(30.05, 30.15, 30.25).startswith("no difference (+0.05 dB")
    assert outcome(29.0, 29.1, 29.2) == "worse by 1.00 dB (spread 0.10)"
    assert outcome(31.0, 31.1, 31.2) == "better by 1.00 dB (spread 0.10)"
    assert outcome(29.0, 30.0, 31.0).startswith("no difference")
    assert scaling_page.compare({"super_resolution": {}}, "x") == "not run"


def test_quick_run_writes_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["scaling_study.py", "--out", str(tmp_path), "--quick"])
    threads = torch.get_num_threads()
    assert study.main() == 0
    page = (tmp_path / "attention-scaling.md").read_text(encoding="utf-8")
    folder = tmp_path / "attention-scaling"
    pictures = {p.name for p in folder.glob("*.svg")}
    assert len(pictures) == 4
    assert all(f"](attention-scaling/{name})" in page for name in pictures)
    measured = json.loads((folder / "measurements.json").read_text(encoding="utf-8"))
    for d, row in measured["monte_carlo"].items():
        assert row["std"] == pytest.approx(math.sqrt(int(d)), rel=0.1)
        assert row["mean_abs"] == pytest.approx(math.sqrt(2 / math.pi * int(d)), rel=0.1)
    monkeypatch.setattr(sys, "argv", ["scaling_study.py", "--out", str(tmp_path), "--reuse"])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert study.main() == 0
    assert (tmp_path / "attention-scaling.md").read_text(encoding="utf-8") == page
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    torch.set_num_threads(threads)
