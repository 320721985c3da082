#!/usr/bin/env bash
# Folders that keel wrote, read by read_folders.py. Exit code 77, "skipped", where Python or a package it needs is missing.
#   read_folders_test.sh SOURCE_DIR KEEL
set -euo pipefail
command -v python3 >/dev/null || { echo "not read: no python3"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 "$1/tests/cli/read_folders.py" "$2" "$1"/tests/golden/folders/* "$dir"
