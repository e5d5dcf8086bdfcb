"""Start Flower's SuperLink or SuperNode as a child of this program, and answer messages without a new process for each.

`python -m discreet.federated.node superlink …` runs `flower-superlink`, and `… supernode …` runs `flower-supernode`;
all other arguments are Flower's own. The process ends when its parent does.

Flower starts a new process for every message. Loading torch, a model and the text takes seconds, so a SuperNode started
here has a thread that keeps the ClientApp, and takes the messages from the SuperNode as Flower's own executor would.
Flower's SuperNode looks for messages every 3 seconds; the one started here does so after 0.05 seconds, and less and
less often while there are none, because every look costs processor time here and at the SuperLink.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

FLAG = 2 * "-"  # how options of Flower's commands begin
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.8
_ORPHAN_SECONDS = 0.5


def end_with_parent() -> None:
    """End this process when its parent is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_ORPHAN_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def answer_messages(address: str, secret: bytes, certificate: bytes | None, arrived: threading.Event) -> None:
    """Take the messages of a SuperNode one by one and answer them with its ClientApp, which stays loaded.

    `arrived` is set when the SuperNode has received a message.
    """
    from flwr.cli.install import install_from_fab
    from flwr.clientapp.utils import get_load_client_app_fn
    from flwr.common.constant import SubStatus
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    def connect(*interceptors: Any) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=address,
            insecure=certificate is None,
            root_certificates=certificate,
            interceptors=list(interceptors),
            retry_invoker=make_simple_http_retry_invoker(),
        )

    protected = frozenset({"/flwr.proto.Runtime/AcquireTask"})
    superexec = connect(
        RuntimeVersionHttpInterceptor(component_name="SuperExec"),
        SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=protected),
    )
    apps: dict[str, Any] = {}
    while True:
        arrived.wait()
        arrived.clear()
        task = superexec.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if not task.token:
            continue
        client = connect(
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), RuntimeTokenHttpInterceptor(task.token)
        )
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        context, status, details = None, SubStatus.FAILED, ""
        try:
            message, context, run, fab = pull_task_input(client)
            if fab.hash_str not in apps:
                install_from_fab(fab.content, skip_prompt=True)
                load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
                apps[fab.hash_str] = load(run.fab_id, run.fab_version, fab.hash_str)
            push_message(client, apps[fab.hash_str](message=message, context=context), context)
            status = SubStatus.COMPLETED
        except Exception as error:
            traceback.print_exc()
            details = type(error).__name__
        finally:
            push_task_output(client, context, status, details)
            heartbeat.stop()
            client.close()


class Pauses:
    """The time module as SuperNode uses it: it waits 3 seconds for a message, and half a second for its answer.

    Pauses begin short, and double while there is no message or no answer. A pause for an answer sets `arrived`.
    """

    def __init__(self, arrived: threading.Event) -> None:
        """Begin with a short pause."""
        self.arrived, self.pause, self.waits = arrived, SHORTEST_PAUSE, False

    def __getattr__(self, name: str) -> Any:
        """Return anything else from the time module."""
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Pause for a shorter time than Flower would."""
        waits = seconds < 1  # for the answer to a message that has arrived
        if waits != self.waits:
            self.pause, self.waits = SHORTEST_PAUSE, waits
        if waits:
            self.arrived.set()
        time.sleep(min(seconds, self.pause))
        self.pause = min(2 * self.pause, LONGEST_PAUSE / 4 if waits else LONGEST_PAUSE)


def main(arguments: list[str]) -> None:
    """Run a SuperLink or a SuperNode with Flower's own arguments."""
    kind, *rest = arguments
    end_with_parent()
    sys.argv = [f"flower-{kind}", *rest]
    if kind == "superlink":
        from flwr.superlink.cli.flower_superlink import flower_superlink

        flower_superlink()
        return
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    arrived = threading.Event()
    start_client_internal.time = Pauses(arrived)
    options = {name.removeprefix(FLAG): value for name, value in itertools.pairwise(rest)}
    secret = Path(options["superexec-auth-secret-file"]).read_bytes()
    certificate = Path(options["ssl-ca-certfile"]).read_bytes() if "ssl-ca-certfile" in options else None
    address = f"{options['host']}:{options['port']}"
    answering = threading.Thread(target=answer_messages, args=(address, secret, certificate, arrived), daemon=True)
    answering.start()
    threading.Thread(target=_end_with, args=(answering,), daemon=True).start()
    flower_supernode()


def _end_with(thread: threading.Thread) -> None:
    """End the process if its thread ends, so that it is started again."""
    thread.join()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
