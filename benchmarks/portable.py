"""Record the bytes of the result files, and the kinds of processor that left them.

Run it after a run of the committed parameters, in the repository's root. The stage `report`
compares with it on every other kind of processor.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline.report.digests import DIGESTS, record

if __name__ == "__main__":
    recorded = record()
    print(f"{DIGESTS}: {len(recorded['files'])} files, made on {', '.join(recorded['made on'])}")
