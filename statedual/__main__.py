"""``python -m statedual`` is the ``statedual`` command."""

import sys

from statedual.cli import main

if __name__ == "__main__":
    sys.exit(main())
