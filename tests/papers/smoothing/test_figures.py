"""Tables and figures of over-smoothing: cells and lines by hand, what was not run."""

import io
import itertools
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from papers.smoothing.figures import ATTENTION, COSINE, LOSSES, Measure, SmoothingFigures
from papers.smoothing.tables import (
    TABLE1,
    TABLE3,
    TABLE4,
    ablation_table,
    find_depths,
    losses_table,
    match_depths,
    recipe_table,
    smoothing_numbers,
    write_smoothing_tables,
)
from pipeline.config.params import Params
from pipeline.jobs.files import sha256

BEST = "contrastive+mixing"
FIGURES = {"smoothing_cosine", "smoothing_attention", "smoothing_orders"}
VARIANTS = ("baseline", "ls", "ls_pos", "layerdrop", "ls_contrastive")
STRENGTH = {"cosine": 0.35, "contrastive": 0.25, "mixing": 0.2}  # of the losses against similarity
NAN = float("nan")


def model_rows(
    training: str, losses: str, seed: int, num_layers: int = 12, **more: Any
) -> list[dict[str, Any]]:
    """A model's rows as smoothing.csv has them: patches become alike, less so with losses.

    After the last layer the seeds' similarities are 0.02 apart; accuracies are 0.02 apart.
    """
    model = {
        "dataset": "d_10k",
        "model": "m",
        "training": training,
        "losses": losses,
        "removed": "none",
        "talking_heads": False,
        "num_layers": num_layers,
        "order": "sequential",
        "seed": seed,
    } | more
    held = sum(STRENGTH[name] for name in losses.split("+")) if losses != "none" else 0
    model["accuracy"] = (
        None
        if training == "untrained"
        else 0.7 + held / 10 + 0.02 * seed + (0.02 if model["talking_heads"] else 0)
    )
    wave, rows = np.random.default_rng(seed + 100 * len(losses)), []
    for layer in range(num_layers + 1):
        at = layer / num_layers
        cosine = 0.3 + (0.2 if training == "untrained" else 0.6 - held) * at**1.5
        noise = 0 if layer == num_layers else 0.02 * wave.standard_normal()
        attention = (
            0.004
            + (0.05 + held / 20) * at * (1 - 0.6 * at) * (training != "untrained")
            + 0.002 * wave.random()
        )
        values = {
            "patch_cosine": cosine + noise + 0.02 * seed,
            "attention_std": attention if layer else None,
        }
        rows.append({**model, "layer": layer, **values})
    return rows


ABOUT = {
    "images": 500,
    "epochs": 2,
    "training_images": 900,
    "kwargs": {"patch_size": 7},
    "recipe": {"repeats": 1, "erasing": 0.0, "drop_path": 0.1},
}


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Three seeds of everything, two of random initialisations."""
    found = []
    for seed, depth in itertools.product(range(3), (12, 24)):
        for losses in TABLE1:
            found += model_rows("scratch", losses, seed, depth)
        if seed < 2:
            found += model_rows("untrained", "none", seed, depth)
    for seed in range(3):
        for removed, losses in itertools.product(
            ("repeats", "erasing", "mixup", "drop_path"), ("none", BEST)
        ):
            accuracy = {"accuracy": 0.1} if (removed, losses) == ("drop_path", "none") else {}
            found += [
                row | accuracy for row in model_rows("scratch", losses, seed, removed=removed)
            ]
        found += model_rows("scratch", BEST, seed, talking_heads=True)
        for variant, order in itertools.product(VARIANTS, ("sequential", "arbitrary")):
            losses = "contrastive" if variant == "ls_contrastive" else "none"
            shift, shuffled = VARIANTS.index(variant) / 40, order == "arbitrary"
            low = (0.1 if variant == "baseline" else 0.5) if shuffled else 0.72
            for row in model_rows(variant, losses, seed, order=order):
                cosine, attention = (
                    row["patch_cosine"] * (0.8 if shuffled else 1) - shift,
                    row["attention_std"],
                )
                measures = {
                    "patch_cosine": cosine,
                    "attention_std": attention and attention * (0.7 + 2 * shift - 0.3 * shuffled),
                }
                found.append(row | {"accuracy": low - shift + 0.01 * seed} | measures)
    text = pd.DataFrame(found).to_csv(index=False)
    return pd.read_csv(io.StringIO(text))  # with the types that a file has


def test_published_figures_are_those_of_the_source() -> None:
    """Read by hand in the source's text."""
    assert list(TABLE1.values()) == [81.8, 82.0, 82.4, 82.3, 82.3, 82.3, 82.6]
    assert TABLE1["mixing"] == 82.4
    assert TABLE1["contrastive+mixing"] == 82.6
    assert [row.top1 for row in TABLE3] == [81.8, 82.4, 82.3, 82.6, 82.7, 82.9, 83.3]
    assert TABLE3[-1] == (224, 24, "contrastive+mixing", True, 400, 83.3)
    assert [row[1:] for row in TABLE4.values()] == [
        (81.7, 82.9),
        (76.5, 82.9),
        (5.6, 82.9),
        (80.0, 82.9),
        (3.4, 80.4),
        (77.3, 83.3),
    ]


