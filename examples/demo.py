"""What opwire does, told by running it: `make demo`, or `opwire demo`. The parts are in `opwire.cli.demo`."""

from opwire.cli import main

if __name__ == "__main__":
    main(["demo"])
