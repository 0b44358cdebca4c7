"""Stage paper-figures: Table 1 and figures 1b, 1c, 4a-d of the paper, and training curves, from the result files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from lsvit import launch
from lsvit.errors import one_line_errors
from lsvit.params import PaperFigures, Pretrain, load
from lsvit.plots import Figures
from lsvit.tables import label, summarise, table_caption, write_table1
from lsvit.tracking import Tracker

RESULTS, ARRAYS = Path("results"), Path("outs/analysis")


@one_line_errors()
def main() -> None:
    """results/, outs/analysis/ -> results/table1.{csv,md,tex}, results/figure1.csv, results/figures/"""
    params = load()
    cells = summarise(pd.read_csv(RESULTS / "prune_eval.csv"))
    cells.drop(columns="full").round(6).to_csv(RESULTS / "figure1.csv", index=False, lineterminator="\n")
    write_table1(cells, RESULTS)

    figures = Figures(RESULTS / "figures", params.resolve(PaperFigures), list(params.all_variants))
    captions = {"Table 1": table_caption(cells)}
    captions["Figure 1b"] = figures.pruning(cells, "sequential", "figure_1b")
    captions["Figure 1c"] = figures.pruning(cells, "arbitrary", "figure_1c")
    layer = json.loads((RESULTS / "analysis.json").read_text())["layer"]
    compared = params.analysis.variants[0]
    for (a, c), name, seed in (("ac", "pretrained", params.resolve(Pretrain).seed), ("bd", compared, params.seeds[0])):
        title = "starting weights" if name == "pretrained" else f"refined with {label(name)}"
        with np.load(ARRAYS / f"{name}_seed_{seed}.npz") as arrays:
            captions[f"Figure 4{a}"] = figures.umap(dict(arrays), layer, f"figure_4{a}", title)
            captions[f"Figure 4{c}"] = figures.ridges(dict(arrays), f"figure_4{c}", title)
    histories = {v: pd.read_csv(RESULTS / "finetune" / f"{v}.csv") for v in params.all_variants}
    captions["Training curves"] = figures.training_curves(histories, "training_curves")
    head = f"# Captions\n\nData set {params.dataset}, model {params.model}.\n"
    text = head + "".join(f"\n**{name}.** {caption}\n" for name, caption in sorted(captions.items()))
    (RESULTS / "figures" / "captions.md").write_text(text)
    Tracker(f"{params.dataset}/{params.model}", launch.root()).results("paper-figures")


if __name__ == "__main__":
    main()
