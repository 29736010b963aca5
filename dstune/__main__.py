"""`python -m dstune` is the same program as `dstune`."""

from dstune.cli.main import main

if __name__ == "__main__":
    main()
