"""DVC's remotes other than a folder: S3 by a server of moto's, SSH by a real sshd, both on the loopback address.

They need what `pip install "dvc[s3,ssh]" "moto[server]"` brings, and sshd (Debian: openssh-server).
"""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from helpers.children import child
from helpers.clone import Clone
from helpers.slurm import free_ports, wait_for

pytestmark = pytest.mark.cluster

Settings = dict[str, str]
Remote = Callable[[Path, int], AbstractContextManager[Settings]]
KEPT = {"data/digits/dataset.json": b"{}", "results/test/checkpoints/one.safetensors": bytes(range(256))}


@contextmanager
def s3(folder: Path, port: int) -> Iterator[Settings]:
    boto3 = pytest.importorskip("boto3")
    with served(port, sys.executable, "-m", "moto.server", "-p", str(port)):
        address = f"http://127.0.0.1:{port}"
        named = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=address, **named).create_bucket(Bucket="lab")
        yield {
            "url": "s3://lab/bayesfed",
            "endpointurl": address,
            "access_key_id": "nobody",
            "secret_access_key": "nothing",
        }


@contextmanager
def ssh(folder: Path, port: int) -> Iterator[Settings]:
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host\nPidFile {folder}/sshd.pid\nUsePAM no\n"
        f"StrictModes no\nPermitRootLogin yes\nAuthorizedKeysFile {folder}/user.pub\nSubsystem sftp internal-sftp\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    with served(port, shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-f", str(folder / "sshd_config")):
        yield {"url": f"ssh://127.0.0.1:{port}{folder}/kept", "user": getpass.getuser(), "keyfile": f"{folder}/user"}


@contextmanager
def served(port: int, *command: str) -> Iterator[None]:
    """A server that listens."""
    with child(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:

        def listens() -> bool:
            assert server.poll() is None, f"{command[0]} ended"
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", port)) == 0

        wait_for(listens)
        yield


@pytest.mark.parametrize("kind", [s3, ssh])
def test_one_pushes_and_another_pulls(kind: Remote, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    here = Clone(tmp_path / "here")
    here.track()
    for name, content in KEPT.items():
        (here.folder / name).parent.mkdir(parents=True)
        (here.folder / name).write_bytes(content)
    here.run("dvc", "add", "--quiet", *(str(Path(name).parent) for name in KEPT))
    here.git("add", ".")
    here.git("commit", "--quiet", "--message", "Kept")
    here.git("clone", "--quiet", ".", str(tmp_path / "there"))
    there = Clone(tmp_path / "there")
    with kind(tmp_path / "server", free_ports(1)[0]) as settings:
        for clone, verb in ((here, "push"), (there, "pull")):
            clone.run("dvc", "remote", "add", "--local", "--default", "lab", settings["url"])
            for key, value in settings.items():
                clone.run("dvc", "remote", "modify", "--local", "lab", key, value)
            clone.run("dvc", verb)
    assert {name: (there.folder / name).read_bytes() for name in KEPT} == KEPT
    config = (there.folder / ".dvc" / "config").read_text()
    assert '"lab"' not in config  # what is said of a remote with --local stays out of git
