"""Where tests of the page find their browser."""

import sys
from pathlib import Path

# Test modules are imported by path, so their folder is not searched.
sys.path.insert(0, str(Path(__file__).parent))
