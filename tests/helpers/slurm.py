"""A Slurm of two nodes with four GPUs each, all on this machine: real daemons and queue, GPUs that are null devices."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# The standard place: a job's step forgets SLURM_CONF, with all that the job has of Slurm's environment.
CONFIG = Path("/etc/slurm")

NODES, GPUS = 2, 4
CPUS = 16  # that each node believes it has

CONF = """
ClusterName=bayesfed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/prolog
TaskEpilog={folder}/epilog
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MinJobAge=3600
ReturnToService=2
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

# What a task's user sees is node-local, as on a real cluster, and told to a file: job, node, GPU, when.
PROLOG = """#!/bin/sh
mkdir -p {folder}/local-$SLURMD_NODENAME
echo "export TMPDIR={folder}/local-$SLURMD_NODENAME"
echo "begin $SLURM_JOB_ID $SLURM_STEP_ID $SLURMD_NODENAME ${{CUDA_VISIBLE_DEVICES:-none}} $(date +%s.%N)" >> {folder}/tasks
"""
EPILOG = """#!/bin/sh
echo "end $SLURM_JOB_ID $SLURM_STEP_ID $SLURMD_NODENAME ${{CUDA_VISIBLE_DEVICES:-none}} $(date +%s.%N)" >> {folder}/tasks
"""


class Slurm:
    """The daemons, their state in a folder of their own; needs root, slurm-wlm and munge (Debian), and that this machine is
    in no Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.written: list[Path] = []

    def __enter__(self) -> Slurm:
        folder, host = self.folder, socket.gethostname()
        for name in ("state", "dev", *(f"spool-node{n}" for n in range(1, NODES + 1))):
            (folder / name).mkdir(parents=True)
        gpus = f"{folder}/dev/gpu[0-{GPUS - 1}]"
        for number in range(GPUS):
            os.mknod(folder / "dev" / f"gpu{number}", 0o666 | 0o020000, os.makedev(1, 3))
        ports = free_ports(NODES + 1)
        nodes = [
            f"NodeName=node{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[n]} CPUs={CPUS} RealMemory=200000 "
            f"Gres=gpu:{GPUS} State=UNKNOWN"
            for n in range(1, NODES + 1)
        ]
        conf = CONF.format(host=host, port=ports[0], folder=folder, nodes="\n".join(nodes))
        CONFIG.mkdir(exist_ok=True)
        gres = f"NodeName=node[1-{NODES}] Name=gpu File={gpus}\n"
        for name, text in (("slurm.conf", conf), ("gres.conf", gres)):
            assert not (CONFIG / name).exists(), (
                f"{CONFIG / name} exists: this machine is in a Slurm, or a test was killed"
            )
            (CONFIG / name).write_text(text)
            self.written.append(CONFIG / name)
        for name, text in (("prolog", PROLOG), ("epilog", EPILOG)):
            (folder / name).write_text(text.format(folder=folder))
            (folder / name).chmod(0o755)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        own = [
            f"--{what}={folder}/munge.{what.split('-')[0]}" for what in ("socket", "key-file", "pid-file", "seed-file")
        ]
        self.start("munged", "--foreground", "--force", f"--log-file={folder}/munge.log", *own)
        wait_for(lambda: (folder / "munge.socket").exists())
        self.start("slurmctld", "-D")
        for n in range(1, NODES + 1):
            self.start("slurmd", "-D", "-N", f"node{n}")
        wait_for(lambda: self.call("sinfo", "--noheader", "--format=%D %T").split() == [str(NODES), "idle"])
        return self

    def __exit__(self, *error: object) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            daemon.wait()
        for path in self.written:
            path.unlink()

    def start(self, *command: str) -> None:
        """Start a daemon."""
        with (self.folder / f"{command[0]}-{len(self.daemons)}.out").open("wb") as log:
            self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log))

    def call(self, *command: str) -> str:
        """What a command of Slurm says; "" where it fails."""
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        return told.stdout

    def training(self, *nodes: str) -> dict[int, str]:
        """The jobs that run a training now (on these nodes), and the comment that says which."""
        where = ["--nodelist=" + ",".join(nodes)] if nodes else []
        told = self.call("squeue", "--noheader", "--states=running", "--format=%i|%k", *where)
        found = (line.split("|", 1) for line in told.splitlines())
        return {int(job): comment for job, comment in found if comment.startswith("rule_train")}

    def waiting(self) -> int:
        """How many jobs have not begun."""
        return len(self.call("squeue", "--noheader", "--states=pending", "--format=%i").splitlines())

    def states(self) -> dict[int, str]:
        """How each training job ended."""
        told = self.call("squeue", "--noheader", "--states=all", "--format=%i|%T|%k")
        found = (line.split("|", 2) for line in told.splitlines())
        return {int(job): state for job, state, comment in found if comment.startswith("rule_train")}

    def gpus(self) -> dict[tuple[str, str], list[tuple[float, float]]]:
        """Of each (node, GPU), from when to when each of its jobs had it."""
        begun: dict[tuple[str, ...], float] = {}
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for line in (self.folder / "tasks").read_text().splitlines():
            what, *task, moment = line.split(" ")
            _, step, node, gpu = task
            if step or gpu == "none":  # a job's own script, without a step, lasts as long as the job
                continue
            if what == "begin":
                begun[tuple(task)] = float(moment)
            elif tuple(task) in begun:
                found.setdefault((node, gpu), []).append((begun.pop(tuple(task)), float(moment)))
        return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with_ports = [socket.socket() for _ in range(count)]
    for one in with_ports:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in with_ports]
    for one in with_ports:
        one.close()
    return ports


def wait_for(look: Callable[[], T], seconds: float = 60) -> T:
    """Wait until a function gives something true, and give it."""
    limit = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < limit, "waited for too long"
        time.sleep(0.1)
    return found
