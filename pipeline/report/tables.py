"""What every paper's tables share: cells, and the files they are written to."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from rich.console import Console


NONE = "none"  # of what a model may have: exits, losses, parts removed
NOT_RUN, ABSENT = "not run", "–"  # cells


def cell_text(mean: float, std: float) -> str:
    """A cell of a table: "12.34 ± 0.56", or the mean alone where there is no spread."""
    return f"{mean:.2f}" if pd.isna(std) else f"{mean:.2f} ± {std:.2f}"


def value_range(values: pd.Series) -> str:
    """The least and the greatest of whole numbers, in words: "3 to 5"."""
    low, high = f"{values.min():.0f}", f"{values.max():.0f}"
    return low if low == high else f"{low} to {high}"


def write_table(
    numbers: pd.DataFrame,
    paper: pd.DataFrame,
    caption: str,
    folder: Path,
    name: str,
    label: str = "",
) -> None:
    """Write a table.

    Args:
        numbers: go to `<name>.csv`.
        paper: texts in the paper's form, which go to `<name>.md` and `<name>.tex`.
        caption: below the texts.
        folder: that the files go to.
        name: of the files.
        label: of the LaTeX table. Default: from the name.
    """
    numbers.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
    (folder / f"{name}.md").write_text(f"{markdown_table(paper)}\n\n{caption}\n", "utf-8")
    latex = paper.rename(columns=_latex).map(_latex)
    text = latex.to_latex(
        index=False,
        caption=_latex(caption).replace("%", "\\%"),
        label=f"tab:{label or name.replace('_', '-')}",
    )
    (folder / f"{name}.tex").write_text(text, "utf-8")


def _latex(text: str) -> str:
    return text.replace("±", "$\\pm$").replace("_", "\\_").replace("–", "--")


def console(width: int) -> "Console":
    """A console of at least `width` columns, whose lines a narrow terminal wraps."""
    from rich.console import Console

    return Console(width=max(width, Console().width), highlight=False)


def percent(value: float) -> str:
    """A fraction in %, or that there is none."""
    return "–" if pd.isna(value) else f"{100 * value:.2f}"


def interval(low: float, high: float, sign: str = "") -> str:
    """An interval of fractions in %, or that there is none."""
    return "–" if pd.isna(low) else f"[{100 * low:{sign}.2f}, {100 * high:{sign}.2f}]"


def markdown_table(records: pd.DataFrame | list[dict[str, Any]]) -> str:
    """A Markdown table of texts."""
    return pd.DataFrame(records).to_markdown(index=False, disable_numparse=True)


def count_seeds(rows: pd.DataFrame) -> str:
    """ "3 seeds", or that there are none."""
    if rows.empty:
        return NOT_RUN
    return f"{value_range(rows['n'])} seed{'s' if rows['n'].max() > 1 else ''}"
