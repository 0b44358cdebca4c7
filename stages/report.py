"""Stage report: one page with every result, from the result files."""

from papers import PAPERS
from pipeline.config.load import load
from pipeline.jobs.files import RESULTS
from pipeline.jobs.processes import root, stage_process
from pipeline.report.digests import compare
from pipeline.report.page import Report
from pipeline.report.results import Results
from pipeline.tracking.runs import STAGES, Tracker, experiment_name


@stage_process()
def main() -> None:
    """results/, dvc.lock -> results/report.html"""
    params = load(papers=PAPERS)
    (RESULTS / "report.html").write_text(Report(Results(RESULTS, PAPERS), params).html(), "utf-8")
    for line in compare():
        print(line)
    Tracker(experiment_name(STAGES, params.cell), root()).results("report")


if __name__ == "__main__":
    main()
