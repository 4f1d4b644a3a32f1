"""The program `fieldray`: the command line, without Qt."""

import sys

from fieldray.__main__ import main

sys.exit(main())
