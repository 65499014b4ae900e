"""Measurements against a slow plain version, and planted faults against verdicts."""

import math

import pytest
import torch

import srnet.attention
from srnet.config import NetworkConfig
from srnet.diagnostics import attention_layers, examine
from srnet.network import SRNet
from srnet.verdicts import findings, saturation_warning

SEEDS = (0, 1, 2)
# head_dim 16, top_k 36: 1, 1/16, 1/6 and 1/4 are four different scales
SHAPE = {
    "embed_dim": 32,
    "num_heads": 2,
    "num_blocks": 2,
    "convs_per_block": 1,
    "attention_blocks": (1,),
    "group_size": 8,
    "region_size": 24,
    "top_k": 36,
}


def network(seed=0, **changes):
    torch.manual_seed(seed)
    return SRNet(NetworkConfig(scale=2, **(SHAPE | changes)))


@pytest.fixture(scope="module")
def lr(photo_tensor):
    return photo_tensor("astronaut")[:, :, 96:144, 200:248].contiguous()


@pytest.fixture
def operator_times(monkeypatch):
    """A function: plants an operator whose scores are multiplied by a factor."""
    original = srnet.attention.sparse_attention

    def plant(factor):
        monkeypatch.setattr(
            srnet.attention,
            "sparse_attention",
            lambda q, *rest, **named: original(q * factor, *rest, **named),
        )

    return plant


