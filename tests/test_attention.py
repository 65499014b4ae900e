"""The operator against a dense, literal version of its definition."""

import math

import pytest
import torch
from torch import Tensor

from srnet.attention import (
    SparseAttention,
    alibi_slopes,
    pixel_index,
    predict_relevance,
    select_top_k,
    sparse_attention,
)

SIZES = [(1, 1), (1, 9), (7, 5), (8, 8), (13, 17), (24, 19)]
# group, region, top_k: per query, per group, more keys than candidates
FORMS = [(1, 9, 5), (4, 12, 10), (8, 16, 64), (8, 32, 64), (2, 6, 100)]


def oracle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pq: Tensor,
    pk: Tensor,
    heads: int,
    form: tuple[int, int, int],
    m0: float,
):
    """Attention of one image by the definition: every query against every pixel, all but the chosen masked.

    q, k, v are (C, H, W), pq and pk (P, H, W).
    """
    g, r, top_k = form
    C, height, width = q.shape
    d = C // heads
    place = torch.cartesian_prod(torch.arange(height), torch.arange(width)).to(q.dtype)  # (HW, 2)
    out = torch.zeros_like(q)
    for i in range(height * width):
        y, x = int(place[i, 0]), int(place[i, 1])
        top, left = y // g * g, x // g * g
        mean = pq[:, top : top + g, left : left + g].mean((1, 2))
        corner = torch.tensor([top, left]) - (r - g) // 2
        inside = ((place >= corner) & (place < corner + r)).all(1)
        centre = torch.tensor([top, left], dtype=q.dtype) + (g - 1) / 2
        relevance = mean @ pk.flatten(1) / math.sqrt(pk.shape[0]) - m0 * (place - centre).norm(
            dim=1
        )
        relevance[~inside] = -math.inf
        keep = torch.full_like(relevance, -math.inf)
        chosen = relevance.topk(min(top_k, int(inside.sum()))).indices
        keep[chosen] = relevance[chosen]
        for h in range(heads):
            part = slice(h * d, (h + 1) * d)
            distance = (place - place[i]).norm(dim=1)
            logit = (
                q[part, y, x] @ k[part].flatten(1) / math.sqrt(d)
                + keep
                - 2.0 ** (-8 * (h + 1) / heads) * distance
            )
            out[part, y, x] = v[part].flatten(1) @ logit.softmax(0)
    return out


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pq: Tensor,
    pk: Tensor,
    heads: int,
    form: tuple[int, int, int],
    m0: float,
):
    g, r, top_k = form
    relevance, index = select_top_k(predict_relevance(pq, pk, g, r, m0), top_k)
    last = [t.permute(0, 2, 3, 1) for t in (q, k, v)]
    out = sparse_attention(
        last[0], torch.cat(last[1:], -1), relevance, index, alibi_slopes(heads), g, r
    )
    return out.permute(0, 3, 1, 2)


