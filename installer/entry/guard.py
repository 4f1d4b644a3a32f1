"""Before anything else in each installed program, Qt's own start included: refuse the network."""

import sys
from pathlib import Path

from fieldray.offline import opens_window, stay_offline

program = Path(sys.executable).stem
stay_offline(
    is_toolchain=program == "fieldray" and sys.argv[1:2] == ["adapt"],
    shows_window=program == "fieldray-window" or (program == "fieldray" and opens_window(sys.argv[1:])),
)
