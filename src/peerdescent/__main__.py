"""`python -m peerdescent`, and the command `peerdescent`."""

import os
import signal


def main() -> None:
    """Run the command line. Until it is loaded there is nothing to write, so Ctrl-C just ends the program."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from peerdescent.cli import main as cli  # noqa: PLC0415

    signal.signal(signal.SIGINT, usual)
    cli.main()


if __name__ == "__main__":
    main()