def test_numbers_are_those_of_the_last_layer(rows: pd.DataFrame) -> None:
    """Seeds 0.02 apart: mean that of the middle one, standard deviation 0.02."""
    found = (
        smoothing_numbers(rows)
        .set_index(["num_layers", "losses", "removed", "talking_heads", "metric"])
        .sort_index()
    )
    plain = found.loc[12, "none", "none", False]
    assert plain.loc["accuracy", ["mean", "std", "n"]].tolist() == pytest.approx([0.72, 0.02, 3])
    assert plain.loc["patch_cosine", ["mean", "std", "n"]].tolist() == pytest.approx(
        [0.92, 0.02, 3]
    )
    assert found.loc[24, "cosine", "none", False].loc["patch_cosine", "mean"] == pytest.approx(
        0.3 + 0.6 - 0.35 + 0.02
    )
    assert found.index.is_unique
    assert len(found) == 2 * (2 * 7 + 2 * 4 + 1)  # no variant, nothing untrained


def test_cells_of_table_1(rows: pd.DataFrame) -> None:
    table = losses_table(smoothing_numbers(rows))
    marks = ["Cosine Reg", "Patch Contrastive", "Patch Mixing"]
    assert [*table.columns[:3]] == marks
    assert ["".join(row) for row in (table[marks] == "yes").astype(int).astype(str).to_numpy()] == [
        "000",
        "100",
        "001",
        "010",
        "101",
        "110",
        "011",
    ]
    assert list(table["published, 12 layers"]) == [f"{value:.1f}" for value in TABLE1.values()]
    assert list(table.iloc[0, 4:]) == ["72.00 ± 2.00", "72.00 ± 2.00", "0.92 ± 0.02", "0.92 ± 0.02"]
    assert table.loc[1, "here, 24 layers"] == "75.50 ± 2.00"
    assert table.loc[6, "patch cosine, 12 layers"] == "0.47 ± 0.02"


def test_table_1_has_our_own_sums_and_depths(rows: pd.DataFrame) -> None:
    odd = model_rows("scratch", "cosine+contrastive+mixing", 0, 6)
    table = losses_table(
        smoothing_numbers(pd.concat([rows[rows["num_layers"] == 12], pd.DataFrame(odd)]))
    )
    assert list(table.iloc[7]) == ["yes", "yes", "yes", "–", "78.00", "not run", "0.10", "not run"]
    assert list(table.columns[4:6]) == ["here, 6 layers", "here, 12 layers"]
    assert table.loc[0, "here, 6 layers"] == "not run"


def test_cells_of_table_3(rows: pd.DataFrame) -> None:
    table = ablation_table(smoothing_numbers(rows))
    assert list(table.columns) == [
        "S",
        "D",
        "Patch Contrastive",
        "Patch Mixing",
        "Talking-Head",
        "Epoch",
        "published",
        "here",
    ]
    assert list(table.iloc[1]) == ["224", "12", "–", "yes", "–", "300", "82.4", "74.00 ± 2.00"]
    assert list(table["here"][3:]) == ["76.50 ± 2.00", "78.50 ± 2.00", "not run", "not run"]
    other = rows[rows["num_layers"] == 12].assign(
        num_layers=6, layer=lambda own: own["layer"] - 6, losses=lambda own: own["losses"]
    )
    other.loc[other["talking_heads"], "losses"] = "cosine"
    table = ablation_table(smoothing_numbers(other))
    assert list(table.iloc[-1]) == [
        "–",
        "– (here: 6)",
        "yes",
        "–",
        "–",
        "yes",
        "–",
        "–",
        "78.50 ± 2.00",
    ]
    assert list(table["D"][-3:-1]) == ["12 (here: 6)", "24"]
    assert table.iloc[4]["here"] == "not run"


