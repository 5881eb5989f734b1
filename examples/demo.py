"""Run the demonstration: `make demo`, or `opwire demo`. Its parts are in `opwire.cli.demo`."""

from opwire.cli import main

if __name__ == "__main__":
    main(["demo"])
