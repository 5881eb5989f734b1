"""Run the command line as `python -m opwire`."""

from opwire.cli import main

if __name__ == "__main__":
    main()
