# shellcheck shell=bash
# cli/setup.sh: what quickstart.sh and tests/run.sh share: Debian packages and the build. Sourced, not run.
#
# Nothing is installed that is there already, and nothing without saying what and why. The network is touched only to fetch
# missing packages from the distribution.

say() { printf '\n== %s\n' "$*"; }
die() { printf 'keel: error: %s\n' "$*" >&2; exit 1; }

# Everything the build and the tests need; bible-kjv is the text that quickstart.sh trains on.
build_packages=(g++ cmake ninja-build pkg-config libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libzstd-dev
                libxxhash-dev zlib1g-dev libutf8proc-dev libpcre2-dev libgtest-dev)

is_installed() {
    local states  # one line per architecture
    states=$(dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null) || return 1
    [[ $'\n'$states$'\n' == *$'\n'installed$'\n'* ]]
}

has_terminal() { { : </dev/tty; } 2>/dev/null; }

# need_packages PACKAGE... : afterwards they are installed.
need_packages() {
    local package missing=()
    if ! command -v dpkg-query >/dev/null; then
        printf 'This is not Debian; keel needs what Debian calls\n  %s\nand goes on in the hope that it is there.\n' "$*" >&2
        return 0
    fi
    for package in "$@"; do is_installed "$package" || missing+=("$package"); done
    ((${#missing[@]} == 0)) && return 0

    local as_root=() user
    user=$(id -u)
    if ((user != 0)); then
        command -v sudo >/dev/null || die "these Debian packages are missing: ${missing[*]}
Installing them takes root, and there is no sudo here. As root, run
  apt-get install --no-install-recommends ${missing[*]}
and start this script again."
        as_root=(sudo)
    fi
    say "Installing Debian packages: a compiler, libraries and tools that keel is built with"
    printf '  %s\n' "${missing[*]}"
    if ((user != 0)); then
        printf 'That takes root, so sudo may ask for your password. Nothing else here uses sudo.\n'
        sudo -n true 2>/dev/null || has_terminal || die "sudo wants a password, and there is no terminal to ask at.
As root, run
  apt-get install --no-install-recommends ${missing[*]}
and start this script again."
    fi
    local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends
                   -o Dpkg::Use-Pty=0 "${missing[@]}")
    # The lists are fetched anew only if they do not know a package or lead to one that is gone.
    local known=true
    for package in "${missing[@]}"; do
        [[ -n "$(apt-cache madison "$package" 2>/dev/null)" ]] || known=false
    done
    if ! $known || ! "${install[@]}" </dev/null; then
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null ||
            die "apt-get update failed; check the network and /etc/apt/sources.list, then start this script again"
        "${install[@]}" </dev/null || die "apt-get could not install ${missing[*]}; what it said stands above"
    fi
}

# build ROOT TARGET... : configures once, then builds the targets in ROOT/build.
build() {
    local root=$1
    shift
    # A copied or moved checkout carries a cache that points elsewhere; CMake would refuse it.
    local cache="$root/build/CMakeCache.txt"
    if [[ -f "$cache" ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache"; then
        rm -rf "$root/build"
    fi
    if [[ ! -f "$root/build/build.ninja" ]]; then
        say "Configuring (Release, for this processor)"
        cmake -S "$root" -B "$root/build" -G Ninja -DCMAKE_BUILD_TYPE=Release
    fi
    say "Building with $(nproc) jobs"
    cmake --build "$root/build" -j "$(nproc)" --target "$@"
}
