"""The ledger: rules decide as they say, and a figure changed by hand is found."""

import hashlib
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from papers import PAPERS
from pipeline.config.load import load
from pipeline.errors import UserError
from pipeline.report.comparison import Pooled, changes, moved, same_cell
from pipeline.report.ledger import (
    FAILS,
    HOLDS,
    NOT_COMPARABLE,
    NOT_RUN,
    RULES,
    UNDECIDED,
    VERDICTS,
    WEAKER,
    Claim,
    Evidence,
    NotRun,
    headline,
    judge,
    markdown,
    show,
)
from pipeline.report.statistics import estimate, holm, n_to_decide, p_value
from pipeline.smoke import environment
from pipeline.tracking.runs import flatten
from stages import commands as cli
from tests.conftest import ALL_CLAIMS, ROOT

RESULTS = ROOT / "results"
CELLS = RESULTS / "cells"


def test_interval_is_students_t() -> None:
    """scipy's own example of a t interval: 2.776 = t(0.975, 4 df)."""
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    found = estimate(values)
    half = 2.7764451 * math.sqrt(2.5) / math.sqrt(5)
    assert found.mean == 3
    assert found.std == pytest.approx(math.sqrt(2.5))
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half))
    assert math.isnan(estimate([1.0]).low)
    assert estimate([2.0, 2.0])[3:] == (2, 2)


def test_interval_covers_as_often_as_it_says() -> None:
    """2,000 sets of five normal values: 95 % of the intervals hold the mean, standard deviation of the share 0.005."""
    rng = np.random.default_rng(0)
    found = [estimate(rng.normal(size=5)) for _ in range(2000)]
    assert abs(np.mean([e.low <= 0 <= e.high for e in found]) - 0.95) < 4 * 0.005


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([6, 6.1, 5.9], HOLDS),
        ([6, 6.1], HOLDS),  # two seeds are enough if they agree
        ([4.9, 5.1, 5.3], UNDECIDED),  # the interval includes the border of 5
        ([2, 2.1, 1.9], WEAKER),  # between 0 and 5
        ([-2, -2.1, -1.9], FAILS),
        ([6], NOT_RUN),
    ],
)
def test_verdicts(values: list[float], verdict: str) -> None:
    claim = Claim(
        "c",
        "s",
        "text",
        "5",
        "it",
        lambda e: np.array(values),
        (5, math.inf),
        (0, math.inf),
        scale="small",
    )
    entry = claim.judge(Evidence(RESULTS, PAPERS))
    assert entry["verdict"] == verdict
    assert "above 5 points" in entry["rule"]
    assert ("small" in entry["reason"]) == (verdict in (FAILS, WEAKER))
    assert bool(entry["reason"]) == (verdict != HOLDS)
    assert ("between" in entry["reason"]) == (values[0] == 2)
    assert ("about 34 seeds would probably decide" in entry["reason"]) == (verdict == UNDECIDED)
    assert (entry["measured"]["low"] is None) == (len(values) == 1)


@pytest.mark.parametrize(("value", "verdict"), [(5, UNDECIDED), (0, WEAKER)])
def test_what_lies_on_a_border(value: float, verdict: str) -> None:
    """Is not above it; and is not outside of what counts as weaker."""
    claim = Claim(
        "c", "s", "text", "5", "it", lambda e: np.array([value] * 3), (5, math.inf), (0, math.inf)
    )
    assert claim.judge(Evidence(RESULTS, PAPERS))["verdict"] == verdict


def test_the_interval_at_one_less_p_reaches_the_border() -> None:
    """p-values of scipy's own test of a mean; corrected by Holm as in his example's form: sorted, times those left, never falling."""
    values = [4.9, 5.1, 5.3, 5.6]
    assert p_value(estimate(values), 5) == pytest.approx(ttest_1samp(values, 5).pvalue)
    assert p_value(estimate([2.0, 2.0]), 1) == 0
    assert p_value(estimate([2.0, 2.0]), 2) == 1
    assert 0 < p_value(estimate([2.0, 2.0], step=1), 1) < 0.2
    assert holm([0.04, 0.01, 0.03, 0.5]) == pytest.approx([0.09, 0.04, 0.09, 0.5])
    assert holm([]) == []


