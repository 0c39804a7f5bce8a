"""The command `hyperfuse`, also as `python -m hyperfuse`; launchers of several processes start it this way."""

import gc
import os
import signal


def main() -> None:
    # During the imports an interrupt would print a traceback; background jobs ignore it.
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Threads that wait for others must not take the processor from other programs, nor from each other: beside two busy
    # processes, waiting took more processor time than the work itself.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # As in `cli.options.importing`; the command line enables it again.
    gc.disable()
    from hyperfuse.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
