"""Print the line that trusts a pack that ships: python tools/builtin_pack.py models/<id>-<version>."""

from __future__ import annotations

import sys

from fieldray.packs.builtin import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
