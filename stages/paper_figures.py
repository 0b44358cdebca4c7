"""Stage paper-figures: every paper's tables, figures and claims, from the result files."""

import json
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context

from papers import PAPERS
from pipeline.config.load import load
from pipeline.errors import one_line_errors
from pipeline.jobs.files import RESULTS
from pipeline.jobs.processes import root
from pipeline.report.ledger import Evidence, headline, judge, markdown
from pipeline.report.results import Results
from pipeline.tracking.runs import STAGES, Tracker, experiment_name


def draw(module: str) -> dict[str, str]:
    """A paper's figures. Returns their captions by title."""
    return import_module(module).draw(Results(RESULTS, PAPERS), load(papers=PAPERS))


@one_line_errors()
def main() -> None:
    """results/, outs/analysis/, outs/inversion/ -> results/: tables, statistics, claims, figures/"""
    params, results = load(papers=PAPERS), Evidence(RESULTS, PAPERS)
    captions: dict[str, str] = {}
    for tables in results.readers("tables"):
        captions |= tables.write(results, params)
    with ProcessPoolExecutor(
        mp_context=get_context("fork")
    ) as pool:  # drawing takes most of the time
        for drawn in pool.map(draw, [figures.__name__ for figures in results.readers("figures")]):
            captions |= drawn
    found = judge(results)
    (RESULTS / "claims.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "claims.md").write_text(markdown(found))
    shown = [name for claims in results.readers("claims") for name in claims.HEADLINE]
    (RESULTS / "headline.json").write_text(json.dumps(headline(found, shown), indent=1) + "\n")
    head = f"# Captions\n\nData set {params.dataset}, model {params.model}.\n"
    text = head + "".join(
        f"\n**{name}.** {caption}\n" for name, caption in sorted(captions.items())
    )
    (RESULTS / "figures" / "captions.md").write_text(text)
    Tracker(experiment_name(STAGES, params.cell), root()).results("paper-figures")


if __name__ == "__main__":
    main()
