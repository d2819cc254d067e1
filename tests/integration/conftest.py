"""The examples of the unit tests are here too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "unit" / "models"))
