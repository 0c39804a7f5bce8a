"""`python -m hyperfuse` is `hyperfuse`; launchers of several processes start it this way."""

from hyperfuse.cli.app import main

if __name__ == "__main__":
    main()
