"""The program `fieldray-worker`: a child process of the other two, serving one of their services."""

import sys

from fieldray.child import main

sys.exit(main(sys.argv[1:]))
