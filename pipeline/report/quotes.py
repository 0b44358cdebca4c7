"""The sentences of the sources that claims rest on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from pipeline.report.ledger import Claim


def quoted(claims: Sequence[Claim], module: str) -> list[Claim]:
    """The claims with what `quotes.yaml`, beside the module's file, quotes for each; those without an entry as they are."""
    quotes = yaml.safe_load(Path(module).with_name("quotes.yaml").read_text())
    return [replace(claim, quote=quotes.get(claim.id, claim.quote)) for claim in claims]
