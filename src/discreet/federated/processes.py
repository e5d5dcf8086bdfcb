"""A federation as processes of Flower on one machine: a SuperLink, a SuperNode per client, and the ServerApp.

All of them listen on the loopback interface, on free ports. A process that dies is started again; what it had not
finished is repeated, and its log says so. All processes end with this one.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.core.errors import ModelError, first_line
from discreet.core.files import write_atomic
from discreet.core.settings import as_toml
from discreet.federated.app import write_app
from discreet.federated.client import add_to_log, owner_only
from discreet.federated.node import FLAG
from discreet.federated.server import FAILED, LOG, PID, PRIVATE, PROGRESS, RESULT, RoundReport, StoppedError
from discreet.federated.settings import Federation

if TYPE_CHECKING:
    from discreet.federated.run import FederateOptions

HOST = "127.0.0.1"
_PAUSE = 0.1
_STOP_SECONDS = 5.0
_START_SECONDS = 120.0
_MOST_RESTARTS = 20


@dataclass(frozen=True)
class Certificates:
    """Paths of a certificate authority for one run, and of the SuperLink's key and certificate."""

    authority: Path
    certificate: Path
    key: Path


@dataclass
class Cluster:
    """The processes of a federation on one machine."""

    settings: Federation
    workspace: Path
    folder: Path
    certificates: Certificates | None = None
    cache: Path | None = None
    connect_to: Callable[[int], int] | None = None  # the port that SuperNodes use, given that of the SuperLink
    port: int = 0
    superlink: subprocess.Popen[bytes] | None = None
    nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    restarts: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the children: Flower's own folder, no telemetry, no look for updates."""
        programs = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "PATH": programs + os.pathsep + os.environ.get("PATH", ""),
            "TOKENIZERS_PARALLELISM": "false",
        }

    def log(self, text: str, name: str = LOG) -> None:
        """Write a line into the server's log."""
        (self.workspace / "server").mkdir(exist_ok=True, mode=0o700)
        add_to_log(self.workspace / "server" / name, text)

    def child(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Start a child process whose output goes to a log file."""
        with open(self.folder / f"{name}.log", "ab", opener=owner_only) as log:
            return subprocess.Popen(arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment)

    def start(self) -> None:
        """Write the app, start the SuperLink, and then a SuperNode per client and the ServerApp."""
        self.folder.mkdir(parents=True, exist_ok=True)
        secret = self.folder / "secret"
        if not secret.exists():
            write_atomic(secret, secrets.token_hex(32))
        if not (self.folder / "app").exists():
            write_app(self.folder / "app", self.settings)
        self.start_superlink()
        for client in range(self.settings.clients):
            self.start_node(client)
        self.submit()

    def start_superlink(self) -> None:
        """Start the SuperLink on a free port and wait until it listens."""
        self.port = self.port or free_port()
        options: dict[str, object] = {"host": HOST, "port": self.port}
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        connection: dict[str, object] = {"address": f"{HOST}:{self.port}"}
        if self.certificates is None:
            options["insecure"] = None
            connection["insecure"] = True
        else:
            own = self.certificates
            options |= {"ssl-certfile": own.certificate, "ssl-keyfile": own.key, "ssl-ca-certfile": own.authority}
            options["enable-supernode-auth"] = None
            connection["root-certificates"] = str(own.authority)
        write_atomic(home / "config.toml", as_toml({"superlink": {"default": "local", "local": connection}}))
        self.superlink = self.child("superlink", node("superlink", options))
        wait_for_port(self.port, self.superlink, self.folder / "superlink.log")
        if self.certificates is not None:
            for client in range(self.settings.clients):
                self.flwr("supernode", "register", str(node_keys(self.folder, client)[1]), "local")

    def start_node(self, client: int) -> None:
        """Start the SuperNode of a client."""
        port = self.port if self.connect_to is None else self.connect_to(self.port)
        values = {"client": client, "folder": str(self.workspace / f"client-{client}")}
        if self.cache is not None:
            values["cache"] = str(self.cache)
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
        options: dict[str, object] = {"superlink": f"{HOST}:{port}", "host": HOST, "port": free_port()}
        options |= {"isolation": "process", "superexec-auth-secret-file": self.folder / "secret"}
        options["node-config"] = config
        if self.certificates is None:
            options["insecure"] = None
        else:
            options["root-certificates"] = self.certificates.authority
            options["auth-supernode-private-key"] = node_keys(self.folder, client)[0]
        self.nodes[client] = self.child(f"client-{client}", node("supernode", options))

    def submit(self) -> None:
        """Start the ServerApp, which resumes from its last saved round."""
        (self.workspace / "server" / PID).unlink(missing_ok=True)
        run_config = flags({"run-config": f'folder="{self.workspace / "server"}"'})
        self.flwr("run", str(self.folder / "app"), "local", *run_config)

    def flwr(self, *arguments: str) -> None:
        """Run a command of Flower."""
        program = str(Path(sys.executable).with_name("flwr"))
        done = subprocess.run([program, *arguments], capture_output=True, text=True, env=self.environment, check=False)
        if done.returncode:
            text = " ".join(re.sub("[\u2500-\u257f]", " ", done.stderr).split())  # without the frame around it
            raise ModelError(f"Expected `flwr {arguments[0]}` to succeed. {first_line(Exception(text))}")

    def supervise(self) -> None:
        """Start processes again that have died."""
        assert self.superlink is not None
        if self.superlink.poll() is not None or self.server_died():
            what = "The SuperLink" if self.superlink.poll() is not None else "The ServerApp"
            self._count(f"{what} died and is started again; the run continues from its last saved round.")
            self.stop_server()
            self.start_superlink()
            for client in list(self.nodes):
                stop(self.nodes[client])
                self.start_node(client)
            self.submit()
            return
        for client, node in list(self.nodes.items()):
            if node.poll() is not None:
                name = PRIVATE if self.settings.aggregation.secret_clients else LOG
                self._count(f"Client {client} died and is started again.", name)
                self.start_node(client)

    def _count(self, text: str, name: str = LOG) -> None:
        self.restarts += 1
        self.log(text, name)
        if self.restarts > _MOST_RESTARTS:
            raise ModelError(
                f"Expected the processes of Flower to run, but they died {self.restarts} times. See {self.folder}."
            )

    def server_died(self) -> bool:
        """Return whether the ServerApp started and is gone without a result."""
        folder = self.workspace / "server"
        try:
            process = int((folder / PID).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return False
        return not is_running(process) and not (folder / RESULT).exists() and not (folder / FAILED).exists()

    def stop_server(self) -> None:
        """Stop the SuperLink and the ServerApp."""
        if self.superlink is not None:
            stop(self.superlink)
        try:
            os.kill(int((self.workspace / "server" / PID).read_text(encoding="ascii")), signal.SIGKILL)
        except (FileNotFoundError, ValueError, ProcessLookupError, PermissionError):
            return

    def stop(self) -> None:
        """Stop all processes."""
        for node in self.nodes.values():
            node.terminate()
        self.stop_server()
        for node in self.nodes.values():
            stop(node)


@contextmanager
def running(
    settings: Federation,
    workspace: Path,
    *,
    tls: bool = False,
    cache: Path | None = None,
    connect_to: Callable[[int], int] | None = None,
) -> Iterator[Cluster]:
    """Start the processes of a federation, and stop them at the end, whatever happens.

    They work in the current folder, so that relative paths of data and models mean the same to all of them.
    """
    workspace = workspace.resolve()  # Flower changes relative paths in its configuration
    folder = workspace / "flower"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    certificates = make_certificates(folder) if tls else None
    (workspace / "server" / FAILED).unlink(missing_ok=True)
    cluster = Cluster(settings, workspace, folder, certificates, cache, connect_to)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def run_processes(settings: Federation, workspace: Path, options: FederateOptions) -> dict[str, Any]:
    """Run a federation as processes and return the server's result."""
    server = workspace / "server"
    with running(settings, workspace, tls=options.tls, cache=options.cache) as cluster:
        reported = 0
        while not (server / RESULT).exists():
            if options.should_stop():
                raise StoppedError("The run was stopped after its last saved round. Resume it.")
            if (server / FAILED).exists():
                raise ModelError((server / FAILED).read_text(encoding="utf-8"))
            cluster.supervise()
            reported = report(server / PROGRESS, reported, options.watch)
            time.sleep(_PAUSE)
        report(server / PROGRESS, reported, options.watch)
    result: dict[str, Any] = json.loads((server / RESULT).read_text(encoding="utf-8"))
    return result


def report(path: Path, reported: int, watch: Callable[[RoundReport], None]) -> int:
    """Pass new lines of the progress file to `watch`, and return how many complete lines there are."""
    if not path.exists():
        return 0
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    complete = [line for line in lines if line.endswith("\n")]
    for line in complete[reported:]:
        watch(RoundReport(**json.loads(line)))
    return len(complete)


def node(kind: str, options: Mapping[str, object]) -> list[str]:
    """Return the command of a SuperLink or SuperNode with options of Flower."""
    return [sys.executable, "-m", "discreet.federated.node", kind, *flags(options)]


def flags(options: Mapping[str, object]) -> list[str]:
    """Return options of Flower's commands; None is a flag without a value.

    >>> [one.removeprefix(FLAG) for one in flags({"port": 8000, "insecure": None})]
    ['port', '8000', 'insecure']
    """
    return [part for name, value in options.items() for part in (FLAG + name, *([] if value is None else [str(value)]))]


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process: ask it, and after some seconds kill it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_running(process: int) -> bool:
    """Return whether a process runs; one that ended, and whose parent has not noticed, does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        about = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return True  # a system without /proc
    return about.rpartition(")")[2].split()[0] != "Z"


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a process listens on a port."""
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise ModelError(f"Expected Flower's SuperLink to start, but it ended. See {log}.")
        with socket.socket() as client:
            client.settimeout(1.0)
            if client.connect_ex((HOST, port)) == 0:
                return
        time.sleep(_PAUSE / 2)
    raise ModelError(f"Expected Flower's SuperLink to listen within {_START_SECONDS:g} s. See {log}.")


def node_keys(folder: Path, client: int | str) -> tuple[Path, Path]:
    """Return the paths of a node's private and public key; they are made if there are none."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private, public = folder / f"node-{client}", folder / f"node-{client}.pub"
    if not public.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        write_atomic(
            private,
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            ),
        )
        write_atomic(
            public,
            key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH),
            private=False,
        )
    return private, public


def make_certificates(folder: Path) -> Certificates:
    """Return a certificate authority for this run and a certificate for the loopback interface, valid for a week."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    paths = Certificates(folder / "authority.pem", folder / "superlink.pem", folder / "superlink.key")
    if paths.key.exists():
        return paths
    now = datetime.datetime.now(datetime.UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def builder(subject: str, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("discreet federation"))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=7))
        )

    authority = (
        builder("discreet federation", authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(True, False, False, False, False, True, True, False, False),  # signs certificates
            critical=True,
        )
        .sign(authority_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))])
    certificate = (
        builder("localhost", key.public_key())
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    write_atomic(paths.authority, authority.public_bytes(pem), private=False)
    write_atomic(paths.certificate, certificate.public_bytes(pem), private=False)
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_atomic(paths.key, key.private_bytes(pem, form, none))
    return paths
