"""Captions say nothing of what was not measured, whatever `prune_eval.samplers` asks for."""

import json
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from papers import PAPERS
from papers.layershuffle.figures import draw
from pipeline.config.params import Params
from pipeline.report.figures import Figures
from pipeline.report.results import Results

LAYERS, SEEDS = 3, (0, 1)
DISTANCES = {"reversed": 3, "swap 1": 1, "fix_first 0": 1.5, "fix_first 3": 0, "fix_last 1": 0.5}
CONTROLS = {"Distance": ("swap", "reversed"), "First layers": ("fix_first",)}


@pytest.fixture
def few(params: Params) -> Params:
    """One variant beside the baseline, two seeds."""
    size = params.paper_figures.model_copy(update={"dpi": 30})
    return params.model_copy(
        update={
            "variants": {"ls": params.variants["ls"]},
            "seeds": list(SEEDS),
            "paper_figures": size,
        }
    )


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The result files but for samplers.csv."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Figures, "_save", save)
    folder, rng = tmp_path / "results", np.random.default_rng(0)
    (folder / "finetune").mkdir(parents=True)
    (folder / "cell.json").write_text(json.dumps({"classes": 10, "latin": []}))
    (folder / "analysis.json").write_text(json.dumps({"layer": 1}))
    rows = []
    for variant in ("baseline", "ls"):
        epochs = [(seed, epoch, 0.5, 0.25) for seed in SEEDS for epoch in (1, 2)]
        names = ["seed", "epoch", "validation/sequential/accuracy", "validation/arbitrary/accuracy"]
        pd.DataFrame(epochs, columns=names).to_csv(
            folder / "finetune" / f"{variant}.csv", index=False
        )
        for seed in SEEDS:
            for keep in (2, LAYERS):
                rows += [
                    (variant, seed, keep, order, route, 0.5 + 0.1 * route)
                    for order in ("sequential", "arbitrary")
                    for route in (0, 1)
                ]
    found = pd.DataFrame(rows, columns=["variant", "seed", "keep", "order", "route", "accuracy"])
    found.assign(
        dataset="d", model="m", routes=1, images=50, position_accuracy=None, std_images=0.4
    ).to_csv(folder / "prune_eval.csv", index=False)
    arrays: dict[str, Any] = {
        "positions": np.array([rng.permutation(LAYERS) for _ in range(30)]),
        "norms": rng.random((30, LAYERS)) + 0.1,
        "plane": rng.random((30, 2)),
    }
    (tmp_path / "outs" / "analysis").mkdir(parents=True)
    for name in ("pretrained", "ls"):
        np.savez(tmp_path / "outs" / "analysis" / f"{name}_seed_0.npz", **arrays)
    return Results(folder, PAPERS)


def save(figures: Figures, figure: Figure, name: str) -> None:
    """An empty file: rendering takes seconds."""
    (figures.folder / f"{name}.png").touch()
    plt.close(figure)


def write_samplers(folder: Path, names: list[str]) -> None:
    """What stage prune-eval leaves: a row a variant, seed and sampler; without samplers an empty table or no file."""
    rows: list[dict[str, Any]] = [
        {
            "variant": variant,
            "seed": seed,
            "sampler": name,
            "distance": DISTANCES[name],
            "length": LAYERS,
            "images": 40,
            "accuracy": 0.5,
        }
        for variant in ("baseline", "ls")
        for seed in SEEDS
        for name in names
    ]
    pd.DataFrame(rows).to_csv(folder / "samplers.csv", index=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        None,
        [],
        ["fix_last 1"],
        ["reversed"],
        ["swap 1"],
        ["reversed", "swap 1", "fix_last 1"],
        ["fix_first 0", "fix_first 3"],
        [*DISTANCES],
    ],
    ids=lambda names: "no file" if names is None else ", ".join(names) or "none",
)
def test_a_figure_is_drawn_where_its_samplers_were_run(
    names: list[str] | None, results: Results, few: Params
) -> None:
    if names is not None:
        write_samplers(results.folder, names)
    captions = draw(results, few)
    drawn = {
        title
        for title, kinds in CONTROLS.items()
        if any(name.startswith(kinds) for name in names or ())
    }
    assert captions.keys() & CONTROLS.keys() == drawn
    assert captions.keys() - CONTROLS.keys() == {
        "Figure 1b",
        "Figure 1c",
        "Layers kept, every variant",
        "Approaches",
        "Routes",
        *(f"Figure 4{part}" for part in "abcd"),
        "Training curves",
    }
    for title, caption in captions.items():
        assert not re.search(r"\bnan\b|\b0 (seeds|images)|\bNone\b", caption), title
    for title in drawn:
        assert "2 seeds, 40 images" in captions[title]
    files = {path.stem for path in (results.folder / "figures").iterdir()}
    assert ("distance" in files, "first_layers" in files) == tuple(
        title in drawn for title in CONTROLS
    )
