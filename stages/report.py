"""Stage report: one page with every result, from the result files."""

from papers import PAPERS
from pipeline.config.load import load
from pipeline.errors import one_line_errors
from pipeline.jobs.files import RESULTS
from pipeline.report.page import Report
from pipeline.report.results import Results


@one_line_errors()
def main() -> None:
    """results/, dvc.lock -> results/report.html"""
    (RESULTS / "report.html").write_text(
        Report(Results(RESULTS, PAPERS), load(papers=PAPERS)).html()
    )


if __name__ == "__main__":
    main()
