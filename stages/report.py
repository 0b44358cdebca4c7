"""Stage report: one page with every result, from the result files."""

from lsvit.config.params import load
from lsvit.errors import one_line_errors
from lsvit.jobs.files import RESULTS
from lsvit.report.page import Report
from lsvit.report.results import Results


@one_line_errors()
def main() -> None:
    """results/, dvc.lock -> results/report.html"""
    (RESULTS / "report.html").write_text(Report(Results(RESULTS), load()).html())


if __name__ == "__main__":
    main()
