"""The benchmark's own figures: operations, dense twin of the operator, medians, memory, ratios."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from srnet.attention import alibi_slopes, predict_relevance, sparse_attention
from srnet.bench import dense, peers, run
from srnet.bench import measure as timing
from srnet.bench.measure import Case, Result, count_flops, measure, network_case, roofline_case
from srnet.cli import main
from srnet.config import NetworkConfig
from srnet.network import SRNet

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")


def every_candidate(
    q: torch.Tensor, kv: torch.Tensor, heads: int, group: int, region: int
) -> torch.Tensor:
    """sparse_attention with all candidates as keys, at relevance 0."""
    height, width = q.shape[1:3]
    flat = torch.zeros(1, 1, height, width)
    outside = predict_relevance(flat, flat, group, region, 0.0)  # 0, and -inf outside the image
    index = torch.arange(region**2).expand_as(outside)
    outside, index = (t.repeat(q.shape[0], 1, 1, 1) for t in (outside, index))
    return sparse_attention(q, kv, outside, index, alibi_slopes(heads), group, region)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("size", "group", "region"), [((9, 14), 4, 10), ((16, 8), 8, 8), ((5, 3), 8, 16)]
)
def test_dense_is_sparse_with_all_keys(size, group, region, at_once):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, *size, 8, generator=generator)
    kv = torch.randn(2, *size, 16, generator=generator)
    expected = every_candidate(q, kv, 2, group, region)
    out = dense.dense_attention(q, kv, alibi_slopes(2), group, region, at_once=at_once)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


def test_layers_of_the_comparison_have_equal_weights():
    layers = dense.operator_layers()
    first = layers[dense.SPARSE]
    for layer in layers.values():
        torch.testing.assert_close(layer.kv.weight, first.kv.weight)
    for layer in layers.values():
        nn.init.eye_(layer.out.weight)
    x = torch.randn(1, 64, 16, 16, generator=torch.Generator().manual_seed(0))
    at_once, parts = (layers[name](x) for name in (dense.DENSE, dense.DENSE_PARTS))
    torch.testing.assert_close(at_once, parts, atol=1e-5, rtol=0)
    assert (layers[dense.SPARSE](x) - at_once).abs().max() > 1e-3


def test_operations_of_a_convolution_and_of_attention():
    conv = nn.Conv2d(5, 7, 3, padding=1)
    x = torch.randn(2, 5, 11, 13)
    assert count_flops(lambda: conv(x)) == 2 * 2 * 11 * 13 * 7 * 5 * 9
    q, k, mask = torch.randn(2, 3, 10, 16), torch.randn(2, 3, 20, 16), torch.zeros(10, 20)
    attend = nn.functional.scaled_dot_product_attention
    with torch.no_grad():
        assert count_flops(lambda: attend(q, k, k, mask)) == 2 * 2 * 2 * 3 * 10 * 20 * 16


def test_operations_of_a_network_follow_its_convolutions():
    network = SRNet(
        NetworkConfig(scale=2, embed_dim=8, num_blocks=2, attention_blocks=(), num_heads=1)
    )
    case = network_case("networks", "small", network, 2, 10, "fp32", 1, CPU)
    result = measure([roofline_case("fp32", 1, CPU), case], runs=1)[1]
    weights = 3 * 8 + 6 * 8 * 8 + 8 * 8 + 8 * 12
    skip = 3 * 4 * 25  # bicubic, 5x5 for each of 3 channels and 4 sub-pixels
    assert result.gflop * 1e9 == pytest.approx(2 * 100 * (9 * weights + skip))
    assert result.pixels == 400
    assert result.megapixels_per_second == pytest.approx(400e-6 / result.seconds)
    assert result.parameters == sum(p.numel() for p in network.parameters())


def plain_case(name, run, **changes):
    values = {"section": "networks", "height": 1, "width": 1, "pixels": 1} | changes
    return Case(name=name, run=run, **values)


def test_rounds_are_interleaved_and_turn_round(monkeypatch):
    order = []
    clock = iter(range(10_000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) * 2.0)
    cases = [roofline_case("fp32", 1, CPU)] + [
        plain_case(name, lambda _, n=name: order.append(n)) for name in "ab"
    ]
    results = measure(cases, runs=3, limit=100.0)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert [r.seconds for r in results] == [2.0] * 3
    assert [r.runs for r in results] == [3] * 3
    assert results[0].roofline_share == 1


def test_a_slow_case_stops_early(monkeypatch):
    calls = []
    clock = iter(range(10_000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) * 2.0)
    slow = plain_case("slow", lambda _: calls.append(1))
    results = measure([roofline_case("fp32", 1, CPU), slow], runs=5, limit=3.9)
    assert len(calls) == 1 + 2  # the first call, then two runs of two seconds
    assert results[1].runs == 2
    calls.clear()
    assert measure([roofline_case("fp32", 1, CPU), slow], runs=5, limit=1.0)[1].runs == 1
    assert len(calls) == 1


@pytest.mark.skipif(timing._memory("VmHWM") is None, reason="no /proc")
def test_memory_is_that_of_the_call():
    size = 40_000_000

    def take(_: object) -> None:
        torch.ones(size // 4).add_(1)

    for _ in range(2):  # an earlier, larger peak must not hide the next one
        result = measure([roofline_case("fp32", 1, CPU), plain_case("a", take)], runs=1)[1]
        if result.peak_bytes is None:
            pytest.skip("the system does not let the peak be reset")
        assert result.peak_bytes == pytest.approx(size, rel=0.1)
        torch.ones(size)


def test_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    measure([roofline_case("fp32", before + 1, CPU)], runs=1)
    assert torch.get_num_threads() == before


def result_of(section, name, seconds, direction="forward", peak=None, **changes):
    values = {"height": 8, "width": 8, "pixels": 16 * 64, "roofline_share": 0.5} | changes
    return Result(
        section=section,
        name=name,
        seconds=seconds,
        direction=direction,
        peak_bytes=peak,
        runs=1,
        gflop=1.0,
        **values,
    )


def test_ratios():
    results = [
        result_of("operator", dense.SPARSE, 2.0, peak=10),
        result_of("operator", dense.DENSE, 20.0, peak=100),
        result_of("operator", dense.DENSE_PARTS, 12.0, peak=40),
        result_of("operator", dense.WINDOW, 1.6),
        result_of("operator", dense.SPARSE, 3.0, "backward"),
        result_of("operator", dense.DENSE, 12.0, "backward"),
        result_of("networks", "srnet-small-x2", 1.0, pixels=4 * 64),
        result_of("networks", "srnet-small-x4", 4.0),
        result_of("peers", "SPAN-28", 2.0),
        result_of("growth", "operator", 1.0, pixels=64),
        result_of("growth", "operator", 5.0, height=16, width=16, pixels=256),
    ]
    assert run.ratios(results) == pytest.approx(
        {
            "time of dense 32x32 (the faster) / operator": 6.0,
            "time of operator / dense 8x8 windows": 1.25,
            "backward of dense 32x32 (the faster) / operator": 4.0,
            "memory of operator / dense 32x32": 0.1,
            "memory of operator / dense 32x32 by groups": 0.25,
            "time of small / SPAN-28": 2.0,
            "small's share of the roofline": 0.5,
            "MP/s of operator at 16 / at 8": 0.8,
        }
    )


# Parameters that the authors publish for x4, thousands. OmniSR's paper says 792; its code has 805.
PUBLISHED = {
    "SPAN-28": 151,
    "SPAN-48": 426,
    "SAFMN": 240,
    "OmniSR": 805,
    "SwinIR-light": 930,
    "CRAFT": 753,
    "DAT-light": 573,
    "ATD-light": 769,
    "HAT-S": 9621,
}


def test_peers_have_the_published_shapes():
    pytest.importorskip("spandrel")
    built = peers.built(peers.peers())
    count = {p.name: round(sum(w.numel() for w in m.parameters()) / 1e3) for p, m in built}
    assert count == PUBLISHED
    fastest = next(m for p, m in built if p.name == "SPAN-28")
    assert fastest.eval()(torch.rand(1, 3, 16, 16)).shape == (1, 3, 64, 64)


def test_span_with_merged_branches_computes_the_same():
    pytest.importorskip("spandrel")
    from spandrel.architectures.SPAN import SPAN

    merged = next(p for p in peers.peers() if p.name == "SPAN-28")
    x = torch.rand(1, 3, 12, 12)
    torch.manual_seed(3)
    plain = SPAN(num_in_ch=3, num_out_ch=3, feature_channels=28, upscale=4).eval()
    torch.manual_seed(3)
    torch.testing.assert_close(merged.build()(x), plain(x), atol=1e-5, rtol=1e-5)


def test_without_spandrel_the_rest_is_measured(monkeypatch):
    def missing() -> None:
        raise ImportError("no spandrel")

    monkeypatch.setattr(run, "peers", missing)
    monkeypatch.setattr(run, "has_native_bf16", lambda _: False)
    found = run.bench({}, sections=["peers"], precisions=["fp32", "bf16"], threads=[1], runs=1)
    assert [r.section for r in found.results] == ["roofline"]
    assert found.results[0].precision == "fp32"
    assert len(found.notes) == 2
    assert math.isfinite(found.results[0].gflop_per_second)


def test_command_prints_and_writes(tmp_path, capsys):
    words = [
        "bench",
        "configs/tiny_x4.yaml",
        "network.num_blocks=2",
        "network.attention_blocks=[1]",
    ]
    words[1] = str(ROOT / words[1])
    words += ["--only", "networks", "--only", "growth", "--quick", "--runs", "1", "--size", "16"]
    words += ["--sizes", "8", "16", "--threads", "1", "--precision", "fp32"]
    assert (
        main([*words, "--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]) == 0
    )
    report = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    names = {r["name"] for r in report["results"] if r["section"] == "networks"}
    assert names == {"tiny_x4 num_blocks=2 attention_blocks=[1]"}
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("ratios, fp32, 1 thread: tiny's share of the roofline 0.")


def test_an_override_needs_a_configuration(capsys):
    assert main(["bench", "network.top_k=3"]) == 2
    assert "give a .yaml file first" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "bench", lambda *_, **__: pytest.fail("measured for nothing"))
    (tmp_path / "file").write_text("in the way")
    words = ["bench", str(ROOT / "configs" / "tiny_x4.yaml"), "--json"]
    assert main([*words, str(tmp_path / "file" / "a.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err
