"""Claims, tables and plots of scaling_study.py: judges its measurements and writes them down."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, Final

SCALE: Final = 2
SQRT_D = "sqrt(d_k)"
BASE = {
    "k 4, sqrt(k)": "k 4, sqrt(d_k)",
    "no scale, d_k 64": "sqrt(d_k), d_k 64",
    "constant 10, d_k 64": "sqrt(d_k), d_k 64",
}
"""What a variant is compared with, where it is not plain sqrt(d_k)."""


def final_scores(runs: list[dict[str, Any]]) -> list[float]:
    """PSNR-Y at the end of each seed's run."""
    return [run["curve"][-1]["psnr_y"] for run in runs]


def spread_of(values: list[float]) -> float:
    """Standard deviation over seeds."""
    return statistics.stdev(values) if len(values) > 1 else math.inf


def compare(result: dict[str, Any], name: str) -> str:
    """A variant against its base: a difference within the seeds' spread is none."""
    base = BASE.get(name, SQRT_D)
    runs = result["super_resolution"]
    if name not in runs or base not in runs:
        return "not run"
    a, b = final_scores(runs[name]), final_scores(runs[base])
    difference = statistics.fmean(a) - statistics.fmean(b)
    spread = max(spread_of(a), spread_of(b))
    if abs(difference) <= spread:
        return f"no difference ({difference:+.2f} dB, seeds' spread {spread:.2f})"
    return f"{'better' if difference > 0 else 'worse'} by {abs(difference):.2f} dB (spread {spread:.2f})"


def attention_counts(result: dict[str, Any]) -> bool:
    """Whether the network without attention is worse, so that a scale could matter to PSNR at all."""
    return compare(result, "no attention").startswith("worse")


