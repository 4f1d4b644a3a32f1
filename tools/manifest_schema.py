"""Write the JSON Schema of the manifest of packs to docs/pack-manifest.schema.json.

Usage: python tools/manifest_schema.py
"""

from __future__ import annotations

from pathlib import Path

from fieldray.packs.manifest import manifest_schema

SCHEMA_PATH = Path(__file__).parents[1] / "docs" / "pack-manifest.schema.json"

if __name__ == "__main__":
    SCHEMA_PATH.write_bytes(manifest_schema())
