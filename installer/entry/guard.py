"""Refuse the network in this process. This is the first code that each installed program runs, before Qt starts."""

import sys
from pathlib import Path

from fieldray.command_names import opens_window
from fieldray.offline import stay_offline

program = Path(sys.executable).stem
stay_offline(
    shows_window=program == "fieldray-window" or (program == "fieldray" and opens_window(sys.argv[1:])),
)
