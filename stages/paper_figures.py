"""Stage paper-figures: every paper's tables, figures and claims, from the result files."""

import json

from lsvit.config.papers import rooms
from lsvit.config.params import load
from lsvit.errors import one_line_errors
from lsvit.jobs.files import RESULTS
from lsvit.jobs.processes import root
from lsvit.report.ledger import all_claims, judge, markdown
from lsvit.report.results import Results
from lsvit.tracking import Tracker


@one_line_errors()
def main() -> None:
    """results/, outs/analysis/, outs/inversion/ -> results/: tables, statistics, claims, figures/"""
    params, results = load(), Results(RESULTS)
    captions: dict[str, str] = {}
    for tables in rooms("tables"):
        captions |= tables.write(results, params)
    for figures in rooms("figures"):
        captions |= figures.draw(results, params)
    found = judge(RESULTS, all_claims())
    (RESULTS / "claims.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "claims.md").write_text(markdown(found))
    head = f"# Captions\n\nData set {params.dataset}, model {params.model}.\n"
    text = head + "".join(f"\n**{name}.** {caption}\n" for name, caption in sorted(captions.items()))
    (RESULTS / "figures" / "captions.md").write_text(text)
    Tracker(f"{params.dataset}/{params.model}", root()).results("paper-figures")


if __name__ == "__main__":
    main()
