#!/usr/bin/env bash
# tests/cli/setup_test.sh: cli/setup.sh installs exactly what is missing, and says what it cannot do. Stand-ins for dpkg-query,
# apt-get, apt-cache, sudo and id come first in PATH; they note what they were asked to do. Nothing is installed.
set -euo pipefail

source_dir=$1
place=$(mktemp -d "${TMPDIR:-/tmp}/keel setup.XXXXXX")  # the space is part of the test
trap 'rm -rf "$place"' EXIT
mkdir "$place/bin"
for tool in bash env cat printf rm grep; do ln -s "$(command -v "$tool")" "$place/bin/$tool" 2>/dev/null || true; done

fake() { printf '#!/usr/bin/env bash\n%s\n' "$2" >"$place/bin/$1"; chmod +x "$place/bin/$1"; }

# fresh_machine USER_ID SUDO(yes|no|password) INSTALLED KNOWN; the last two are lists of words
# shellcheck disable=SC2086,SC2016
fresh_machine() {
    : >"$place/calls"
    printf '%s\n' $3 >"$place/installed"
    printf '%s\n' $4 >"$place/known"
    fake id "echo $1"
    fake dpkg-query "grep -qxF -- \"\${@: -1}\" '$place/installed' && printf 'installed\n'"
    fake apt-cache "grep -xF -- \"\${@: -1}\" '$place/known'; true"
    fake apt-get "echo \"apt-get \$*\" >>'$place/calls'
case \" \$* \" in *' update '*) echo wanted >>'$place/known' ;; esac
[ ! -e '$place/broken' ]"
    rm -f "$place/bin/sudo"
    case $2 in
        yes) fake sudo 'if [ "$1" = -n ]; then exit 0; fi; echo "sudo $*" >>"'"$place"'/calls"; "$@"' ;;
        password) fake sudo 'exit 1' ;;
    esac
}

# ask PACKAGE... : runs need_packages without a terminal; leaves its output in $said and its code in $code.
ask() {
    code=0
    said=$(PATH="$place/bin" setsid_free "$@" 2>&1) || code=$?
    calls=$(cat "$place/calls")
}
setsid_free() { bash -c 'set -euo pipefail; source "$1/cli/setup.sh"; shift; has_terminal() { false; }; need_packages "$@"' _ "$source_dir" "$@" </dev/null; }

failures=0
expect() {  # expect WHAT TEXT PATTERN
    # shellcheck disable=SC2053
    [[ $2 == $3 ]] || { printf 'FAILED: %s\n  got:  %s\n  want: %s\n' "$1" "$2" "$3"; failures=$((failures + 1)); }
}

fresh_machine 0 no "a b" "a b"
ask a b
expect "nothing is done where nothing is missing" "$code|$said|$calls" "0||"

fresh_machine 0 no "a" "a b c"
ask a b c
expect "root installs exactly what is missing" "$code|$calls" "0|apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 b c"
expect "it says what" "$said" "*Installing Debian packages*b c*"

fresh_machine 0 no "a" "a"
ask a wanted
expect "lists are fetched if they do not know a package" "$code|$calls" "0|apt-get update -qq*apt-get install * wanted"

fresh_machine 0 no "a" "a b"
: >"$place/broken"
ask b
rm "$place/broken"
expect "a failure is told" "$code|$said" "1|*keel: error: apt-get update failed; check the network*"

fresh_machine 1000 yes "a" "a b"
ask a b
expect "others go through sudo, after being told why" "$code|$calls" "0|sudo env DEBIAN_FRONTEND=noninteractive apt-get install *b*"
expect "sudo is announced" "$said" "*That takes root, so sudo may ask*"

fresh_machine 1000 no "a" "a b"
ask a b
expect "without sudo the command to run is named" "$code|$said|$calls" \
    "1|*there is no sudo here. As root, run*apt-get install --no-install-recommends b*|"

fresh_machine 1000 password "a" "a b"
ask a b
expect "a password without a terminal is refused at once" "$code|$said|$calls" "1|*no terminal to ask at*install --no-install-recommends b*|"

fresh_machine 1000 no "a b" "a b"
rm "$place/bin/dpkg-query"
ask a b
expect "elsewhere than on Debian the packages are named and it goes on" "$code|$said" "0|This is not Debian*a b*"

((failures == 0)) && printf 'setup: 9 situations\n'
exit $((failures > 0))
