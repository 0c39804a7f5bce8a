"""The command `hyperfuse`, also as `python -m hyperfuse`; launchers of several processes start it this way."""

import atexit
import gc
import os
import signal
import sys


def main() -> None:
    # During the imports an interrupt would print a traceback; background jobs ignore it.
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Threads that wait for others must not take the processor from other programs, nor from each other: beside two busy
    # processes, waiting took more processor time than the work itself.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Those of numpy's and scipy's libraries always wait actively; what they multiply here is small.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # As in `cli.options.importing`; the command line enables it again.
    gc.disable()
    codes: list[object] = []
    atexit.register(_leave, codes)  # the first one, which is called after all others
    from hyperfuse.cli.app import main as run

    try:
        run()
    except SystemExit as end:
        codes.append(end.code)
        raise


def _leave(codes: list[object]) -> None:
    """End the process at once: that Python takes a million objects apart first takes as long as many commands."""
    if not (codes and isinstance(codes[0], int)):
        return
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        return  # Python itself says so, and has an exit code for it
    os._exit(codes[0])


if __name__ == "__main__":
    main()
