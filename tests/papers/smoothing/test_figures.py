"""Tables and figures of over-smoothing: published figures as printed, cells, what was not run, the same bytes again."""

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from papers.exits.figures import ExitFigures
from papers.smoothing.figures import COSINE, LOSSES, SmoothingFigures, over_layers
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
    """A model's rows as smoothing.csv has them: patches become alike from layer to layer, less so with losses.

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
    """Three seeds of all losses at 12 and 24 layers, of the recipes, talking heads and variants; two of random initialisations."""
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
    captions = write_smoothing_tables(rows.assign(model="vit_x"), tmp_path, BEST, ABOUT)
    assert list(captions) == [f"Over-smoothing, Table {number}" for number in (1, 3, 4)]
    for number in (1, 3, 4):
        name, caption = f"smoothing_table{number}", captions[f"Over-smoothing, Table {number}"]
        assert (
            f"data d_10k, model vit_x with {'12' if number == 3 else '12 and 24'} layers" in caption
        )
        assert "(3 seeds)" in caption
        assert caption in (tmp_path / f"{name}.md").read_text()
        latex = (tmp_path / f"{name}.tex").read_text()
        assert not {"±", "–", "×", "✓"} & set(latex)
        assert "vit\\_x" in latex
        ours = pd.read_csv(tmp_path / f"{name}.csv")
        assert ours["mean"].between(0, 1).all()
        assert set(ours["n"]) == {3}
    assert "74.00 $\\pm$ 2.00" in (tmp_path / "smoothing_table1.tex").read_text()
    assert (
        "without the losses; Ours: here with contrastive + mixing, without talking heads"
        in captions["Over-smoothing, Table 4"]
    )
    assert len(pd.read_csv(tmp_path / "smoothing_table4.csv")) == 2 * 6
    assert len(pd.read_csv(tmp_path / "smoothing_table3.csv")) == 5
    assert len({path.name for path in tmp_path.iterdir()}) == 9


def test_what_was_not_run_is_said(rows: pd.DataFrame, tmp_path: Path) -> None:
    for part in (rows.iloc[:0], rows[rows["training"] != "scratch"]):
        captions = write_smoothing_tables(part, tmp_path, BEST, ABOUT)
        assert all("Here: not run." in caption for caption in captions.values())
        assert pd.read_csv(tmp_path / "smoothing_table1.csv").empty
        numbers = smoothing_numbers(part)
        assert set(losses_table(numbers).iloc[:, 4:].to_numpy().flat) == {"not run"}
        assert set(ablation_table(numbers)["here"]) == {"not run"}
        assert set(recipe_table(numbers, BEST)[["here DEIT", "here Ours"]].to_numpy().flat) == {
            "not run"
        }
    alone = rows[(rows["seed"] == 0) & (rows["losses"] == "none")]
    captions = write_smoothing_tables(alone, tmp_path, BEST, ABOUT)
    assert "(1 seed)" in captions["Over-smoothing, Table 1"]
    table = losses_table(smoothing_numbers(alone))
    assert list(table["here, 12 layers"]) == ["70.00"] + 6 * ["not run"]  # one seed has no spread


def test_lines_are_means_over_the_seeds(rows: pd.DataFrame) -> None:
    own = rows[
        (rows["training"] == "scratch")
        & (rows["losses"] == "none")
        & (rows["removed"] == "none")
        & (rows["num_layers"] == 24)
    ]
    line = over_layers(own, COSINE)
    assert list(line.index) == list(range(25))
    assert line.loc[24].tolist() == pytest.approx([0.92, 0.02])
    at_3 = own.loc[own["layer"] == 3, "patch_cosine"]
    assert line.loc[3].tolist() == pytest.approx([at_3.mean(), at_3.std()])
    assert over_layers(own[own["seed"] == 0], COSINE)["std"].eq(0).all()


@pytest.mark.slow
def test_figures_are_the_same_bytes_again(
    rows: pd.DataFrame, params: Params, tmp_path: Path
) -> None:
    digests, captions = [], []
    for folder in (tmp_path / "a", tmp_path / "b"):
        captions.append(
            SmoothingFigures(folder, params.paper_figures, list(VARIANTS)).draw_smoothing(
                rows, ABOUT
            )
        )
        digests.append({path.name: sha256(path) for path in folder.iterdir()})
    assert set(digests[0]) == {f"{name}.png" for name in FIGURES}
    assert digests[0] == digests[1]
    assert captions[0] == captions[1]
    assert list(captions[0]) == [
        f"Over-smoothing, {name}" for name in ("patch cosine", "attention", "orders")
    ]
    for name in ("patch cosine", "attention"):
        assert "(n = 3 seeds)" in captions[0][f"Over-smoothing, {name}"]
        assert "random initialisation (n = 2)" in captions[0][f"Over-smoothing, {name}"]
    assert "Mean over 3 seeds" in captions[0]["Over-smoothing, orders"]


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

    class Both(ExitFigures, SmoothingFigures):
        """As the stage may have it."""

    small = params.paper_figures.model_copy(update={"dpi": 30})
    captions = Both(tmp_path / "figures", small, ["baseline"]).draw_smoothing(rows, ABOUT)
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == drawn
    assert len(captions) == len(drawn)


def test_colours_are_told_apart(rows: pd.DataFrame, params: Params, tmp_path: Path) -> None:
    """A variant keeps the colour of the other figures; where these know it not, all are coloured anew."""
    assert len({colour for _, colour, _ in LOSSES.values()}) == len(LOSSES)
    variants = rows[rows["training"].isin(VARIANTS)]
    known = SmoothingFigures(tmp_path, params.paper_figures, ["other", *VARIANTS])
    assert {v: look["color"] for v, look in known._looks(variants).items()} == {
        v: known.colours[v] for v in VARIANTS
    }
    unknown = SmoothingFigures(tmp_path, params.paper_figures, ["other", "ls"])._looks(variants)
    assert len({look["color"] for look in unknown.values()}) == len(VARIANTS)
