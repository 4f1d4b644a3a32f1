"""The program `fieldray-worker`: a child process of the other two, serving one of their services."""

import sys

from fieldray.processes.child_main import main

sys.exit(main())
