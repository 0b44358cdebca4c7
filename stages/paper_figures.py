"""Stage paper-figures: tables, statistics, the figures of the paper and more, and the ledger of claims, from the result files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from lsvit.claims import CLAIMS
from lsvit.errors import one_line_errors
from lsvit.exit_plots import ExitFigures
from lsvit.exit_tables import write_exit_tables
from lsvit.inversion_plots import Gallery, InversionFigures
from lsvit.inversion_tables import write_inversion_table
from lsvit.ledger import judge, markdown
from lsvit.params import load
from lsvit.processes import root
from lsvit.sections import Analysis, PaperFigures, Pretrain, Smoothing
from lsvit.smoothing_plots import SmoothingFigures
from lsvit.smoothing_tables import write_smoothing_tables
from lsvit.tables import label, summarise, table_caption, write_protocols, write_statistics, write_table1
from lsvit.tracking import Tracker

RESULTS, ARRAYS, INVERTED = Path("results"), Path("outs/analysis"), Path("outs/inversion/arrays")
SHOWN = ("baseline", "layerdrop", "ls")  # in the figure of accuracy against disorder


@one_line_errors()
def main() -> None:
    """results/, outs/analysis/ -> results/: tables, statistics, differences, protocols, claims, figures/"""
    params = load()
    rows, samplers = (pd.read_csv(RESULTS / f"{name}.csv") for name in ("prune_eval", "samplers"))
    cells = summarise(rows)
    cells.drop(columns="full").round(6).to_csv(RESULTS / "figure1.csv", index=False, lineterminator="\n")
    write_table1(cells, RESULTS)
    write_statistics(cells, rows, RESULTS)
    write_protocols(pd.read_csv(RESULTS / "protocols.csv"), RESULTS)
    found = judge(RESULTS, CLAIMS)
    (RESULTS / "claims.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "claims.md").write_text(markdown(found))

    figures = ExitFigures(RESULTS / "figures", params.resolve(PaperFigures), list(params.all_variants))
    captions = {"Table 1": table_caption(cells)}
    captions["Figure 1b"] = figures.pruning(cells, "sequential", "figure_1b")
    captions["Figure 1c"] = figures.pruning(cells, "arbitrary", "figure_1c")
    layer = json.loads((RESULTS / "analysis.json").read_text())["layer"]
    compared = params.resolve(Analysis).variants[0]
    for (a, c), name, seed in (("ac", "pretrained", params.resolve(Pretrain).seed), ("bd", compared, params.seeds[0])):
        title = "starting weights" if name == "pretrained" else f"refined with {label(name)}"
        with np.load(ARRAYS / f"{name}_seed_{seed}.npz") as arrays:
            captions[f"Figure 4{a}"] = figures.umap(dict(arrays), layer, f"figure_4{a}", title)
            captions[f"Figure 4{c}"] = figures.ridges(dict(arrays), f"figure_4{c}", title)
    chance = 100 / json.loads((RESULTS / "cell.json").read_text())["classes"]
    if len(samplers):  # `prune_eval.samplers` may be empty
        captions["Distance"] = figures.disorder(samplers, [v for v in SHOWN if v in params.all_variants], chance, "distance")
        captions["First layers"] = figures.first_layers(samplers, chance, "first_layers")
    histories = {v: pd.read_csv(RESULTS / "finetune" / f"{v}.csv") for v in params.all_variants}
    captions["Training curves"] = figures.training_curves(histories, "training_curves")
    exits, dynamic = (pd.read_csv(RESULTS / f"{name}.csv") for name in ("exits", "exits_dynamic"))
    captions |= write_exit_tables(exits, RESULTS)
    captions |= figures.draw_exits(exits, dynamic, json.loads((RESULTS / "exits.json").read_text()))
    smoothing, best = pd.read_csv(RESULTS / "smoothing.csv"), params.resolve(Smoothing).best
    about = json.loads((RESULTS / "smoothing.json").read_text())
    captions |= write_smoothing_tables(smoothing, RESULTS, str(best), about)
    profiles = SmoothingFigures(RESULTS / "figures", params.resolve(PaperFigures), list(params.all_variants))
    captions |= profiles.draw_smoothing(smoothing, about)
    inversion, classes = (pd.read_csv(RESULTS / f"{name}.csv") for name in ("inversion", "class_images"))
    about = json.loads((RESULTS / "inversion.json").read_text())
    captions |= write_inversion_table(inversion, RESULTS, about)
    size, gallery = params.resolve(PaperFigures), Gallery(INVERTED)
    pages = InversionFigures(RESULTS / "figures", size, list(params.all_variants), gallery, about)
    captions |= pages.draw_inversion(inversion, classes)
    head = f"# Captions\n\nData set {params.dataset}, model {params.model}.\n"
    text = head + "".join(f"\n**{name}.** {caption}\n" for name, caption in sorted(captions.items()))
    (RESULTS / "figures" / "captions.md").write_text(text)
    Tracker(f"{params.dataset}/{params.model}", root()).results("paper-figures")


if __name__ == "__main__":
    main()