def tensors(
    batch: int, size: tuple[int, int], dtype: torch.dtype, C: int = 8, P: int = 3
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(size) + batch)
    return [torch.randn(batch, c, *size, generator=generator, dtype=dtype) for c in (C, C, C, P, P)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", SIZES)
def test_equals_the_dense_definition(size: tuple[int, int], form: tuple[int, int, int]) -> None:
    inputs = tensors(2, size, torch.float32)
    out = run(*inputs, 2, form, 0.1)
    trained = run(
        *(t.clone().requires_grad_() for t in inputs), 2, form, 0.1
    )  # takes another kernel
    torch.testing.assert_close(trained.detach(), out, atol=1e-5, rtol=0)
    for b in range(2):
        expected = oracle(*(t[b] for t in inputs), 2, form, 0.1)
        torch.testing.assert_close(out[b], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("form", [(1, 5, 4), (4, 8, 6), (4, 12, 200)])
def test_gradcheck(form: tuple[int, int, int]) -> None:
    inputs = [t.requires_grad_() for t in tensors(1, (5, 6), torch.float64, C=4, P=2)]
    assert torch.autograd.gradcheck(lambda *t: run(*t, 2, form, 0.1), inputs)


def test_selected_keys_lie_in_the_image_and_are_the_best() -> None:
    _, _, _, pq, pk = tensors(2, (13, 17), torch.float32)
    relevance = predict_relevance(pq, pk, 8, 16, 0.1)
    value, index = select_top_k(relevance, 30)
    assert torch.isfinite(value).all()  # every group of this image has at least 30 candidates
    pixel = pixel_index(index, 13, 17, 8, 16)
    assert pixel[0].min() >= 0
    assert pixel[0].max() < 13 * 17
    assert pixel[1].min() >= 13 * 17
    assert all(len(set(row.tolist())) == 30 for row in pixel.flatten(0, 2))
    best = relevance.sort(descending=True).values[..., :30]
    torch.testing.assert_close(value.sort(descending=True).values, best)


def test_scores_are_divided_by_the_root_of_head_dim() -> None:
    """Two keys, one query, equal distances: the weights give the scale away."""
    q = torch.zeros(1, 4, 1, 3)
    k, v = torch.zeros_like(q), torch.zeros_like(q)
    q[0, :, 0, 1] = 1.0
    k[0, :, 0, 0] = 1.0  # score 4 / sqrt(4) = 2 for the left key, 0 for the right one
    v[0, 0, 0, 0], v[0, 1, 0, 2] = 1.0, 1.0
    p = torch.zeros(1, 1, 1, 3)
    out = run(q, k, v, p, p, 1, (1, 3, 3), 0.0)[0, :, 0, 1]
    assert math.log(out[0] / out[1]) == pytest.approx(2.0, abs=1e-5)


def layer(**changes: int) -> SparseAttention:
    torch.manual_seed(0)
    settings = {"group_size": 8, "region_size": 32, "top_k": 64, "predictor_dim": 8} | changes
    module = SparseAttention(48, 3, 16, predictor_slope=0.1, **settings)
    torch.nn.init.normal_(module.out.weight, std=0.1)
    return module


def test_starts_at_zero_with_unit_variance_q_and_k() -> None:
    torch.manual_seed(1)
    module = SparseAttention(48, 3, 16, 8, 32, 64, 8, 0.1)
    x = torch.randn(2, 48, 24, 24) * 3 + torch.randn(48, 1, 1)
    assert module(x).abs().max() == 0
    normed = module.norm(x.permute(0, 2, 3, 1))
    for projected in (module.q(normed), module.kv(normed)[..., :48]):
        assert projected.square().mean().sqrt().item() == pytest.approx(1, abs=0.02)


def test_every_parameter_receives_a_gradient() -> None:
    module = layer(top_k=16)
    module(torch.randn(1, 48, 20, 20)).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0, name


def test_images_of_a_batch_do_not_mix() -> None:
    module = layer()
    x = torch.randn(3, 48, 17, 21)
    together = module(x)
    for i in range(3):
        torch.testing.assert_close(together[i : i + 1], module(x[i : i + 1]), atol=1e-5, rtol=0)


def test_moves_with_the_image_by_whole_groups() -> None:
    """Away from the border, shifting the input by a multiple of the group shifts the output."""
    module = layer(region_size=16)
    x = torch.randn(1, 48, 64, 64)
    moved = torch.roll(x, (8, 16), (2, 3))
    expected = torch.roll(module(x), (8, 16), (2, 3))
    inner = (..., slice(24, 56), slice(24, 56))
    torch.testing.assert_close(module(moved)[inner], expected[inner], atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [(1, 1), (9, 33)])
def test_bfloat16_stays_finite(size: tuple[int, int]) -> None:
    module = layer()
    with torch.autocast("cpu", torch.bfloat16):
        out = module(100 * torch.randn(1, 48, *size))
    assert torch.isfinite(out).all()


def test_inference_first_and_training_after_on_the_same_size() -> None:
    module = layer(
        region_size=14
    )  # a form that no other test uses: its tables are made here, in inference mode
    x = torch.randn(1, 48, 22, 26)
    with torch.inference_mode():
        expected = module(x).clone()
    out = module(x)
    out.sum().backward()
    torch.testing.assert_close(out.detach(), expected, atol=1e-5, rtol=0)
