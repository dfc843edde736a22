"""Host the store where the processes of a training meet: `python -m peerdescent.torch --port 29500`.

It holds who takes part, and no data. With `on_loss="continue"` training survives the loss of every
process but this one; so it runs by itself, where it is not disturbed.
"""

from __future__ import annotations

import argparse
import socket
import sys
import threading

from torch.distributed import TCPStore  # type: ignore[attr-defined]


def main(arguments: list[str] | None = None) -> int:
    """Open the store and wait until somebody ends this program."""
    parser = argparse.ArgumentParser(prog="python -m peerdescent.torch", description=__doc__)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on; by default only this machine's",
    )
    parser.add_argument("--port", type=int, default=29500, help="0 takes any that is free")
    options = parser.parse_args(arguments)
    try:
        listener = socket.create_server((options.host, options.port))
    except (OSError, OverflowError) as error:
        print(
            f"error: cannot listen on {options.host}:{options.port} ({error}): give another port",
            file=sys.stderr,
        )
        return 2
    port = listener.getsockname()[1]
    store = TCPStore(
        options.host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    print(
        f"MASTER_ADDR={options.host} MASTER_PORT={store.port} TORCHELASTIC_USE_AGENT_STORE=True",
        flush=True,
    )
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
