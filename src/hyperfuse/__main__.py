"""The command `hyperfuse`, also as `python -m hyperfuse`; launchers of several processes start it this way."""

import gc
import signal


def main() -> None:
    # During the imports an interrupt would print a traceback; background jobs ignore it.
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # As in `cli.options.importing`; the command line enables it again.
    gc.disable()
    from hyperfuse.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