def test_seeds_that_would_decide() -> None:
    """4,000 experiments with so many seeds, of the same mean and spread: four of five intervals leave the border out."""
    found = estimate([0.0, 1.0, 2.0])
    n = n_to_decide(found, 0.2)
    assert n
    drawn = np.random.default_rng(0).normal(found.mean, found.std, (4000, n))
    half = student.ppf(0.975, n - 1) * drawn.std(axis=1, ddof=1) / math.sqrt(n)
    assert abs(np.mean(np.abs(drawn.mean(axis=1) - 0.2) > half) - 0.8) < 0.04
    assert n_to_decide(found, found.mean) is None
    enough = [n_to_decide(found, found.mean - gap) for gap in np.linspace(0.3, 0.5, 200)]
    assert max(n or 0 for n in enough) == 20 * found.n


def test_a_border_that_nothing_lies_beyond_does_not_blur_a_verdict() -> None:
    claim = Claim(
        "c",
        "s",
        "t",
        "p",
        "a count",
        lambda e: np.array([7.0, 7.0, 7.0]),
        (6.5, 7),
        (3.5, 7),
        possible=(0, 7),
    )
    entry = claim.judge(Evidence(RESULTS, PAPERS))
    assert (entry["verdict"], entry["p"]) == (HOLDS, 0)


def test_few_seeds_that_count_the_same_are_not_sure() -> None:
    """Seven of eleven in each of three: as if each were rounded to elevenths, but where the spread is larger than that."""
    values = np.array([7.0, 7.0, 7.0])
    claim = Claim(
        "c", "s", "t", "p", "a count", lambda e: values, (6.5, math.inf), step=lambda e: 1
    )
    entry = claim.judge(Evidence(RESULTS, PAPERS))
    half = student.ppf(0.975, 2) / math.sqrt(12) / math.sqrt(3)
    assert (entry["measured"]["low"], entry["measured"]["high"]) == pytest.approx(
        (7 - half, 7 + half), abs=1e-4
    )
    assert entry["verdict"] == UNDECIDED
    assert entry["p"] == pytest.approx(
        2 * student.sf(0.5 * math.sqrt(12) * math.sqrt(3), 2), abs=1e-6
    )
    assert estimate([1.0, 7.0], step=1) == estimate([1.0, 7.0])


def test_an_edge_of_what_is_possible_is_no_border_around_a_figure() -> None:
    """As in table1.above60: what is above 60 has its border there, at the 0 that the range is told with."""
    for values, verdict in (([70.0, 71.0, 72.0], HOLDS), ([61.0, 62.0, 66.0], UNDECIDED)):
        measured = np.array(values)
        claim = Claim(
            "c",
            "s",
            "t",
            "p",
            "it",
            lambda e: measured,
            (0, math.inf),
            unit="%",
            centre=lambda e: 60.0,
            middle=60,
            possible=(0, 100),
        )
        entry = claim.judge(Evidence(RESULTS, PAPERS))
        assert entry["verdict"] == verdict
        assert entry["p"] == pytest.approx(ttest_1samp(values, 60).pvalue, abs=1e-6)
        assert (
            entry["rule"]
            == "holds if the interval of it lies above 60 %, does not hold if it lies wholly below 60 %"
        )
        assert ("about 9 seeds" in entry["reason"]) == (verdict == UNDECIDED)


RULES_KNOWN = "f60fe5c143a9a861"


def test_rules_do_not_move_unsaid() -> None:
    """Whoever changes a rule says so in RULES, with the runs that were known by then, and then here."""
    rules = [RULES, *((claim.id, claim.rule) for claim in ALL_CLAIMS)]
    assert hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:16] == RULES_KNOWN


def test_the_headline_is_short() -> None:
    """Eleven numbers beside Table 1's means, two or three a variant: at most thirty."""
    ledger = json.loads((RESULTS / "claims.json").read_text())
    shown = {name for paper in PAPERS for name in paper.import_reader("claims").HEADLINE}
    assert shown <= {claim.id for claim in ALL_CLAIMS}
    found = headline(ledger, shown)
    assert sum(found["claims"].values()) == len(ledger["claims"])
    assert found["painters.order"] == next(
        entry["measured"]["mean"] for entry in ledger["claims"] if entry["id"] == "painters.order"
    )
    means = json.loads((RESULTS / "metrics.json").read_text())
    names = [*flatten(found, separator="/"), *flatten(means, separator="/")]
    assert len(names) <= 30
    assert len(names) <= 11 + 2 * len(means) + sum(
        "position_accuracy" in each for each in means.values()
    )


