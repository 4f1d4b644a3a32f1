{"key": "iqPRK7tWvAjFKnrnKb42z6VBOqXw+4kXnug5M+FsJBM=", "signature": "wcZV/qub2SBZBoiXUTHNHd9QEHCthQ9tgRtLT+IsFZBQ7r/Fszgt2QmI6WiII7hWktGOAmd5GA32RA0MR8+8CA=="}
