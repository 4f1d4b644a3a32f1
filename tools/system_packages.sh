#!/usr/bin/env bash
# Checks the few system libraries the window needs on Debian and Ubuntu, and installs what is missing where that is
# allowed (root); else says which command does it. The command line alone needs none of them.
set -euo pipefail

needed="libglib2.0-0 libegl1 libgl1 libxkbcommon-x11-0 libdbus-1-3 libfontconfig1 libxcb-cursor0 libxcb-icccm4
libxcb-image0 libxcb-keysyms1 libxcb-randr0 libxcb-render-util0 libxcb-shape0 libxcb-xinerama0 fonts-dejavu-core"

command -v dpkg-query >/dev/null || exit 0
missing=""
for package in $needed; do
    # Since Debian 13 and Ubuntu 24.04 some have t64 at the end of their names; apt-get takes the old name too.
    states=$(dpkg-query -W -f='${Status}\n' "$package" "${package}t64" 2>/dev/null || true)
    [[ $states == *"ok installed"* ]] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ]; then
    echo "Installing system libraries for the window:$missing"
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "The window needs system libraries that are not installed. Run:"
    echo "    sudo apt-get install$missing"
fi