@pytest.mark.slow
@pytest.mark.parametrize("file", ["headline.json", "metrics.json"])
def test_mlflow_takes_the_names_of_the_headline(file: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    names = flatten(json.loads((RESULTS / file).read_text()), separator="/")
    assert names
    for name in names:
        _validate_metric_name(name)


@pytest.mark.parametrize(
    ("centre", "verdict"), [(70.0, HOLDS), (60.0, FAILS), (85.0, FAILS), (68.0, UNDECIDED)]
)
def test_a_range_around_a_published_figure(centre: float, verdict: str) -> None:
    claim = Claim(
        "c",
        "s",
        "t",
        "p",
        "it",
        lambda e: np.array([72.0, 72.5, 73.0]),
        (-5, 5),
        centre=lambda e: centre,
    )
    assert claim.judge(Evidence(RESULTS, PAPERS))["verdict"] == verdict


def test_an_interval_stays_in_what_is_possible() -> None:
    claim = Claim(
        "c",
        "s",
        "t",
        "p",
        "a share",
        lambda e: np.array([60.0, 80.0, 100.0]),
        (50, math.inf),
        unit="%",
        possible=(0, 100),
    )
    measured = claim.judge(Evidence(RESULTS, PAPERS))["measured"]
    assert (measured["low"], measured["high"]) == (pytest.approx(30.3, abs=0.1), 100)


@pytest.mark.slow
def test_the_commands_of_claims_are_accepted(tmp_path: Path) -> None:
    """What is not run says what runs it, unless nothing would; of several experiments DVC makes single overrides."""
    from dvc.utils.hydra import apply_overrides

    for wanted in {claim.run for claim in ALL_CLAIMS} - {""}:
        shutil.copy(ROOT / "params.yaml", tmp_path)
        overrides = [word for word in shlex.split(wanted) if not word.startswith("-")]
        apply_overrides(
            tmp_path / "params.yaml",
            [override.split(",")[0] if "--queue" in wanted else override for override in overrides],
        )
        assert load(tmp_path / "params.yaml", papers=PAPERS) != load(
            ROOT / "params.yaml", papers=PAPERS
        ), wanted
    known = {claim.id: claim for claim in ALL_CLAIMS}
    for entry in json.loads((ROOT / "results/claims.json").read_text())["claims"]:
        if entry["verdict"] in (NOT_COMPARABLE, NOT_RUN):
            assert known[entry["id"]].run or any(
                words in entry["reason"] for words in ("nothing", "does not come as near", "needs")
            ), entry


@pytest.mark.parametrize("claim", ALL_CLAIMS, ids=lambda claim: claim.id)
def test_a_result_could_contradict_it(claim: Claim) -> None:
    """What is possible reaches beyond the range outside which the claim is contradicted, and that range beyond what it says."""
    least, most = claim.plausible or claim.holds
    assert (
        claim.possible[0] < least or most < claim.possible[1] or claim.centre
    )  # around a published figure
    assert least <= claim.holds[0] <= claim.holds[1] <= most
    assert claim.plausible != claim.holds


def test_a_claim_about_a_missing_variant_is_not_run() -> None:
    def missing(e: Evidence) -> np.ndarray:
        return e.accuracy("ls_nowhere", "arbitrary")

    entry = Claim("c", "s", "t", "p", "it", missing, (0, 1)).judge(Evidence(RESULTS, PAPERS))
    assert entry["verdict"] == NOT_RUN
    assert "ls-nowhere, arbitrary is not among the results" in entry["reason"]
    with pytest.raises(NotRun, match="none of the paper's cells"):
        Evidence(RESULTS, PAPERS).published_cell()


@pytest.mark.slow
def test_figures_of_the_papers_cells_are_compared_there(tmp_path: Path) -> None:
    """On one of the paper's cells a row of Table 1 is judged against the published figure of that cell."""
    shutil.copytree(RESULTS, tmp_path / "results")
    cell = json.loads((RESULTS / "cell.json").read_text()) | {
        "dataset": "imagenet",
        "model": "vit_b16",
        "scale": "published",
    }
    (tmp_path / "results" / "cell.json").write_text(json.dumps(cell))
    rewrite(tmp_path / "results", lambda rows: rows.assign(dataset="imagenet", model="vit_b16"))
    found = {
        entry["id"]: entry for entry in judge(Evidence(tmp_path / "results", PAPERS))["claims"]
    }
    entry = found["table1.baseline.sequential"]
    difference = entry["measured"]["mean"] - 82.61
    half = entry["measured"]["mean"] - entry["measured"]["low"]
    assert entry["verdict"] == (
        HOLDS if abs(difference) + half <= 2 else FAILS if abs(difference) - half > 2 else UNDECIDED
    )
    assert found["table1.baseline.arbitrary"]["verdict"] == FAILS  # a micro model is no ViT-B/16
    assert not [
        name for name in found if name.startswith(("exits", "painters"))
    ]  # their rows are of another cell


def test_the_committed_ledger() -> None:
    """What the ledger promises: every verdict known, measured or with a reason, the counts of seeds and orders beside it."""
    found = json.loads((RESULTS / "claims.json").read_text())
    entries = found["claims"]
    assert [entry["id"] for entry in entries] == [claim.id for claim in ALL_CLAIMS]
    assert len({entry["id"] for entry in entries}) == len(entries) >= 20
    exits, smoothing, inversion = (
        Evidence(RESULTS, PAPERS).table(name) for name in ("exits", "smoothing", "inversion")
    )
    smoothing_seeds = smoothing.groupby("training")[
        "seed"
    ].nunique()  # `smoothing.seeds` may be fewer
    exit_seeds = exits["seed"].nunique() if len(exits) else 0  # `exits.seeds` may be fewer
    for entry in entries:
        assert entry["verdict"] in VERDICTS
        assert bool(entry["reason"]) == (entry["verdict"] != HOLDS)
        assert entry["corrected"] in (entry["verdict"], UNDECIDED)
        if entry["verdict"] not in (NOT_COMPARABLE, NOT_RUN):
            assert (
                entry["measured"]["low"] <= entry["measured"]["mean"] <= entry["measured"]["high"]
            )
            own = {
                "exits": {exit_seeds},
                "smoothing": {*smoothing_seeds, len(found["seeds"])},
                "inversion": {inversion["seed"].nunique()},
            }
            few = own.get(entry["id"].split(".")[0], {len(found["seeds"])})
            assert entry["measured"]["over"] == "images" or entry["measured"]["n"] in few
    page = (RESULTS / "claims.md").read_text()
    assert page == markdown(found)
    assert all(f"| {entry['id']} |" in page for entry in entries)


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A copy of the results, to be changed."""
    shutil.copytree(RESULTS, tmp_path / "results")
    return tmp_path / "results"


def verdicts(folder: Path) -> dict[str, tuple[str, str]]:
    found = judge(Evidence(folder, PAPERS))
    markdown(found)  # shows every entry
    return {entry["id"]: (entry["verdict"], entry["reason"]) for entry in found["claims"]}


def rewrite(
    folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame], name: str = "prune_eval.csv"
) -> None:
    change(pd.read_csv(folder / name, dtype={"route": str})).to_csv(folder / name, index=False)


@pytest.mark.slow
def test_without_ls_its_claims_are_not_run(changed: Path) -> None:
    for name in ("prune_eval.csv", "samplers.csv", "protocols.csv"):
        rewrite(changed, lambda rows: rows[rows["variant"] != "ls"], name)
    found = verdicts(changed)
    assert found["s4.1.price"] == (NOT_RUN, "LS, sequential is not among the results")
    assert found["fig1c.only-ls"][0] == found["fig1c.grows"][0] == NOT_RUN
    assert found["fig1b.full"][0] != NOT_RUN


@pytest.mark.slow
def test_with_all_layers_alone_the_pruning_claims_are_not_run(changed: Path) -> None:
    rewrite(
        changed, lambda rows: rows[(rows["keep"] == 12) | rows["variant"].str.startswith("refit")]
    )
    found = verdicts(changed)
    assert found["fig1c.grows"][0] == found["fig1b.keep3"][0] == NOT_RUN
    assert found["s4.1.gain"][0] == HOLDS


@pytest.mark.slow
def test_a_model_at_chance_has_no_share_of_its_own_accuracy(changed: Path) -> None:
    rewrite(
        changed,
        lambda rows: rows.assign(
            accuracy=rows["accuracy"].where(rows["variant"] != "baseline", 0.1)
        ),
    )
    assert verdicts(changed)["s4.1.collapse"] == (NOT_RUN, "the quantity is a quotient by zero")


@pytest.mark.slow
def test_the_trained_order_is_left_out_or_the_claim_is_not_run(changed: Path) -> None:
    rewrite(changed, lambda rows: rows[rows["route"] != "0-1-2"])
    verdict, reason = verdicts(changed)["fig1c.refit3"]
    assert verdict == NOT_RUN
    assert "were not evaluated one by one" in reason


@pytest.mark.slow
def test_one_seed_has_no_verdict(changed: Path) -> None:
    for path in [changed / f"{name}.csv" for name in ("prune_eval", "samplers", "protocols")] + [
        *changed.glob("exits*.csv"),
        changed / "smoothing.csv",
        changed / "inversion.csv",
        changed / "class_images.csv",
        changed / "painters.csv",
        changed / "nodes.csv",
    ]:
        if "seed" in path.read_text().splitlines()[0].split(","):  # tables of exits have none
            rewrite(changed, lambda rows: rows[rows["seed"] == 0], path.name)
    found = verdicts(changed)
    assert {verdict for name, (verdict, _) in found.items() if not name.startswith("fig4")} == {
        NOT_COMPARABLE,
        NOT_RUN,
    }
    assert found["s4.1.gain"][1] == "one seed, or one model, gives no interval"


def test_seeds_of_several_runs_are_judged_together() -> None:
    """Each once, in the order of the runs, in tables and in what goes by seeds elsewhere; runs of other cells are refused."""
    first, second = (
        CELLS / name
        for name in (
            "fashion_mnist_10k_vit_micro_hours",
            "fashion_mnist_10k_vit_micro_hours_seeds_5_to_9",
        )
    )
    both = Pooled(first, second, first, papers=PAPERS)
    assert both.cell["seeds"] == list(range(10))
    apart = [Evidence(folder, PAPERS).accuracy("ls", "arbitrary") for folder in (first, second)]
    np.testing.assert_array_equal(both.accuracy("ls", "arbitrary"), np.concatenate(apart))
    assert list(both.read("analysis")["models"]["ls"]["position_r2"]["seeds"]) == [
        str(seed) for seed in range(10)
    ]
    assert both.table("table1").equals(Evidence(first, PAPERS).table("table1"))
    with pytest.raises(UserError, match=r"micro_hours: found latin .*, accepted: "):
        Pooled(RESULTS, first, papers=PAPERS)
    with pytest.raises(UserError, match="seeds with the same starting weights"):
        Pooled(CELLS / "fashion_mnist_4k_vit_s14_56_few_epochs", papers=PAPERS)


def test_ledgers_are_compared() -> None:
    found = json.loads((RESULTS / "claims.json").read_text())
    assert changes(found, found) == []
    other = json.loads(json.dumps(found))
    held = next(entry for entry in other["claims"] if entry["verdict"] == HOLDS)
    held["verdict"] = FAILS
    assert changes(found, other) == [held["id"]]
    assert moved(other, found) == ([f"{held['id']}: does not hold, in the other ledger: holds"], [])
    held["rule"] = "another"
    assert moved(other, found) == ([], [f"{held['id']}: does not hold, in the other ledger: holds"])
    held["verdict"] = UNDECIDED
    assert moved(other, found) == ([], [f"{held['id']}: undecided, in the other ledger: holds"])
    held["id"] = "new"
    said = sorted(line.split(": ")[1] for line in moved(other, found)[1])
    assert said == ["no such claim, in the other ledger", "undecided, in the other ledger"]
    assert moved(found, found) == ([], [])
    assert same_cell(found, other)
    assert not same_cell(
        found, other | {"dataset": "another"}
    )  # another cell says nothing about this one


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone of the last commit: a user's own run may have changed the working tree."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "clone")], check=True)
    return tmp_path / "clone"


Claims = Callable[..., tuple[int, str, str]]


@pytest.fixture
def claims(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Claims:
    """`lsvit claims` in the clone, in this process: exit code, output, errors."""
    monkeypatch.chdir(clone)

    def run(against: Path | None = None) -> tuple[int, str, str]:
        try:
            cli.claims(against)
        except SystemExit as end:
            return int(str(end.code)), *capsys.readouterr()
        return 0, *capsys.readouterr()

    return run


def test_a_ledger_of_another_cell_hides_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And one that agrees is named."""
    monkeypatch.chdir(ROOT)
    ledger = json.loads((RESULTS / "claims.json").read_text())
    monkeypatch.setattr("pipeline.report.ledger.judge", lambda evidence: ledger)
    monkeypatch.setattr("pipeline.report.comparison.edited", lambda: ["results/x.csv: modified"])
    (file := tmp_path / "other.json").write_text(json.dumps(ledger | {"dataset": "other"}))
    with pytest.raises(SystemExit):
        cli.claims(file)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: results/x.csv: modified"
    assert second.startswith(f"error: {file}: found a ledger of other with ")
    monkeypatch.setattr("pipeline.report.comparison.edited", list)
    file.write_text(json.dumps(ledger))
    cli.claims(file)
    assert capsys.readouterr().out.endswith(
        f"the ledger is what the result files give, and contradicts {file} nowhere\n"
    )


def test_the_table_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside a verdict its reason, and nothing where there is none."""
    ledger = json.loads((RESULTS / "claims.json").read_text())
    one = {entry["verdict"]: entry for entry in ledger["claims"]}
    for verdict in (HOLDS, FAILS):
        show(ledger | {"claims": [one[verdict] | {"reason": "of stone" * (verdict == FAILS)}]})
        printed = capsys.readouterr().out
        assert verdict in printed
        assert ("of stone" in printed) == (verdict == FAILS)


@pytest.mark.slow
def test_the_command_on_a_fresh_clone(clone: Path) -> None:
    command = [sys.executable, "-m", "stages.commands", "claims"]
    done = subprocess.run(
        command, cwd=clone, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "s4.1.collapse" in done.stdout
    assert re.search(r"\d+ claims: \d+ hold, \d+ do not hold, ", done.stdout)


@pytest.mark.slow
def test_a_figure_changed_by_hand_fails_the_check(clone: Path, claims: Claims) -> None:
    names = ("prune_eval.csv", "table1.csv", "figure1.csv", "analysis.json", "samplers.csv")
    for name in names:
        path = clone / "results" / name
        text = path.read_text()
        digit = re.search(r"0\.\d*[1-8](?=\D)", text)
        assert digit
        end = digit.end() - 1
        path.write_text(f"{text[:end]}{int(text[end]) + 1}{text[digit.end() :]}")
    code, _, errors = claims()
    assert code == 1
    for name in names:
        assert f"error: results/{name}: modified since its stage wrote it" in errors


@pytest.mark.slow
def test_a_broken_or_missing_result_is_one_line(clone: Path, claims: Claims) -> None:
    for name, break_it, said in (
        ("samplers.csv", Path.unlink, "samplers.csv: deleted since its stage wrote it"),
        (
            "cell.json",
            lambda path: path.write_text("{"),
            "results/cell.json: cannot be read (JSONDecodeError",
        ),
    ):
        path = clone / "results" / name
        text = path.read_text()
        break_it(path)
        code, _, errors = claims()
        assert code == 1
        assert said in errors
        assert "Traceback" not in errors
        path.write_text(text)


@pytest.mark.slow
def test_a_verdict_changed_by_hand_fails_the_check(clone: Path, claims: Claims) -> None:
    path = clone / "results" / "claims.json"
    path.write_text(path.read_text().replace('"verdict": "does not hold"', '"verdict": "holds"', 1))
    code, _, errors = claims()
    assert code == 1
    assert "not what the result files give" in errors


@pytest.mark.slow
def test_a_contradiction_fails_the_check_and_a_marginal_line_does_not(
    clone: Path, claims: Claims
) -> None:
    """As after a run that went another way: result files, ledger and lock agree, but the committed ledger said otherwise."""
    path = clone / "results" / "claims.json"
    ledger = json.loads(path.read_text())
    fallen, unclear = (
        next(entry for entry in ledger["claims"] if entry["verdict"] == verdict)
        for verdict in (FAILS, UNDECIDED)
    )
    fallen["verdict"] = unclear["verdict"] = HOLDS
    path.write_text(json.dumps(ledger, indent=1) + "\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run(
        ["git", *identity, "commit", "-qam", "a ledger in which it held"], cwd=clone, check=True
    )
    subprocess.run(["git", "checkout", "-q", "HEAD~1", "--", "results"], cwd=clone, check=True)
    code, _, errors = claims()
    assert code == 1
    moved_line = f"moved: {unclear['id']}: undecided, in the other ledger: holds\n"
    assert (
        errors == moved_line + f"error: {fallen['id']}: does not hold, in the other ledger: holds\n"
    )
    (clone / "another.json").write_text(path.read_text())
    assert claims(clone / "another.json") == (0, ANY, "")
    (clone / "another.json").write_text("[]")
    with pytest.raises(
        UserError, match=r"another.json: cannot be read \(TypeError: found list, accepted: dict"
    ):
        cli.claims(clone / "another.json")
