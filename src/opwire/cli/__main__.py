"""Run the command line as `python -m opwire.cli`, which `opwire install` writes into the files of MCP clients."""

from opwire.cli import main

if __name__ == "__main__":
    main()
