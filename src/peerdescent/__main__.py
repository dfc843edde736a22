"""`python -m peerdescent`: the command line."""

from peerdescent.cli.main import main

if __name__ == "__main__":
    main()