def test_cells_of_table_4(rows: pd.DataFrame) -> None:
    numbers = smoothing_numbers(rows)
    table = recipe_table(numbers, BEST).set_index("Model")
    assert list(table.columns) == ["published DEIT", "published Ours", "here DEIT", "here Ours"]
    assert list(table.loc["Standard"]) == ["81.7", "82.9", "72.00 ± 2.00", "76.50 ± 2.00"]
    assert list(table.loc["- Drop Path"]) == ["3.4", "80.4", "10.00 ± 0.00", "76.50 ± 2.00"]
    assert list(table.loc["+ Depth (24 Layer)"]) == ["77.3", "83.3", "72.00 ± 2.00", "76.50 ± 2.00"]
    assert (
        recipe_table(numbers, "cosine").set_index("Model").loc["Standard", "here Ours"]
        == "75.50 ± 2.00"
    )
    assert (
        recipe_table(numbers, "cosine").set_index("Model").loc["- Mixup", "here Ours"] == "not run"
    )


def test_depths_are_those_that_are_there(rows: pd.DataFrame) -> None:
    numbers = smoothing_numbers(rows)
    assert match_depths(numbers) == {12: 12, 24: 24}
    assert match_depths(numbers[numbers["num_layers"] == 12]) == {12: 12, 24: None}
    assert (
        recipe_table(numbers[numbers["num_layers"] == 12], BEST).iloc[-1]["here DEIT"] == "not run"
    )
    shallow = numbers.assign(num_layers=numbers["num_layers"] // 6)
    assert find_depths(shallow) == (2, 4)
    assert recipe_table(shallow, BEST).iloc[-1].tolist() == [
        "+ Depth (24 Layer, here: 4)",
        "77.3",
        "83.3",
        "72.00 ± 2.00",
        "76.50 ± 2.00",
    ]


def test_tables_are_written(rows: pd.DataFrame, tmp_path: Path) -> None:
    """Numbers that the table shows as csv; its texts with the caption as md and tex."""
    captions = write_smoothing_tables(rows.assign(model="vit_x"), tmp_path, BEST, ABOUT)
    for (number, length), caption in zip(
        ((1, 28), (3, 5), (4, 12)), captions.values(), strict=True
    ):
        name = f"smoothing_table{number}"
        assert "{" not in caption
        assert caption in (tmp_path / f"{name}.md").read_text()
        assert "vit\\_x" in (tmp_path / f"{name}.tex").read_text()
        ours = pd.read_csv(tmp_path / f"{name}.csv")
        assert len(ours) == length
        assert ours["mean"].between(0, 1).all()


def test_what_was_not_run_is_said(rows: pd.DataFrame, tmp_path: Path) -> None:
    for part in (rows.iloc[:0], rows[rows["training"] != "scratch"]):
        write_smoothing_tables(part, tmp_path, BEST, ABOUT)
        assert pd.read_csv(tmp_path / "smoothing_table1.csv").empty
        numbers = smoothing_numbers(part)
        tables = losses_table(numbers), ablation_table(numbers), recipe_table(numbers, BEST)
        for table in tables:
            ours = [column for column in table if "here" in column or "cosine, " in column]
            assert set(table[ours].to_numpy().flat) == {"not run"}
    alone = rows[(rows["seed"] == 0) & (rows["losses"] == "none")]
    table = losses_table(smoothing_numbers(alone))
    assert list(table["here, 12 layers"]) == ["70.00"] + 6 * ["not run"]  # one seed has no spread


@pytest.mark.parametrize("measure", [COSINE, ATTENTION], ids=lambda measure: measure.column)
def test_lines_are_means_over_the_seeds(
    rows: pd.DataFrame, measure: Measure, params: Params, tmp_path: Path
) -> None:
    """A panel a depth with a line a sum of losses and one of random initialisations."""
    kept = []

    class Kept(SmoothingFigures):
        def save(self, figure: Figure, name: str, **texts: str) -> None:
            kept.append(figure)
            plt.close(figure)

    figures = Kept(tmp_path, params.paper_figures, list(VARIANTS))
    figures.draw_smoothing(rows, ABOUT)
    plain = rows[(rows["removed"] == "none") & ~rows["talking_heads"]].dropna(subset=measure.column)
    lines = [("scratch", losses) for losses in LOSSES] + [("untrained", "none")]
    for axis, depth in zip(kept[(COSINE, ATTENTION).index(measure)].axes, (12, 24), strict=True):
        for (training, losses), container in zip(lines, axis.containers, strict=True):
            own = plain[(plain["training"] == training) & (plain["losses"] == losses)]
            own = own[own["num_layers"] == depth].groupby("layer")[measure.column]
            line, _, bars = container
            assert list(line.get_xdata()) == list(own.mean().index)
            assert list(line.get_ydata()) == pytest.approx(list(own.mean()))
            low, high = np.array(bars[0].get_segments())[:, :, 1].T
            middle = line.get_markevery()
            shown = slice(middle[0], None, middle[1])
            assert list(high - low) == pytest.approx(list(2 * own.std())[shown])
    low, high = ("sequential", "arbitrary")
    accuracy = rows[rows["layer"] == rows["num_layers"]].groupby(["training", "order"])["accuracy"]
    drawn = {}
    for container in kept[2].axes[-1].containers:
        line = container[0]
        order = high if line.get_markerfacecolor() == "white" else low
        drawn[VARIANTS[int(line.get_ydata()[0])], order] = line.get_xdata()[0]
    for key, mean in drawn.items():
        assert mean == pytest.approx(100 * accuracy.mean()[key])
    assert len(drawn) == 2 * len(VARIANTS)


def test_figures_are_the_same_bytes_again(
    rows: pd.DataFrame, params: Params, tmp_path: Path
) -> None:
    digests = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        figures = SmoothingFigures(folder, params.paper_figures, list(VARIANTS))
        captions = figures.draw_smoothing(rows, ABOUT)
        assert not any("{" in caption for caption in captions.values())
        digests.append({path.name: sha256(path) for path in folder.iterdir()})
    assert set(digests[0]) == {f"{name}.png" for name in FIGURES}
    assert digests[0] == digests[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "drawn"),
    [
        ({"training": ["scratch", "untrained"]}, FIGURES - {"smoothing_orders"}),
        ({"training": list(VARIANTS)}, {"smoothing_orders"}),
        ({"training": ["untrained"]}, set()),
        ({"removed": ["mixup"]}, set()),
        (
            {
                "training": ["scratch", "ls"],
                "seed": [1],
                "losses": ["mixing", "none"],
                "order": ["sequential"],
            },
            FIGURES,
        ),
        ({"attention_std": [NAN]}, {"smoothing_cosine", "smoothing_orders"}),
        ({"training": []}, set()),
    ],
)
def test_figures_without_rows_are_left_out(
    kept: dict[str, list], drawn: set[str], rows: pd.DataFrame, params: Params, tmp_path: Path
) -> None:
    for column, values in kept.items():
        rows = (
            rows.assign(attention_std=None)
            if column == "attention_std"
            else rows[rows[column].isin(values)]
        )

    small = params.paper_figures.model_copy(update={"dpi": 30})
    captions = SmoothingFigures(tmp_path / "figures", small, ["baseline"]).draw_smoothing(
        rows, ABOUT
    )
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == drawn
    assert len(captions) == len(drawn)


def test_colours_are_told_apart(params: Params, tmp_path: Path) -> None:
    """A variant keeps its colour unless one has none: all are then coloured anew."""
    known = SmoothingFigures(tmp_path, params.paper_figures, ["other", *VARIANTS])
    for variant, look in known.variant_colours(VARIANTS).items():
        assert look["color"] == known.colours[variant]
    unknown = SmoothingFigures(tmp_path, params.paper_figures, ["other", "ls"])
    looks = unknown.variant_colours(VARIANTS)
    assert len({look["color"] for look in looks.values()}) == len(VARIANTS)
