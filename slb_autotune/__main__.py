"""`python -m slb_autotune` is `slb-autotune`."""

from slb_autotune.cli.main import main

if __name__ == "__main__":
    main()
