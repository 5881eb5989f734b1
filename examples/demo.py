"""Run the demonstration: `make demo`, or `opwire demo`. Its script is `opwire.cli.demo_story`."""

from opwire.cli import main

if __name__ == "__main__":
    main(["demo"])
