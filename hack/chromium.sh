#!/usr/bin/env bash
# Debian's Chromium, for the test that opens a page of a sandbox. Installs it where it is missing and prints its path.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

find_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

if ! find_browser; then
  is_debian || die "there is no Chromium" "install it, and put it on the PATH as chromium"
  lock "$cache/chromium.lock" # of two at once the second finds the packages of the first
  need_packages "a page of a sandbox in a browser" chromium
  find_browser || die "chromium was installed, and is not on the PATH"
fi
