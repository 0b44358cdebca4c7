"""The scheduler and the simulation around it.

Who may be asked next, what is given up, and that equal draws give equal journeys.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from lsvit.routes import generator
from papers.nodes.compute.scheduler import (
    Answer,
    Client,
    Journey,
    Known,
    News,
    Send,
    Step,
    Wait,
    place,
)
from papers.nodes.compute.simulation import FOREVER, Node, Run, Troubles, absences, simulate
from papers.nodes.section import Fault, Policy, Service
from tests.conftest import cases_of

Answers = Callable[[Send], float | None]
LAYERS = 8
WHOLE = tuple(range(LAYERS))
CASES = cases_of(__file__)
SERVICE = Service.model_validate(CASES["service"])


def walks(
    policy: Policy, answers: Answers, copies: int = 1, deadline: float = 4.0, **known: Any
) -> Iterator[tuple[Answer, list[Send]]]:
    """Journeys over 8 nodes, one after another, by a client that rests as long as a pass takes.

    Ways take no time. Nodes send on by what the client knew when it last sent; what is late
    reaches nobody.

    Args:
        policy: of the client.
        answers: after how many seconds a node has run its layer, or None.
        copies: nodes a layer.
        deadline: of a journey, in passes.
        known: what the client knows of nodes.
    """
    now = 0.0
    options = SERVICE.model_copy(update={"deadline": deadline})
    client, node = two(copies, options, lambda: now, **known)
    while True:
        steps = client.journey(policy)
        sent: list[Send] = []
        news = None
        try:
            step = next(steps)
            while True:
                asked = step.send or (news.onward if news else None)
                if step.send:
                    node.read(client.table(), now)
                if asked is None:  # a rest
                    now = step.until
                    step, news = steps.send(None), None
                    continue
                sent.append(asked)
                seconds = answers(asked)
                news = None
                if seconds is not None and now + seconds <= asked.until:
                    now += seconds
                    route = (*step.journey.route, asked.layer)
                    onward = node.onward(step.journey._replace(route=route), asked.node)
                    news = News(asked.node, route, onward)
                else:
                    now = step.until
                step = steps.send(news)
        except StopIteration as end:
            yield end.value, sent
            now += LAYERS


def two(
    copies: int = 1,
    options: Service = SERVICE,
    now: Callable[[], float] = lambda: 0.0,
    **known: dict[int, float],
) -> tuple[Client, Known]:
    """A client, and what its nodes know from it, by default at time 0."""
    client = Client(place(LAYERS, copies, LAYERS), options, now, np.random.default_rng(0))
    for name, values in known.items():
        getattr(client, name).update(values)
    node = Known(client.holders, options, client.now)
    node.read(client.table(), now())
    return client, node


def within(seconds: dict[int, float | None]) -> Answers:
    """Nodes answer after so many seconds, others after one."""
    return lambda step: seconds.get(step.node, 1.0)


def gone(*nodes: int) -> Answers:
    return within(dict.fromkeys(nodes))


@pytest.mark.parametrize(("nodes", "copies"), [(12, 1), (6, 3), (5, 2)])
def test_layers_are_spread_evenly(nodes: int, copies: int) -> None:
    holders = place(nodes, copies, 12)
    assert all(len(each) == copies for each in holders)
    held = np.bincount(list(itertools.chain(*holders)), minlength=nodes)
    assert held.max() - held.min() <= copies


def test_copies_of_a_layer_lie_far_apart() -> None:
    """On nodes a half of all, or a third, further on."""
    assert place(5, 2, 3) == [[0, 2], [1, 3], [2, 4]]
    assert place(7, 3, 2) == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(("name", "policy", "nodes", "layers", "lost"), CASES["journeys"])
def test_journeys(
    name: str, policy: Policy, nodes: dict[str, Any], layers: list[int], lost: bool
) -> None:
    """Which layers run. None runs twice, and in strict order they are the first ones."""
    nodes = {"silent": [], "known": {}} | nodes
    answers = gone(*nodes.pop("silent"))
    answer, sent = next(walks(policy, answers, **nodes.pop("known"), **nodes))
    assert (sorted(answer.route), answer.lost) == (layers, lost), name
    if policy == "strict" or (policy == "partial" and layers == [*WHOLE]):
        assert answer.route == tuple(layers)
    if not any(answers(step) is None for step in sent):
        assert answer.seconds == len(sent) == len(layers)


def test_deadlines() -> None:
    """They end any order wherever it is; strict order gives up."""
    answer, _ = next(walks("any", gone(), deadline=0.5))
    assert (len(answer.route), answer.lost, answer.seconds) == (4, False, 4)
    answer, sent = next(walks("strict", gone(3)))
    assert answer.seconds == SERVICE.deadline * LAYERS
    assert {step.node for step in sent} == {0, 1, 2, 3}


def test_partial_order_swaps_neighbours_alone() -> None:
    slow, _ = next(walks("partial", within({2: 2.5})))
    assert all(abs(depth - layer) <= 1 for depth, layer in enumerate(slow.route))


def test_a_silent_node_is_asked_again_later() -> None:
    asked: list[int] = []

    def answers(step: Send) -> float | None:
        asked.append(step.node)
        return None if step.node == 5 and asked.count(5) == 1 else 1.0

    answer, _ = next(walks("strict", answers))
    assert (answer.route, answer.lost) == (WHOLE, False)
    assert answer.seconds == pytest.approx(LAYERS + SERVICE.patience + SERVICE.suspicion)


def test_a_client_waits_a_hop_longer_than_the_node_may_take() -> None:
    client, _ = two(options=SERVICE.model_copy(update={"hop": 0.5, "patience": 1.0}))
    step = next(client.journey("strict"))
    assert step.send == Send(0, 0, 1.5)  # a layer and the way there and back
    assert step.until == 1.5 + 0.5


def test_a_slow_node_becomes_known() -> None:
    """It takes longer than patience at first; strict order goes on at its pace."""
    answer, sent = next(walks("strict", within({3: 5.0}), deadline=8))
    assert (answer.route, answer.lost) == (WHOLE, False)
    untils = [step.until for step in sent if step.node == 3]
    assert untils == [3 + 3, 3 + 3 + 5 + 6]  # the second time after a rest of 5


@pytest.mark.parametrize(("seconds", "silences"), [(4.0, 0), (3.0, 0), (0.5, 1)])
def test_a_wait_that_the_deadline_cuts_off_is_no_silence(seconds: float, silences: int) -> None:
    """Of three seconds of patience; a node that refuses, before that, is silent all the same."""
    now = 0.0
    soon = SERVICE.model_copy(update={"deadline": 2 / LAYERS})
    client, _ = two(options=soon, now=lambda: now)
    journey = client.journey("strict")
    assert next(journey) == Step(Journey("strict", 2.0), Send(0, 0, 2.0), 2.0)
    now = min(seconds, 2.0)
    with contextlib.suppress(StopIteration):
        journey.send(Send(0, 0, 2.0) if seconds < 2 else None)
    assert client.silent[0] == silences
    assert client.waiting[0] == 0


def test_rests_grow_no_more_after_six_silences() -> None:
    client, _ = two(silent={0: 6.0})
    steps = client.journey("strict")
    with pytest.raises(StopIteration):
        steps.send(next(steps).send)  # it refuses, and rests longer than there is
    assert client.silent[0] == 6
    assert client.until[0] == 2**6 * SERVICE.suspicion


@pytest.mark.parametrize("policy", ["strict", "partial", "any"])
def test_a_node_that_comes_back_is_used_again(policy: Policy) -> None:
    """Away for 15 journeys, however often it was silent then.

    From the tenth after them on no layer is left out.
    """
    away = True
    journeys = walks(policy, lambda step: None if away and step.node == 5 else 1.0)
    before = [next(journeys)[0] for _ in range(15)]
    away = False
    after = [next(journeys)[0] for _ in range(15)]
    assert all(answer.lost if policy == "strict" else 5 not in answer.route for answer in before)
    assert all(sorted(answer.route) == [*WHOLE] for answer in after[10:])


@pytest.mark.parametrize(("known", "journey", "onward"), CASES["onward"])
def test_a_node_decides_what_is_clear(
    known: dict[str, Any], journey: list[Any], onward: list[Any] | None
) -> None:
    _, node = two(**known)
    policy, end, *layers = journey
    found = node.onward(Journey(policy, end, *map(tuple, layers)), layers[0][-1])
    assert found == (Send(*onward) if onward else None)


@pytest.mark.parametrize(("holders", "here", "layer", "onward"), CASES["around"])
def test_of_a_layers_nodes_as_good_the_next_one_around_is_asked(
    holders: list[list[int]], here: int, layer: int, onward: int
) -> None:
    """Copies of the layers are as many pipelines: around by rank, not by number."""
    client = Client(holders, SERVICE, lambda: 0.0, np.random.default_rng(0))
    send = client.onward(Journey("strict", 32.0, (*range(layer),)), here)
    assert send == Send(onward, layer, 3.0)


def test_of_what_is_known_the_newest_counts() -> None:
    client, node = two(takes={3: 7.0})
    client.takes[3] = 5.0
    node.read(client.table(), 2.0)
    assert node.expected(3) == 5.0
    client.takes[3] = 4.0
    node.read(client.table(), 1.0)
    assert node.expected(3) == 5.0
    assert node.expected(2) == 1.0


def test_of_lost_news_the_next_ones_tell() -> None:
    """Node 0's news does not arrive, node 1's does.

    Both, silent before, are so no more, and the client waits for node 2.
    """
    client, _ = two(silent={0: 1.0, 1: 1.0}, until={1: 9.0})
    steps = client.journey("strict")
    assert next(steps).send == Send(0, 0, 6.0)
    step = steps.send(News(1, (0, 1), Send(2, 2, 3.0)))
    assert (step.journey.route, step.send, step.until) == ((0, 1), None, 3.0)
    assert not any((*client.silent.values(), *client.until.values()))
    assert [client.waiting[node] for node in range(3)] == [0, 0, 1]
    step = steps.send(Send(2, 2, 3.0))  # refused: it is asked again later, there being no other one
    assert (step.journey.route, step.send, step.until) == ((0, 1), None, SERVICE.suspicion)
    assert client.silent[2] == 1


@pytest.mark.parametrize(("until", "step"), [(30.9, Wait(30.9)), (31.0, None)])
def test_strict_order_waits_for_a_node_that_rests_where_the_other_one_is_too_late(
    until: float, step: Wait | None
) -> None:
    client, _ = two(copies=2, due={0: 40.0}, silent={4: 1.0}, until={4: until})
    assert client._next(Journey("strict", 32.0)) == (Journey("strict", 32.0), step)


@pytest.mark.parametrize("policy", ["strict", "any"])
@pytest.mark.parametrize(("end", "step"), [(1.0, Send(7, 7, 1.0)), (0.9, None)])
def test_a_layer_that_can_end_just_in_time_is_asked_for(
    policy: Policy, end: float, step: Send | None
) -> None:
    client, _ = two()
    journey = Journey(policy, end, WHOLE[:-1])
    assert client._next(journey) == (journey, step)


def test_a_layer_that_ran_after_all_is_not_left_out() -> None:
    client, _ = two(silent={1: 1.0, 2: 1.0}, until={1: 50.0, 2: 50.0})
    steps = client.journey("partial")
    next(steps)
    step = steps.send(News(0, (0,), None))
    assert (step.journey.left_out, step.send) == ((1,), Send(3, 3, 3.0))
    step = steps.send(News(1, (0, 1), None))  # late, from whom it was sent to before
    assert step.journey == Journey("partial", 32.0, (0, 1))


@pytest.mark.parametrize("policy", ["any", "partial"])
def test_a_slow_node_that_was_silent_is_asked_again(policy: Policy) -> None:
    """Though to wait for it as long as it deserves takes more than there is."""
    client, _ = two(silent={5: 1.0}, takes={5: 12.0})
    steps = client.journey(policy)
    next(steps)
    step = steps.send(News(0, tuple(layer for layer in WHOLE if layer != 5), None))
    assert (step.journey.left_out, step.send) == ((), Send(5, 5, 32.0))


@pytest.mark.parametrize(("heard", "accepted"), CASES["heard"])
def test_what_a_client_accepts(heard: list[Any], accepted: bool) -> None:
    client, _ = two()
    step = Step(Journey("any", 32.0, (3, 4)), Send(5, 5, 3.0), 3.0)
    node, route, onward = heard
    if isinstance(route, list):
        news = News(node, tuple(route), Send(*onward) if onward else None)
        assert client.accepts(step, news) == accepted
    else:
        assert client.accepts(step, Send(*heard)) == accepted


def test_news_of_one_node_that_sends_on_to_another_counts() -> None:
    client = Client([[0], [1]], SERVICE, lambda: 0.0, np.random.default_rng(0))
    step = Step(Journey("any", 8.0), Send(0, 0, 3.0), 3.0)
    assert client.accepts(step, News(0, (0,), Send(1, 1, 3.0)))


# ---- simulated nodes ----


def run(
    policy: Policy,
    fault: Fault,
    key: int = 0,
    copies: int = 1,
    in_flight: int = 8,
    options: Service = SERVICE,
) -> Run:
    return simulate(LAYERS, copies, LAYERS, 40, in_flight, policy, options, fault, key)


def test_equal_draws_give_equal_journeys() -> None:
    fault = Fault(away=0.3, lost=0.05)
    assert run("any", fault) == run("any", fault) != run("any", fault, key=1)


@pytest.mark.parametrize(("policy", "setting", "service", "fault", "found"), CASES["drawn"])
def test_journeys_of_the_same_draws_stay_as_they_are(
    policy: Policy,
    setting: dict[str, int],
    service: dict[str, float],
    fault: dict[str, float],
    found: list[float],
) -> None:
    """Sums of recorded runs: a change of the scheduler or of the nodes may show here alone."""
    options = SERVICE.model_copy(update=service)
    answers, busy = run(policy, Fault(**fault), options=options, **setting)
    lost = sum(answer.lost for answer in answers)
    layers = sum(len(answer.route) for answer in answers)
    order = sum(place * layer for answer in answers for place, layer in enumerate(answer.route))
    seconds = sum(answer.seconds for answer in answers)
    assert [lost, layers, order, seconds, busy] == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize("policy", ["strict", "partial", "any"])
def test_journeys_scale_with_the_times_of_the_service(policy: Policy) -> None:
    """No second is built in. Powers of two are exact in floating point."""
    shorter = 2.0**-12
    fault = Fault(away=0.3, lost=0.05, slow=3.0)
    times = {"service": 1.0, "hop": 0.25, "handling": 0.125}
    short = {name: value * shorter for name, value in times.items()}
    slow, fast = (
        run(policy, fault, options=SERVICE.model_copy(update={"spread": 0.3} | each))
        for each in (times, short)
    )
    assert fast.busy == slow.busy
    assert fast.answers == [
        answer._replace(begun=answer.begun * shorter, ended=answer.ended * shorter)
        for answer in slow.answers
    ]


@pytest.mark.parametrize("policy", ["strict", "partial", "any"])
def test_images_go_from_node_to_node(policy: Policy) -> None:
    """From one to the next it takes half a way there and back, not a whole one to the client and
    on.
    """
    far = SERVICE.model_copy(update={"hop": 0.5})
    found = simulate(LAYERS, 1, LAYERS, 1, 1, policy, far, Fault(), 0)
    assert found.answers[0].seconds == pytest.approx(LAYERS * 1.25 + 0.25)


@pytest.mark.parametrize(("hop", "whole"), [(0.0, False), (0.5, True)])
def test_what_a_node_ends_goes_on_if_that_is_in_time(hop: float, whole: bool) -> None:
    """It takes two seconds, of which nobody knows.

    The client, which waits for one and a half, does without the layer. With half a second for the
    way it waits for two and a quarter, which is just enough.
    """
    impatient = SERVICE.model_copy(update={"patience": 1.5, "suspicion": 100, "hop": hop})
    found = simulate(LAYERS, 1, LAYERS, 3, 1, "any", impatient, Fault(slow=2), 0)
    slow = Troubles.draw(Fault(slow=2), LAYERS, 1.0, 0).slow
    for answer in found.answers:
        assert sorted(answer.route) == [layer for layer in WHOLE if whole or layer != slow]


def test_healthy_nodes_are_busy_all_the_time_in_any_order() -> None:
    free, strict = run("any", Fault()), run("strict", Fault())
    assert max(answer.ended for answer in free.answers) == pytest.approx(40)
    assert free.busy == pytest.approx(1)
    assert max(answer.ended for answer in strict.answers) >= 40 + LAYERS - 1
    assert sorted(free.answers[0].route) == [*WHOLE]
    for journeys in (free, strict):  # one answer a second where the load is steady
        counted, seconds = journeys.steady(8)
        assert (len(counted), seconds) == (24, pytest.approx(24))


def test_what_counts_as_steady() -> None:
    """Three under way.

    After three have ended, a multiple of three, and none once there is no other one to begin.
    """
    ends = [4.0, 1.0, 2.0, 3.0, 6.0, 5.0, 7.0, 9.0, 8.0, 11.0, 10.0]
    found = Run([Answer((0,), False, end - 1, end) for end in ends], 1.0)
    assert found.steady(3) == ([0, 5, 4], 3.0)
    assert found.steady(4) == ([], 0.0)  # too few
    for under_way in (1, 2, 3):
        counted, _ = found.steady(under_way)
        assert len(counted) % under_way == 0
        assert max(ends[number] for number in counted) <= 11 - under_way


def test_a_node_drops_what_nobody_waits_for() -> None:
    node = Node(1.0, iter(()))
    assert node.done(0.0) == 1.0
    assert node.done(0.0, 0.5) == FOREVER
    assert node.done(0.0, 1.0) == 2.0  # begun in time
    assert node.busy == 2.0


def test_no_answer_is_lost_in_any_order_as_long_as_one_layer_lives() -> None:
    for gone in (1, 4, 7):
        found = run("any", Fault(gone=gone / LAYERS))
        assert not any(answer.lost for answer in found.answers)
        assert {len(answer.route) for answer in found.answers} == {LAYERS - gone}
        assert all(answer.lost for answer in run("strict", Fault(gone=gone / LAYERS)).answers)
    assert all(answer.lost for answer in run("any", Fault(gone=1.0)).answers)


def test_more_nodes_gone_are_the_fewer_and_others() -> None:
    few, many = (Troubles.draw(Fault(gone=share), 12, 0.1, 3).gone for share in (0.25, 0.5))
    assert (len(few), len(many)) == (3, 6)
    assert few < many


def test_a_slow_node_is_one_that_is_not_gone() -> None:
    assert Troubles.draw(Fault(), 4, 0.1, 0).slow is None
    for key in range(10):
        troubles = Troubles.draw(Fault(gone=0.75, slow=2), 4, 0.1, key)
        assert troubles.slow in {0, 1, 2, 3} - troubles.gone


@pytest.mark.parametrize("shape", [1.0, 0.59])
def test_absences_and_presences_have_their_mean_lengths(shape: float) -> None:
    """Of periods that have begun before, what is left has the mean E[X^2] / 2 E[X]."""
    fault = Fault(away=0.25, absence=10, shape=shape)
    absent, present, absent_rest, present_rest = [], [], [], []
    for number in range(4000):
        first, *later = itertools.islice(absences(fault, 0.5, generator("test", number)), 3)
        if first.start:
            present_rest.append(first.start)
        else:
            absent_rest.append(first.end)
        for before, after in itertools.pairwise([first, *later]):
            present.append(after.start - before.end)
            absent.append(after.end - after.start)
    assert np.mean(absent) == pytest.approx(5, rel=0.1)
    assert np.mean(present) == pytest.approx(15, rel=0.1)
    rest = 5 * math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 / 2
    assert np.mean(absent_rest) == pytest.approx(rest, rel=0.15)
    assert np.mean(present_rest) == pytest.approx(3 * rest, rel=0.15)


@pytest.mark.parametrize(("away", "shape"), [(0.25, 1.0), (0.7, 0.59)])
def test_nodes_are_away_their_share_of_the_time(away: float, shape: float) -> None:
    """Over 2,000 nodes, at the start and later: the standard error is 0.01."""
    fault = Fault(away=away, absence=10, shape=shape)
    times = np.array([0.0, 15.0, 30.0])
    counts = np.zeros(3)
    for number in range(2000):
        for start, end in absences(fault, 1.0, generator("test", number)):
            counts += (start <= times) & (times < end)
            if start > 30:
                break
    assert counts / 2000 == pytest.approx([away] * 3, abs=0.045)
