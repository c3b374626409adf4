"""Daemons that the command depends on, each with a run of its own; and their deaths."""

from __future__ import annotations

import time

import ray_nodes
import slurm_nodes
from faults.scene import PAUSE, Scene
from mlflow_servers import Server


def own_mlflow(scene: Scene) -> None:
    """Its database is that of a study without a server, so that the same comparison reads it."""
    server = Server(f"sqlite:///{scene.root / 'mlflow.db'}", scene.root / "mlartifacts", scene.folder / "mlflow.log")
    scene.around.callback(server.kill)
    scene.daemons, scene.server = server, server.uri


def kill_mlflow(scene: Scene) -> None:
    scene.daemons.kill()
    time.sleep(scene.dice.uniform(*PAUSE))
    scene.daemons.start()


def own_slurm(scene: Scene) -> None:
    nodes = scene.around.enter_context(slurm_nodes.slurm_nodes(scene.folder / "slurm"))
    scene.around.enter_context(nodes.hastening())
    scene.daemons, scene.executor = nodes, "slurm"
    scene.environment["SLURM_CONF"] = str(nodes.configuration)


def kill_slurm(scene: Scene) -> None:
    name = scene.dice.choice(["slurmctld", *slurm_nodes.NODES])
    scene.daemons.kill(name)
    time.sleep(scene.dice.uniform(*PAUSE))
    scene.daemons.begin(name)


def own_ray(scene: Scene) -> None:
    scene.daemons, scene.executor = scene.around.enter_context(ray_nodes.ray_nodes()), "ray"
    scene.environment["RAY_ADDRESS"] = scene.daemons.address


def kill_ray_node(scene: Scene) -> None:
    scene.daemons.lose(scene.dice.choice(scene.daemons.nodes))
    time.sleep(scene.dice.uniform(*PAUSE))
    scene.daemons.add()


def kill_ray_head(scene: Scene) -> None:
    scene.daemons.lose_head()


def new_ray(scene: Scene) -> None:
    """In place of one that has lost its head."""
    if not scene.daemons.has_head:
        scene.daemons.start()
        scene.environment["RAY_ADDRESS"] = scene.daemons.address
