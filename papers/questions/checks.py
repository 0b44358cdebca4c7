"""Cross-checks of the section `questions`."""

from collections.abc import Iterator

from papers.questions.section import Questions
from pipeline.config.params import Params
from pipeline.errors import mistake, unknown_name


def check(params: Params) -> Iterator[str]:
    """Check that variants have all layers and no parts, and that merged ones are among them."""
    options = params.resolve(Questions)
    for name in options.variants:
        variant = params.all_variants[name]
        has_part = variant.position.encode or variant.position.predict or variant.exits
        if has_part or variant.layers:
            wanted = "variants with all layers, without position parts and exits"
            yield mistake("questions.variants", name, wanted)
    for name in options.common:
        if name not in options.variants:
            yield unknown_name("questions.common", name, options.variants)
