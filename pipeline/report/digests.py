"""Whether result files have the same bytes as on another kind of processor."""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from pipeline.declared import declared_stages, stage_results
from pipeline.files import read_json, write_json
from pipeline.jobs.files import sha256
from pipeline.jobs.portable import cpu_kind

DIGESTS = Path("benchmarks/portable.json")
PARAMS = Path("params.yaml")


def digests() -> dict[str, str]:
    """The sha256 of every file that the stages left below results/, and of params.yaml's values."""
    values = yaml.safe_load(PARAMS.read_text("utf-8"))
    found = {str(PARAMS): hashlib.sha256(json.dumps(values).encode()).hexdigest()}
    for stage in declared_stages():
        for file in stage_results(stage)[0]:
            found[str(file)] = sha256(file)
    return found


def record() -> dict[str, Any]:
    """Write the digests of the files that are here. Returns what is written.

    "made on" has every kind of processor that left these bytes.
    """
    found = digests()
    kinds = {cpu_kind()}
    if DIGESTS.is_file():
        known = read_json(DIGESTS)
        if known["files"] == found:
            kinds |= {*known["made on"]}
    recorded = {"made on": sorted(kinds), "files": found}
    write_json(DIGESTS, recorded)
    return recorded


def compare() -> list[str]:
    """A line a file with other bytes than recorded, or one line if all are the same.

    Nothing is said on a kind of processor that the record was made on, where git shows what
    changed, nor of a run with other parameters.
    """
    if not DIGESTS.is_file():
        return []
    recorded = read_json(DIGESTS)
    known = recorded["files"]
    found = digests()
    kind = cpu_kind()
    if kind in recorded["made on"] or known[str(PARAMS)] != found[str(PARAMS)]:
        return []
    kinds = " and ".join(recorded["made on"])
    differing = [name for name in known | found if known.get(name) != found.get(name)]
    if not differing:
        return [f"results/: on this processor ({kind}) the same bytes as on {kinds}"]
    return [f"{name}: other bytes on this processor ({kind}) than on {kinds}" for name in differing]
