"""`python -m hifi_cli`: the entry that torchrun and accelerate can start."""

from hifi_cli.cli.app import main

if __name__ == "__main__":
    main()
