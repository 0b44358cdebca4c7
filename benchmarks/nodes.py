"""A model spread over real processes that fail: `python benchmarks/nodes.py latin | faults | swarm`
-> results/nodes_measured/.

latin: throughput of the Latin schedule and of a pipeline in strict order, on 12 nodes.

faults: what the stage `nodes` simulates, with the same draws of faults (not of lost messages) and
the same weights, seed by seed, on 12 processes. Those away for good are killed, those that come and
go are stopped and continued (SIGSTOP, SIGCONT), and lost messages are never sent. Beside it the
simulation, with a message's times at a node and on the way as measured here (`busy` is all work
there, and of the processes that on the layers of the answers).

swarm: the simulation alone, at the size of the internet.

Needs Ray (`uv sync --extra cluster`) but for the last, and the default run's weights (`dvc repro`).
"""

import argparse
import asyncio
import contextlib
import math
import os
import signal
import statistics
import time
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import timm
import torch
from machine import machine, show, write
from nodes_cluster import Cluster, cluster
from nodes_schedules import latin_ticks, pipeline_ticks, swarm
from nodes_servers import Message, Weights, logits

from lsvit.routes import generator
from papers import PAPERS
from papers.nodes.compute.evaluation import COLUMNS, summary
from papers.nodes.compute.plan import Plan
from papers.nodes.compute.scheduler import Client, Journey, Send, place
from papers.nodes.compute.simulation import Run, Troubles, simulate
from papers.nodes.section import POLICIES, Fault, Nodes, Policy, Service
from pipeline.config.load import load
from pipeline.errors import UserError, one_line_errors
from pipeline.jobs.address import ADDRESS
from pipeline.jobs.files import DATA, read_meta
from pipeline.training.scoring import open_split

