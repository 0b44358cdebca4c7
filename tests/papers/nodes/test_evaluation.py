"""Stage nodes: what a row says follows from the journeys and the model; jobs, wrong parameters."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from lsvit.routes import ENDED
from papers.nodes.compute.evaluation import evaluate, routes_of_images
from papers.nodes.compute.plan import Plan
from papers.nodes.compute.scheduler import Answer
from papers.nodes.compute.simulation import Run, simulate
from papers.nodes.section import POLICIES, Nodes, NodesConfig, Policy
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.jobs.files import ROWS
from pipeline.jobs.rows import read_rows
from pipeline.training.scoring import open_model, open_split
from tests.conftest import cases_of, run_fields
from tests.papers.conftest import Keys

OPTIONS = Nodes.model_validate(cases_of(__file__))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_a_row_says_what_the_model_answers_along_the_journeys(
    policy: Policy, pico: ModelPreset, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    """36 images travel in 5 micro-batches, the last of 4; each is run alone along its route."""
    fields = run_fields(prepared, pico, precision="fp32")
    config = NodesConfig(**fields, options=OPTIONS, policy=policy, draw=3)
    evaluate(config, prepared, weights, tmp_path, lambda event: None)
    rows = read_rows(tmp_path / ROWS).set_index(["replication", "fault"])
    assert list(rows.index) == list(itertools.product(OPTIONS.replication, OPTIONS.faults))
    model, _ = open_model(config, prepared, weights)
    images, labels = open_split(config, prepared, "validation", model, 36).take(slice(0, 36))
    for (copies, name), row in rows.iterrows():
        run = simulate(4, copies, 4, 5, 1, policy, OPTIONS.service, OPTIONS.faults[name], 0, 3, 4)
        whole = [answer for answer in run.answers if not answer.lost]
        assert (row.micro_batches, row.lost, row.images) == (5, 5 - len(whole), 36)
        right = []
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            answer = run.answers[i // 8]
            if not answer.lost:
                right.append(int(model(image[None], answer.route).argmax()) == int(label))
        assert row.right == pytest.approx(sum(right) / 36, abs=1e-6)
        if not whole:
            assert np.isnan([row.accuracy, row.layers, row.p50_s]).all()
            continue
        assert row.accuracy == round(np.mean(right), 6)
        layers = np.mean([len(answer.route) for answer in whole])
        assert row.layers == pytest.approx(layers, abs=1e-6)
        counted, seconds = run.steady(1)
        assert counted == [1, 2, 3]
        times = [run.answers[i].seconds for i in counted if not run.answers[i].lost]
        assert row.images_per_s == pytest.approx(8 * len(times) / seconds, abs=1e-6)
        assert row.p50_s == pytest.approx(np.median(times), abs=1e-6)
        assert row.p99_s == pytest.approx(np.percentile(times, 99), abs=1e-6)
    assert (rows.loc[(1, "gone"), "lost"] == 0) == (policy == "any")


def test_routes_of_images_may_differ_in_length() -> None:
    """Five images travel in threes; the second three have no answer."""
    answers = [Answer((2, 0, 1), False, 0.0, 3.0), Answer((1,), True, 0.0, 3.0)]
    routes, answered = routes_of_images(Run(answers, 1.0), 5, 3)
    assert routes.table[:3].tolist() == [[2, 0, 1]] * 3
    assert answered.tolist() == [True, True, True, False, False]
    answers[1] = Answer((1,), False, 0.0, 3.0)
    routes, answered = routes_of_images(Run(answers, 1.0), 5, 3)
    assert routes.table[3:].tolist() == [[1, ENDED, ENDED]] * 2
    assert answered.all()


def test_one_job_a_variant_policy_and_seed(keys: Keys, params: Params) -> None:
    known = keys(Plan, "nodes")
    plan = Plan(params)
    assert len(known) == len(params.seeds) * sum(map(len, plan.options.variants.values()))
    plan.options = plan.options.model_copy(update={"variants": {"ls": ["any"]}})
    assert {job.key for job in plan.jobs().values()} < known
