"""``python -m gcdbench``."""

from gcdbench.cli.main import main

if __name__ == "__main__":
    main()
