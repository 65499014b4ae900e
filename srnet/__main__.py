"""``python -m srnet`` is the same as ``srnet``."""

import sys

from srnet.cli import main

if __name__ == "__main__":
    sys.exit(main())
