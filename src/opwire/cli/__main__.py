"""`python -m opwire.cli` is `opwire`."""

from opwire.cli import main

if __name__ == "__main__":
    main()