def claims(r: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Claim, our figure, verdict."""
    rows = []

    def near(ours: float, claimed: float, share: float = 0.05) -> bool:
        return abs(ours / claimed - 1) <= share

    def judge(*passed: bool) -> str:
        return "holds" if all(passed) else "holds in part" if any(passed) else "not reproduced"

    stds = [r["monte_carlo"][d]["std"] for d in ("16", "32", "64", "128")]
    claimed = (3.98, 5.64, 7.97, 11.26)
    rows.append(
        (
            "Scores have standard deviation 3.98, 5.64, 7.97, 11.26 at d_k 16, 32, 64, 128 (10 000 samples)",
            ", ".join(f"{s:.2f}" for s in stds),
            judge(*map(near, stds, claimed)),
        )
    )
    size = r["monte_carlo"]["64"]["mean_abs"]
    rows.append(
        (
            "At d_k 64 the mean absolute score is 8.2 unscaled and 1.03 scaled",
            f"{size:.2f} and {size / 8:.2f}; sqrt(2/pi) of the standard deviation, which is what 8.2 and 1.03 resemble",
            judge(near(size, 8.2), near(size / 8, 1.03)),
        )
    )
    u, s = r["sequence_of_ten"]["unscaled"], r["sequence_of_ten"]["scaled"]
    rows.append(
        (
            "Sequence 10, d_model 128, d_k 32, Xavier: largest and second probability 0.92 and 0.03 unscaled, "
            "0.45 and 0.22 scaled",
            f"{u['first']:.2f} and {u['second']:.2f} unscaled, {s['first']:.2f} and {s['second']:.2f} scaled",
            judge(
                abs(u["first"] - 0.92) < 0.03,
                abs(u["second"] - 0.03) < 0.03,
                abs(s["first"] - 0.45) < 0.03,
                abs(s["second"] - 0.22) < 0.03,
            ),
        )
    )
    rows.append(
        (
            "There, 95 % of unscaled scores lie within 12.5",
            f"{u['within_12.5']:.0%}",
            judge(abs(u["within_12.5"] - 0.95) < 0.02),
        )
    )
    ratio = u["gradient"] / s["gradient"]
    end_u, end_s = (
        statistics.fmean(run[-1]["gradient"] for run in r["toy_training"][n])
        for n in ("unscaled", "scaled")
    )
    rows.append(
        (
            "There, the gradient to the projections is a thousand times smaller unscaled (2.1e-5 against 1.8e-2)",
            f"{u['gradient']:.1e} against {s['gradient']:.1e} at initialisation ({ratio:.1f} times as large); "
            f"{end_u:.1e} against {end_s:.1e} after {r['budget']['toy_steps']} steps of training",
            judge(ratio < 0.01, end_u / end_s < 0.01),
        )
    )
    xavier = {row["d_k"]: row for row in r["initial_variance"] if row["init"] == "Xavier"}
    rows.append(
        (
            "There, Xavier gives q and k a variance of 1.6, not 1",
            f"{xavier[32]['q_variance']:.2f}",
            judge(near(xavier[32]["q_variance"], 1.6)),
        )
    )
    rows.append(
        (
            "Xavier and 1/sqrt(d_k) give scores of standard deviation 1",
            ", ".join(f"{row['score_std']:.2f} at d_k {d}" for d, row in xavier.items())
            + "; it is 2 d_model / (d_model + d_k), 1 only where d_k = d_model",
            judge(*(near(row["score_std"], 1) for row in xavier.values())),
        )
    )
    eight = next(x for x in r["kept_keys"] if x["d_k"] == 32 and x["k"] == 8)
    rows.append(
        (
            "Dividing by sqrt(k) = sqrt(8) instead of sqrt(d_k) scales too much",
            f"at d_k 32 it scales less: largest probability {eight['random_k'][0]:.2f} against "
            f"{eight['random_d'][0]:.2f} with sqrt(d_k)",
            judge(eight["random_k"][0] < eight["random_d"][0]),
        )
    )
    psnr = [
        ("sqrt(k) at k 4, below d_k 16, costs PSNR", "k 4, sqrt(k)"),
        ("sqrt(k) at k 64, above d_k 16, costs PSNR", "k 64, sqrt(k)"),
        ("No scale costs PSNR at d_k 16", "no scale"),
        ("No scale costs PSNR at d_k 64", "no scale, d_k 64"),
        ("Layer norm on the scores costs PSNR", "layer norm on the scores"),
        ("A learned scalar costs PSNR", "learned scalar"),
        ("No scale with v over sqrt(d_k) costs PSNR", "no scale, v over sqrt(d_k)"),
        ("Another scale for far keys costs PSNR", "far keys over 2 sqrt(d_k)"),
        ("Constant 10 costs PSNR at d_k 16", "constant 10, d_k 16"),
        ("Constant 10 costs PSNR at d_k 64", "constant 10, d_k 64"),
        ("Exponent 0.6 costs PSNR", "exponent 0.6"),
        ("Exponent 0.8 costs PSNR", "exponent 0.8"),
        ("Leaving the slopes out costs PSNR", "no slopes"),
        ("Fixed slopes cost PSNR against learned ones", "learned slopes"),
    ]
    for text, name in psnr:
        outcome = compare(r, name)
        wanted = "better" if name == "learned slopes" else "worse"
        verdict = "not run" if outcome == "not run" else judge(outcome.startswith(wanted))
        if outcome.startswith("no difference") and not attention_counts(r):
            verdict = "not reproduced, undecided"
        rows.append((text, outcome, verdict))
    return rows


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)


def steps_to(run: dict[str, Any], psnr: float) -> str:
    """First measured step at which a run reaches a PSNR-Y."""
    reached = [point["step"] for point in run["curve"] if point["psnr_y"] >= psnr]
    return str(reached[0]) if reached else "-"


def page(r: dict[str, Any]) -> str:
    """The document."""
    budget, runs = r["budget"], r["super_resolution"]
    sweep = r["gradient_sweep"]
    one = next(row for row in sweep if row["spread"] == 1)
    gone = next((x for x in sweep if x["score_median"] < one["score_median"] / 1000), None)
    last = sweep[-1]
    toy = {
        n: {
            k: [run[i][k] for run in v for i in (-1,)]
            for k in ("loss", "gradient", "largest", "spread")
        }
        for n, v in r["toy_training"].items()
    }
    start = {
        n: statistics.fmean(run[0]["gradient"] for run in v) for n, v in r["toy_training"].items()
    }

    def mean(values: list[float]) -> float:
        return statistics.fmean(values)

    goal = round(mean(final_scores(runs[SQRT_D])) - 0.3, 1) if SQRT_D in runs else 0.0
    unscaled = "; ".join(
        f"at {d} a query without scale ends up giving its first key "
        f"{mean([run['curve'][-1]['largest'] for run in runs[name]]):.0%} of its attention (scores' standard deviation "
        f"{mean([run['curve'][-1]['spread'] for run in runs[name]]):.1f})"
        for d, name in (("d_k 16", "no scale"), ("d_k 64", "no scale, d_k 64"))
        if name in runs
    )
    sr_rows = []
    for name, several in runs.items():
        end = final_scores(several)
        points = [run["curve"][-1] for run in several]
        largest = [p["largest"] for p in points if p["largest"] is not None]
        spread = [p["spread"] for p in points if p["spread"] is not None]
        losses = [p["loss"] for p in points if p["loss"] is not None]
        sr_rows.append(
            [
                name,
                f"{mean(end):.2f} ± {spread_of(end):.2f}",
                f"{mean(losses):.4f}",
                ", ".join(steps_to(run, goal) for run in several),
                f"{mean(largest):.2f}" if largest else "",
                f"{mean(spread):.2f}" if spread else "",
                f"{sum(run['diverged'] for run in several)} of {len(several)}",
                "" if name in (SQRT_D, *BASE.values()) else compare(r, name),
            ]
        )
    claim_table = table(["claim", "our figure", "verdict"], [list(row) for row in claims(r)])
    kept = table(
        [
            "d_k",
            "k",
            "random keys, / sqrt(k)",
            "random keys, / sqrt(d_k)",
            "best keys, / sqrt(k)",
            "best keys, / sqrt(d_k)",
        ],
        [
            [
                str(x["d_k"]),
                str(x["k"]),
                *(
                    f"{x[c][0]:.2f}, {x[c][1]:.0%}"
                    for c in ("random_k", "random_d", "best_k", "best_d")
                ),
            ]
            for x in r["kept_keys"]
        ],
    )
    variance = table(
        ["initialisation", "d_k", "variance of q", "standard deviation of scores / sqrt(d_k)"],
        [
            [x["init"], str(x["d_k"]), f"{x['q_variance']:.2f}", f"{x['score_std']:.2f}"]
            for x in r["initial_variance"]
        ],
    )
    vanish = (
        f"At a standard deviation of {gone['spread']:g} the median query's gradient is below a thousandth of that at 1"
        if gone
        else "The median query's gradient stays above a thousandth of that at 1"
    )
    state = (
        "This is one run"
        if r.get("complete")
        else "The run was stopped early; what it did not reach says so"
    )
    return f"""# Dividing attention scores by sqrt(d_k): what holds

Written by `python scripts/scaling_study.py` together with its plots and `measurements.json` in `attention-scaling/`;
every figure here comes from that command. {state}: torch {r["torch"]}, one CPU core, {
        r["seconds"] / 60:.0f} minutes.

{claim_table}

A difference of PSNR smaller than the standard deviation over the {
        budget["seeds"]
    } seeds (the larger of the two) is called no
difference. With {budget["seeds"]} seeds and {
        budget["steps"]
    } steps this study sees large effects only; "not reproduced" means that
none was seen, not that there is none in longer training, and "undecided" that the network without attention is no
worse, so that this budget cannot tell one scale from another.

## The scores

q.k of independent q and k with unit variance has standard deviation sqrt(d_k), however many keys are kept afterwards.
The usual derivation goes on to say that Xavier initialisation provides the unit variance. It does not: its weights have
variance 2 / (d_model + d_k), so that q has variance 2 d_model / (d_model + d_k) for a unit-variance input, and the
scaled scores have that standard deviation. What does provide it for any d_k is weights of variance 1 / d_model, or
orthogonal rows, on normalised features, which is what srnet does. d_model is 128 here:

{variance}

## When the gradient vanishes, and when not

Self-attention on sequences of 10 random inputs, d_model 128, d_k 32, mean squared error against random targets. The
sweep multiplies the scores of unit-variance q and k.

![Gradient against the scores' standard deviation](attention-scaling/gradient.svg)

Saturation acts on the gradient to the scores. {vanish}. Its mean falls only to {
        last["score_mean"] / one["score_mean"]:.2f} of it even at
{
        last[
            "spread"
        ]:g}, since a few queries sit on the border between two keys and keep theirs. The gradient to W_q contains the
multiplier itself and is carried by those few, so it grows ({one["weight"]:.1e} at 1, {
        last["weight"]:.1e} at {last["spread"]:g}): at
initialisation, leaving the scale out makes the gradient of the projections larger, noisier, and not smaller. A network
may measure a healthy gradient norm while most of its queries get none.

Trained for {budget["toy_steps"]} steps to imitate another (scaled) attention, Adam 3e-3, {
        budget["toy_seeds"]
    } seeds:

![Loss and gradient in training](attention-scaling/toy.svg)

{
        table(
            [
                "",
                "loss at the end",
                "gradient of W_q at the start",
                "at the end",
                "largest probability at the end",
                "score std at the end",
            ],
            [
                [
                    n,
                    f"{mean(t['loss']):.3f} ± {spread_of(t['loss']):.3f}",
                    f"{start[n]:.1e}",
                    f"{mean(t['gradient']):.1e}",
                    f"{mean(t['largest']):.2f}",
                    f"{mean(t['spread']):.2f}",
                ]
                for n, t in toy.items()
            ],
        )
    }

Largest probability and loss tell the two apart, the norm of the gradient does not. The teacher is scaled, which suits
the scaled pupil; the unscaled one could express the same with smaller weights.

## Keeping k keys, and sqrt(k)

Of 256 keys, k are kept, at random or the best; largest probability and entropy as a share of its maximum. Dividing by
sqrt(k) scales less than sqrt(d_k) where k < d_k, more where k > d_k, and ties the sharpness to the number of keys kept.

{kept}

## In a super-resolution network

srnet's network, x{
        SCALE
    }, two blocks of one 3x3 convolution, each with attention (8x8 groups, 24x24 candidates, 64 keys unless
said, one head), 16 channels, d_k 16 (64 channels and d_k 64 where said); AdamW 2e-3 with rise and fall, L1, 4 crops of
24x24 a step, {budget["steps"]} steps, {
        budget["seeds"]
    } seeds with equal crops for all variants. The attention's output projection does not start
at zero here, so that the attention takes part from the first step. Trained on three photographs of scikit-image and
scikit-learn, PSNR-Y on parts of two others. Steps: first measurement (every {
        budget["every"]
    } steps) at {goal} dB or more, per seed.
Diverged: not finite, or 0.5 dB below the start.

![PSNR-Y of each variant](attention-scaling/psnr.svg)

{
        table(
            [
                "variant",
                "PSNR-Y, dB",
                "loss",
                "steps",
                "largest probability",
                "score std",
                "diverged",
                "against sqrt(d_k)",
            ],
            sr_rows,
        )
    }

![Loss, PSNR-Y and saturation over training](attention-scaling/training.svg)

The row without attention shows how much there is to lose: where it does not lag behind, attention of any scale has not
yet earned anything, and no scale can be told from another by PSNR; a variant that only mutes the attention (v over
sqrt(d_k)) can then come out ahead. Neighbouring features of a photograph resemble each other, so that scores start
below unit spread: {unscaled}.
That is a property of this setting, not a licence: `srnet diagnose` shows where a given network stands.
"""


def plots(r: dict[str, Any], folder: Path) -> None:
    """Writes the pictures."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # the same file for the same numbers
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "srnet",
            "svg.fonttype": "none",
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "font.size": 9,
        }
    )

    def save(figure: Any, name: str) -> None:
        figure.savefig(folder / name, metadata={"Date": None})
        pyplot.close(figure)
        text = (folder / name).read_text(encoding="utf-8")
        lines = [line.rstrip() for line in text.splitlines()]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    sweep = r["gradient_sweep"]
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3))
    x = [row["spread"] for row in sweep]
    for axis, part, title in (
        (axes[0], "score", "gradient to a query's scores"),
        (axes[1], "weight", "gradient to W_q"),
    ):
        for key, label in (
            (f"{part}_mean" if part == "score" else part, "mean"),
            (f"{part}_median", "median"),
        ):
            axis.loglog(x, [max(row[key], 1e-12) for row in sweep], marker="o", ms=3, label=label)
        axis.set(title=title, xlabel="standard deviation of the scores")
        axis.axvline(32**0.5, color="grey", lw=0.8, ls=":")
        axis.legend(frameon=False, title="dotted: unscaled")
    axes[0].set_ylim(1e-9, 0.1)
    save(figure, "gradient.svg")

    figure, axes = pyplot.subplots(1, 3, figsize=(9, 2.8))
    for axis, key, title in zip(
        axes,
        ("loss", "gradient", "largest"),
        ("loss", "gradient to W_q", "largest probability"),
        strict=True,
    ):
        for colour, (name, several) in zip(("C3", "C0"), r["toy_training"].items(), strict=True):
            for i, run in enumerate(several):
                axis.plot(
                    [p["step"] for p in run],
                    [p[key] for p in run],
                    color=colour,
                    lw=1,
                    label=name if i == 0 else None,
                )
        axis.set(title=title, xlabel="step")
        if key != "largest":
            axis.set_yscale("log")
    axes[0].legend(frameon=False)
    save(figure, "toy.svg")

    runs = r["super_resolution"]
    figure, axis = pyplot.subplots(figsize=(8, 0.3 * len(runs) + 1))
    for i, (name, several) in enumerate(runs.items()):
        end = final_scores(several)
        axis.plot(end, [i] * len(end), "o", ms=4, color="C0" if name == SQRT_D else "C7")
        axis.plot([statistics.fmean(end)], [i], "|", ms=14, color="C3")
    axis.set_yticks(range(len(runs)), list(runs))
    axis.invert_yaxis()
    axis.set(xlabel="PSNR-Y, dB: each seed, and the mean")
    save(figure, "psnr.svg")

    figure, axes = pyplot.subplots(1, 3, figsize=(10, 3.2))
    shown = [
        n
        for n in (SQRT_D, "no scale", "layer norm on the scores", "exponent 0.8", "no attention")
        if n in runs
    ]
    for axis, key, title in zip(
        axes,
        ("loss", "psnr_y", "largest"),
        ("training loss", "PSNR-Y, dB", "largest probability"),
        strict=True,
    ):
        for i, name in enumerate(shown):
            for j, run in enumerate(runs[name]):
                points = [(p["step"], p[key]) for p in run["curve"] if p[key] is not None]
                if points:
                    axis.plot(
                        *zip(*points, strict=True),
                        color=f"C{i}",
                        lw=1,
                        label=name if j == 0 else None,
                    )
        axis.set(title=title, xlabel="step")
    axes[0].legend(frameon=False, fontsize=7)
    save(figure, "training.svg")