OUT = Path("results/nodes_measured")
NODES, SEEDS = 12, (0, 1, 2)
METHODS: list[tuple[str, Policy]] = [
    ("baseline", "strict"),
    ("baseline", "partial"),
    ("layerdrop", "partial"),
    ("ls", "any"),
]
MORE: list[tuple[str, Policy]] = [
    ("ls_pos", "any"),
    ("ls_pred", "any"),
]  # on healthy nodes, and with half of them gone
FAULTS = ("healthy", "slow", "away", "lost", "gone_3", "gone_6", "gone_9")
IMAGES = 300
# Service: what `layer_time` gives on one core of the machine named in swarm.json. A round trip of
# 159 ms, the median between 1,740 name servers (Dabek et al., Vivaldi, SIGCOMM 2004, from King's
# measurements); lognormal and its sigma are ours. Presence: Weibull of shape 0.59 and scale 41.9
# minutes, one of three BitTorrent swarms (Stutzbach and Rejaie, Understanding churn in peer-to-peer
# networks, IMC 2006); absence of the same shape, its mean as the share away wants it.
INTERNET = Service(
    service=0.18, hop=0.159, spread=0.5, deadline=8, patience=4, suspicion=50, leave_out=0.25
)
SHAPE, SESSION = 0.59, 41.9 * 60 * math.gamma(1 + 1 / 0.59)
# Nodes, clients, journeys of each that count, seconds from one to the next. Light: a client asks
# every two minutes, so that nodes come and go meanwhile. Heavy: every client asks again at once.
LOADS = [
    ("light", nodes, min(max(nodes // 10, 20), 200), 20, 120.0) for nodes in (12, 96, 1000, 10_000)
] + [("heavy", 96, 144, 20, 0.0)]


def weights(variant: str, seed: int) -> Weights:
    """Of the default run."""
    params = load(papers=PAPERS)
    file = Plan(params).weights_of(variant, seed).resolve()
    return Weights(
        params.model_preset, len(read_meta(DATA)["classes"]), params.all_variants[variant], file
    )


def messages(
    variant: str, seed: int, images: int, batch: int
) -> tuple[Any, list[bytes], torch.Tensor]:
    """A model, the first validation images as its messages, and their labels."""
    params = load(papers=PAPERS)
    model = weights(variant, seed).open()
    config = next(iter(Plan(params).jobs().values())).config
    split = open_split(config, DATA, "validation", model, images)
    with torch.inference_mode():
        found = [
            (Message(model.embed(pixels), ()).pack(), labels)
            for _, pixels, labels in split.in_order(batch)
        ]
    return model, [packed for packed, _ in found], torch.cat([labels for _, labels in found])


def latin() -> list[dict[str, Any]]:
    """Both schedules for 1 to 64 micro-batches, with a declared service time and without."""
    rows = []
    with cluster(NODES, 0.0) as found:
        found.hold(
            weights("ls", 0), place(NODES, 1, NODES), load(papers=PAPERS).resolve(Nodes).service
        )
        for service, batch in ((0.05, 5), (0.0, 5), (0.0, 100)):
            _, packed, _ = messages("ls", 0, batch, batch)
            found.pace(service)
            found.follow(latin_ticks(NODES, NODES), packed * NODES)  # warm
            for m in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64):
                for name, ticks in (
                    ("latin", latin_ticks(m, NODES)),
                    ("pipeline", pipeline_ticks(m, NODES)),
                ):
                    found.pace(service)
                    begun = time.perf_counter()
                    found.follow(ticks, packed * m)
                    seconds = time.perf_counter() - begun
                    rows.append(
                        {
                            "service_s": service,
                            "images": batch,
                            "schedule": name,
                            "micro_batches": m,
                            "ticks": len(ticks),
                            "seconds": seconds,
                            "micro_batches_per_s": m / seconds,
                            "of_the_bound": len(ticks) * service / seconds,
                            "hop_ms": 1000 * seconds / (m * NODES),
                            "compute_ms": 1000 * found.pace(service) / (m * NODES),
                        }
                    )
    return rows


def handling_time(found: Cluster, packed: bytes, service: Service) -> float:
    """Seconds that a node takes for a message besides its service time, when all of them have
    twenty to do.
    """
    only = Journey("any", math.inf, left_out=tuple(range(NODES)))
    begun = time.perf_counter()
    sends = [Send(node, node, math.inf) for node in range(NODES)] * 20
    found.ray.get(
        [
            found.actors[send.node].relay.remote(-1, packed, only, [], -math.inf, send)
            for send in sends
        ]
    )
    return (time.perf_counter() - begun) / 20 - service.service


def hop_time(found: Cluster, packed: bytes, service: Service) -> float:
    """Seconds of the way there and back.

    What one node takes for a message, less its service time.
    """
    times = []
    for _ in range(30):
        begun = time.perf_counter()
        found.ray.get(found.actors[0].run.remote(packed, 0))
        times.append(time.perf_counter() - begun)
    return statistics.median(times) - service.service


async def come_and_go(pids: dict[int, int], troubles: Troubles) -> None:
    """Stop and continue the processes of nodes as they are away."""

    async def one(pid: int, node: int) -> None:
        begun = time.perf_counter()
        try:
            for absence in troubles.away[node]:
                await asyncio.sleep(max(absence.start - (time.perf_counter() - begun), 0))
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(max(absence.end - (time.perf_counter() - begun), 0))
                os.kill(pid, signal.SIGCONT)
        finally:
            os.kill(pid, signal.SIGCONT)

    await asyncio.gather(*(one(pid, node) for node, pid in pids.items()))


async def measure(
    found: Cluster,
    pids: dict[int, int],
    troubles: Troubles,
    client: Client,
    policy: Policy,
    packed: list[bytes],
    in_flight: int,
    fault: Fault,
    *key: int,
) -> tuple[Run, list[bytes]]:
    """Serve all micro-batches while nodes come and go."""
    away = asyncio.create_task(come_and_go(pids, troubles)) if fault.away else None
    begun = time.perf_counter()
    answers = await found.serve(client, policy, packed, in_flight, fault.lost, *key)
    seconds = time.perf_counter() - begun
    if away:
        away.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await away
    busy = (
        sum(len(answer.route) for answer, _ in answers)
        * client.options.service
        / (seconds * (NODES - len(troubles.gone)))
    )
    return Run([answer for answer, _ in answers], busy), [state for _, state in answers]


def cells(options: Nodes) -> Iterator[tuple[int, str, list[tuple[str, Policy]]]]:
    """What is measured: copies of a layer, fault, methods. Nodes that are killed come last."""
    for fault, replication in product(FAULTS, (1, 2)):
        yield (
            replication,
            fault,
            METHODS + (MORE if fault in ("healthy", "gone_6") and replication == 1 else []),
        )


def faults() -> list[dict[str, Any]]:
    """Every fault and method on real processes, and as simulated with the same faults.

    Once a seed, each with nodes of its own.
    """
    if ADDRESS in os.environ:  # nodes elsewhere have other processes' numbers
        raise UserError(
            f"{ADDRESS}: found {os.environ[ADDRESS]!r}, accepted: none, "
            "since processes of this machine are stopped"
        )
    rows: list[dict[str, Any]] = []
    for row in chain.from_iterable(map(faults_of, SEEDS)):
        rows.append(row)
        print(*row.values(), flush=True)
        pd.DataFrame(rows).to_csv(OUT / "faults.csv", index=False, lineterminator="\n")
    return rows


def faults_of(seed: int) -> Iterator[dict[str, Any]]:
    """The rows of one seed, as they come."""
    options = load(papers=PAPERS).resolve(Nodes)
    service, batch = options.service, options.micro_batch
    _, packed, _ = messages("ls", seed, batch, batch)
    with cluster(NODES, service.service) as found:
        holders = place(NODES, 1, NODES)
        found.hold(weights("ls", seed), holders, service)
        for layer, actor in found.actors.items():
            found.ray.get(actor.run.remote(packed[0], layer))
        measured = {
            "handling": handling_time(found, packed[0], service),
            "hop": hop_time(found, packed[0], service),
        }
        service = service.model_copy(update=measured)
        print(
            f"a message takes {1000 * service.handling:.2f} ms at its node, "
            f"a hop {1000 * service.hop:.2f} ms",
            flush=True,
        )
        for replication, name, methods in cells(options):
            fault, key = options.faults[name], (options.seed, seed, NODES)
            holders = place(NODES, replication, NODES)
            for node in Troubles.draw(fault, NODES, service.service, *key).gone:
                found.kill(node)
            for variant, policy in methods:
                troubles = Troubles.draw(fault, NODES, service.service, *key)
                model, packed, labels = messages(variant, seed, IMAGES, batch)
                pids = found.hold(weights(variant, seed), holders, service)
                found.pace(service.service, troubles.slow, fault.slow, fault.lost, *key)
                client = Client(holders, service, time.time, generator("nodes client", *key))
                run, states = asyncio.run(
                    measure(
                        found,
                        pids,
                        troubles,
                        client,
                        policy,
                        packed,
                        options.in_flight,
                        fault,
                        *key,
                    )
                )
                answered = np.repeat([not answer.lost for answer in run.answers], batch)
                right = (
                    torch.cat([logits(model, state) for state in states]).argmax(1) == labels
                ).numpy() & answered
                simulated = simulate(
                    NODES,
                    replication,
                    NODES,
                    len(packed),
                    options.in_flight,
                    policy,
                    service,
                    fault,
                    *key,
                )
                dreamt = np.repeat([not answer.lost for answer in simulated.answers], batch)
                for how, each, hits, there in (
                    ("processes", run, right, answered),
                    ("simulation", simulated, dreamt & False, dreamt),
                ):
                    numbers = dict(
                        zip(COLUMNS[4:], summary(each, options, hits, there), strict=True)
                    )
                    if how == "simulation":
                        numbers |= {"accuracy": None, "right": None}
                    where = {
                        "variant": variant,
                        "policy": policy,
                        "seed": seed,
                        "replication": replication,
                        "fault": name,
                        "gone": fault.gone,
                        "how": how,
                        "handling_s": round(service.handling, 5),
                        "hop_s": round(service.hop, 5),
                    }
                    yield where | numbers


@torch.inference_mode()
def layer_time(images: int = 5) -> float:
    """Seconds that one core takes for a layer of ViT-B/16.

    The median of the twelve, each run once before.
    """
    torch.set_num_threads(1)
    model, times = timm.create_model("vit_base_patch16_224").eval(), []
    state = torch.randn(images, 197, 768)
    blocks = list(cast(torch.nn.Sequential, model.blocks)) * 2
    for block in blocks:
        begun = time.perf_counter()
        block(state)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[len(blocks) // 2 :])


def swarms() -> list[dict[str, Any]]:
    """The swarm.

    Availability, latency and idle time, by load, size, share of time that nodes are away, copies
    and policy.
    """
    rows = []
    for (name, nodes, clients, journeys, rest), away, replication, policy in product(
        LOADS, (0.02, 0.1, 0.3), (1, 2, 4, 8), POLICIES
    ):
        if replication > nodes // NODES:
            continue
        absence = SESSION * away / (1 - away) / INTERNET.service
        fault = Fault(away=away, absence=absence, shape=SHAPE)
        begun = time.perf_counter()
        run = swarm(
            nodes,
            replication,
            NODES,
            clients,
            journeys,
            rest,
            policy,
            INTERNET,
            fault,
            0,
            nodes,
            replication,
        )
        whole = [answer for answer in run.answers if not answer.lost]
        p50, p99 = (
            np.percentile([answer.seconds for answer in whole], [50, 99]).tolist()
            if whole
            else (None, None)
        )
        rows.append(
            {
                "load": name,
                "nodes": nodes,
                "away": away,
                "replication": replication,
                "policy": policy,
                "journeys": len(run.answers),
                "answered": len(whole) / len(run.answers),
                "layers": np.mean([len(answer.route) for answer in whole]) if whole else None,
                "p50_s": p50,
                "p99_s": p99,
                "idle": 1 - run.busy,
            }
        )
        print(*rows[-1].values(), f"{time.perf_counter() - begun:.1f} s", flush=True)
    return rows


@one_line_errors()
def main() -> None:
    """Measure one of the three, and write its rows and the machine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = {"latin": latin, "faults": faults, "swarm": swarms}
    parser.add_argument("what", choices=commands)
    what = parser.parse_args().what
    OUT.mkdir(parents=True, exist_ok=True)
    rows = commands[what]()
    pd.DataFrame(rows).to_csv(
        OUT / f"{what}.csv", index=False, lineterminator="\n", float_format="%.4g"
    )
    measured = {"layer_of_vit_b_s": round(layer_time(), 3)} if what == "swarm" else {}
    write(OUT / f"{what}.json", {"machine": machine()} | measured)
    show(what, rows[:20])


if __name__ == "__main__":
    main()
