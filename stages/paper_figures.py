"""Stage paper-figures: every paper's tables, figures and claims, from the result files."""

from papers import PAPERS
from pipeline.config.load import load
from pipeline.config.paper import LEFT_OUT
from pipeline.declared import clear, leave_empty
from pipeline.files import write_json
from pipeline.jobs.files import RESULTS
from pipeline.jobs.processes import root, stage_process
from pipeline.report.claims import load_claims
from pipeline.report.comparison import read_cells
from pipeline.report.evidence import Evidence
from pipeline.report.ledger import headline, judge, markdown
from pipeline.report.results import Results
from pipeline.tracking.runs import STAGES, Tracker, experiment_name


@stage_process()
def main() -> None:
    """results/, outs/analysis/, outs/inversion/ -> results/: tables, claims, figures/"""
    params = load(papers=PAPERS)
    outs = clear("paper-figures")  # nothing of another run may be left
    results = Results(RESULTS, PAPERS)
    left_out = [paper for paper in results.papers_here() if not results.has_run(paper)]
    captions = {paper.title: LEFT_OUT for paper in left_out}
    for tables in results.readers("tables"):
        captions |= tables.write(results, params)
    for figures in results.readers("figures"):
        captions |= figures.draw(Results(RESULTS, PAPERS), params)

    evidence = Evidence(RESULTS, PAPERS)
    ledger = judge(evidence)
    write_json(RESULTS / "claims.json", ledger)
    page = markdown(ledger, evidence.label, read_cells(RESULTS / "cells"))
    (RESULTS / "claims.md").write_text(page, "utf-8")
    shown = [name for paper in evidence.papers_here() for name in load_claims(paper).headline]
    write_json(RESULTS / "headline.json", headline(ledger, shown))

    text = f"# Captions\n\nData set {params.dataset}, model {params.model}.\n"
    for name, caption in sorted(captions.items()):
        text += f"\n**{name}.** {caption}\n"
    (RESULTS / "figures" / "captions.md").write_text(text, "utf-8")
    if left_out:
        leave_empty(outs, LEFT_OUT)
    Tracker(experiment_name(STAGES, params.cell), root()).results("paper-figures")


if __name__ == "__main__":
    main()