def faults(net, image, *, fresh=True):
    """Codes of faults and warnings, each with the layers it names."""
    found = findings([e.statistics for e in examine(net, image)], fresh=fresh)
    return sorted({f.code for f in found if f.severity != "note"}), found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fresh_network_is_healthy(lr, seed):
    net = network(seed)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert faults(net, lr)[0] == []
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("applied", "words"),
    [
        (1.0, "the scale is missing"),
        (1 / 16, "divided by head_dim instead of its root"),
        (1 / 6, "divided by sqrt(top_k) instead of sqrt(head_dim)"),
        (0.4, "1.60 times what they should be"),
    ],
)
def test_a_wrong_scale_is_named(lr, operator_times, seed, applied, words):
    operator_times(applied * 4)
    net = network(seed)
    codes, found = faults(net, lr)
    assert codes == ["scale"]
    assert all(words in f.text for f in found if f.code == "scale")
    assert [e.statistics.scale for e in examine(net, lr)] == pytest.approx([applied], rel=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("plant", ["q 1.3", "k 0.7", "default"])
def test_a_mis_scaled_initialisation_is_named(lr, seed, plant):
    net = network(seed)
    with torch.no_grad():
        for layer in attention_layers(net).values():
            if plant == "q 1.3":
                layer.q.weight.mul_(1.3)
            elif plant == "k 0.7":
                layer.kv.weight[:32].mul_(0.7)
            else:
                layer.q.reset_parameters()
                layer.kv.reset_parameters()
    assert faults(net, lr)[0] == ["initialisation"]
    # unit variance is a matter of initialisation: training may change it
    assert "initialisation" not in faults(net, lr, fresh=False)[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("plant", ["zero", "detached"])
def test_a_dead_predictor_is_named(lr, monkeypatch, seed, plant):
    net = network(seed)
    if plant == "zero":
        for layer in attention_layers(net).values():
            torch.nn.init.zeros_(layer.predictor.weight)
    else:
        original = srnet.attention.predict_relevance
        monkeypatch.setattr(
            srnet.attention, "predict_relevance", lambda *args: original(*args).detach()
        )
    codes, found = faults(net, lr)
    assert codes == ["predictor-dead"]
    assert found[0].layer == "blocks.1.attention"


def test_too_strong_locality_is_named(lr):
    assert faults(network(predictor_slope=5.0), lr)[0] == ["locality"]


def test_another_operator_is_named(lr, monkeypatch):
    original = srnet.attention.sparse_attention
    monkeypatch.setattr(
        srnet.attention,
        "sparse_attention",
        lambda q, kv, *rest: original(q, kv * 1.1, *rest),
    )
    assert faults(network(), lr)[0] == ["operator"]


def test_saturation_is_named_with_its_cause(lr, operator_times):
    net = network()
    assert saturation_warning([e.statistics for e in examine(net, lr)]) is None
    with torch.no_grad():
        for layer in attention_layers(net).values():
            layer.q.weight.mul_(300.0)
            layer.out.weight.normal_(std=0.1)
    codes, found = faults(net, lr, fresh=False)
    assert "saturated" in codes
    assert any("q and k have grown" in f.text for f in found)
    warning = saturation_warning([e.statistics for e in examine(net, lr)])
    assert warning.startswith("attention saturates in ")
    assert "\n" not in warning
    operator_times(4.0)
    _, found = faults(net, lr, fresh=False)
    assert any("the scale is 1.000 instead of 0.250" in f.text for f in found)


def test_a_trained_layer_that_adds_nothing_is_named(lr):
    assert "idle" in faults(network(), lr, fresh=False)[0]


@pytest.mark.parametrize("D", [16, 9], ids=["C / H", "of its own"])
def test_statistics_equal_a_plain_count(lr, D):
    """One layer, 12 x 11 pixels, so that groups are cut by the border; every number query by query."""
    net = network(attention_blocks=(0,), top_k=60, head_dim=D)
    image = lr[:, :, :12, :11]
    s = examine(net, image)[0].statistics
    layer = attention_layers(net)["blocks.0.attention"]
    kept = {}
    layer.register_forward_pre_hook(lambda m, i: kept.update(x=i[0]))
    with torch.no_grad():
        net(image)
        normed = layer.norm(kept["x"].permute(0, 2, 3, 1))
        q = layer.q(normed)[0].reshape(12, 11, 2, D)
        k, v = (t.reshape(12, 11, 2, D) for t in layer.kv(normed)[0].chunk(2, -1))
        relevance, index = layer.select(normed)
        pq, pk = (t.reshape(12, 11, 8) for t in layer.predictor(normed)[0].chunk(2, -1))
    scores, largest, entropies, distances = [], [], [], []
    selected = set()
    hits = nearest_hits = oracle_size = 0
    names = ("selected", "oracle", "mean_query", "nearest", "chance", "selected_of_own")
    held = dict.fromkeys(names, 0.0)
    for gy in range(2):
        for gx in range(2):
            y0, x0 = gy * 8, gx * 8
            keys = []
            for j, value in zip(
                index[0, gy, gx].tolist(), relevance[0, gy, gx].tolist(), strict=True
            ):
                if math.isfinite(value):
                    keys.append((y0 - 8 + j // 24, x0 - 8 + j % 24, value))
            selected |= {key[:2] for key in keys}
            pixels = [
                (y, x) for y in range(y0, min(y0 + 8, 12)) for x in range(x0, min(x0 + 8, 11))
            ]
            square = [
                (y, x)
                for y in range(max(0, y0 - 8), min(12, y0 + 16))
                for x in range(max(0, x0 - 8), min(11, x0 + 16))
            ]
            mass, own = torch.zeros(len(square)), torch.zeros(len(square))
            group_pq = torch.stack([pq[place] for place in pixels]).mean(0)
            middle = (y0 + 3.5, x0 + 3.5)
            relevance_of = torch.tensor(
                [
                    float(group_pq @ pk[place]) / math.sqrt(8) - 0.1 * math.dist(place, middle)
                    for place in square
                ]
            )
            for y, x in pixels:
                for h in range(2):
                    slope = 2.0 ** (-4 * (h + 1))
                    raw = torch.tensor(
                        [float(q[y, x, h] @ k[a, b, h]) * D**-0.5 for a, b, _ in keys]
                    )
                    far = torch.tensor([math.dist((y, x), (a, b)) for a, b, _ in keys])
                    p = (raw + torch.tensor([c for *_, c in keys]) - slope * far).softmax(0)
                    if h == 0:
                        scores += raw.tolist()
                        largest.append(float(p.max()))
                        entropies.append(float(-(p * p.log()).sum()) / math.log(len(keys)))
                        distances.append(float((p * far).sum()))
                    every = torch.stack([q[y, x, h] @ k[a, b, h] * D**-0.5 for a, b in square])
                    away = torch.tensor([math.dist((y, x), place) for place in square])
                    mass += (every - slope * away).softmax(0)
                    own += (every - slope * away + relevance_of).softmax(0)
            oracle = {square[i] for i in mass.topk(min(60, len(square))).indices.tolist()}
            oracle_size += len(oracle)
            hits += len(oracle & {key[:2] for key in keys})
            ordered = sorted(square, key=lambda place: math.dist(place, middle))
            nearest_hits += len(oracle & set(ordered[:60]))
            chosen = [square.index(key[:2]) for key in keys]
            held["selected"] += float(mass[chosen].sum())
            held["selected_of_own"] += float(own[chosen].sum())
            held["oracle"] += float(mass.topk(min(60, len(square))).values.sum())
            held["nearest"] += float(mass[[square.index(p) for p in ordered[:60]]].sum())
            group_q = torch.stack([q[place][0] for place in pixels]).mean(0)
            liking = [
                float(group_q @ k[place][0]) * D**-0.5 - 2.0**-4 * math.dist(place, middle)
                for place in square
            ]
            held["mean_query"] += float(
                mass[torch.tensor(liking).topk(min(60, len(square))).indices].sum()
            )
            held["chance"] += float(mass.sum()) * min(60, len(square)) / len(square)
    head = s.heads[0]
    assert s.scale == pytest.approx(D**-0.5, rel=1e-3)
    assert s.scale_misfit < 1e-4
    assert head.score_std == pytest.approx(float(torch.tensor(scores).std()), rel=1e-3)
    assert head.largest_probability == pytest.approx(sum(largest) / 132, rel=1e-3)
    assert head.entropy == pytest.approx(sum(entropies) / 132, rel=1e-3)
    assert head.distance == pytest.approx(sum(distances) / 132, rel=1e-3)
    assert head.q_std == pytest.approx(float(q[:, :, 0].std()), rel=1e-3)
    assert head.v_mean == pytest.approx(float(v[:, :, 0].mean()), abs=1e-5)
    assert s.never_selected == pytest.approx(1 - len(selected) / 132)
    assert s.recall == pytest.approx(hits / oracle_size, abs=0.01)  # ties of the oracle
    assert s.recall_nearest == pytest.approx(
        nearest_hits / oracle_size, abs=0.03
    )  # ties of distance
    queries = 2 * 132  # each of two heads gives a mass of 1
    for name, value in held.items():
        tolerance = 0.02 if name == "nearest" else 1e-4  # ties of distance
        assert getattr(s.mass, name) == pytest.approx(value / queries, abs=tolerance), name
    others = (s.mass.selected, s.mass.mean_query, s.mass.nearest, s.mass.chance)
    assert max(others) < s.mass.oracle < 1


def test_histograms_and_attention_are_shares(lr):
    for e in examine(network(), lr[:, :, :30, :21]):
        for _, _, shares in e.maps.histograms.values():
            torch.testing.assert_close(shares.sum(1), torch.ones(2))
        torch.testing.assert_close(e.maps.attention.sum(-1), torch.ones(4, 3, 2))
        assert e.maps.row.max() < 30
        assert e.maps.column.max() < 21


def test_gradients_are_those_of_finite_differences(lr):
    net = network(attention_blocks=(0,)).double()
    image = lr[:, :, :16, :16].double()
    layer = attention_layers(net)["blocks.0.attention"]
    kept = {}
    layer.register_forward_pre_hook(lambda m, i: kept.update(x=i[0]))
    layer.out.register_forward_pre_hook(lambda m, i: kept.update(out=i[0]))
    measured = examine(net, image)[0].statistics.gradients
    with torch.no_grad():
        net(image)
        x, size = kept["x"], float(kept["out"].norm())
        direction = torch.randn(
            kept["out"].shape, generator=torch.Generator().manual_seed(0)
        ).double()
        weight = layer.q.weight
        gradient = torch.zeros(8)
        for i in range(8):  # the first row; compared through a gradient by autograd below
            values = []
            for sign in (1, -1):
                weight[0, i] += sign * 1e-5
                layer(x)
                values.append(float((kept["out"] * direction).sum()))
                weight[0, i] -= sign * 1e-5
            gradient[i] = (values[0] - values[1]) / 2e-5
    layer(x)
    exact = torch.autograd.grad((kept["out"] * direction).sum(), layer.q.weight)[0]
    torch.testing.assert_close(exact[0, :8].float(), gradient, rtol=1e-3, atol=1e-4)
    assert measured["q"] == pytest.approx(
        float(exact.norm()) * float(weight.detach().norm()) / size, rel=1e-3
    )


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (8, 8), (9, 40)])
def test_any_image_size(lr, size):
    for e in examine(network(), lr[:, :, : size[0], : size[1]]):
        s = e.statistics
        numbers = [s.q_rms, s.recall, s.recall_chance, s.never_selected, *s.gradients.values()]
        numbers += [h.entropy for h in s.heads] + [h.score_std for h in s.heads]
        assert all(math.isfinite(n) for n in numbers)
