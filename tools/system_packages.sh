#!/usr/bin/env bash
# Check whether the system libraries that the window needs are installed (Debian and Ubuntu). As root, install missing
# libraries. As another user, print the command that installs them. The command line needs none of these libraries.
set -euo pipefail

needed="libglib2.0-0 libegl1 libgl1 libxkbcommon-x11-0 libdbus-1-3 libfontconfig1 libxcb-cursor0 libxcb-icccm4
libxcb-image0 libxcb-keysyms1 libxcb-randr0 libxcb-render-util0 libxcb-shape0 libxcb-xinerama0 fonts-dejavu-core"

command -v dpkg-query >/dev/null || exit 0
missing=""
for package in $needed; do
    # Since Debian 13 and Ubuntu 24.04, the names of some packages end in t64. apt-get accepts the old names, too.
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
