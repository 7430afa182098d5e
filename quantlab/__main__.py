"""``python -m quantlab``."""

import sys

from quantlab.cli import main

sys.exit(main())
