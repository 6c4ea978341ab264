#!/bin/bash
# Runs the two commands that the README promises, on a machine with nothing set up but Python: a minimal Debian with
# python3 and python3-venv, an ordinary user, and a fresh clone for each command. Root on Debian is needed. The exit
# status is that of the command that failed; 1 where one wrote outside the user's home and the temporary folders.
#   tests/fresh_root.sh                     both commands, with no terminal
#   FRESH_ROOT_TTY=1 tests/fresh_root.sh    the first one in a terminal of its own, which this stdin and stdout drive
#
# The Debian tree is made once and kept in ${XDG_CACHE_HOME:-~/.cache}/gpufix/fresh-root. What the commands take from
# this machine: its network, its resolver, its proxy, and how pip reaches an index from here (address, certificates,
# patience).
set -euo pipefail
suite=bookworm
packages=ca-certificates,python3,python3-venv
user=newcomer
self=$(readlink -f "$0")
repo=$(dirname "$(dirname "$self")")
say() { echo "fresh root: $*"; }
die() { say "$*" >&2; exit 1; }

block() { # MARKER: the block of the README after <!-- MARKER -->
    local block
    block=$(awk -v marker="<!-- $1 -->" \
        'index($0, marker) {found=1; next} found && /^```/ {if (inside) exit; inside=1; next} inside' "$repo/README.md")
    [ -n "$block" ] || die "README.md has no $1"
    printf '%s\n' "$block"
}

# --- inside: in a mount, process and host name space of its own, which ends with this script, whatever happens

mounts() { # what a running machine has and a tree on disk has not
    local it
    mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
    echo fresh >"$root/proc/sys/kernel/hostname"
    mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
    mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs "$root/run"
    mkdir -m 1777 "$root/run/lock"
    mount -t tmpfs -o nosuid,mode=755 tmpfs "$root/dev"
    mkdir "$root/dev/pts" "$root/dev/shm"
    for it in null zero full random urandom tty; do
        : >"$root/dev/$it"
        mount --bind "/dev/$it" "$root/dev/$it"
    done
    mount -t devpts -o newinstance,nosuid,noexec,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
    mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs "$root/dev/shm"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    for it in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${it%:*}" "$root/dev/${it#*:}"; done
}

as_user() { # COMMAND...: in the clone, with a clean environment (but for a proxy, and for what says that others use swap here)
    local it environment=("HOME=/home/$user" PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 TERM=xterm)
    for it in {http,https,all,no}_proxy {HTTP,HTTPS,ALL,NO}_PROXY GPUFIX_OTHERS_SWAP; do
        [ -z "${!it:-}" ] || environment+=("$it=${!it}")
    done
    chroot --userspec="$user:$user" --groups="" "$root" \
        env -i --default-signal --chdir="/home/$user/gpufix" "${environment[@]}" "$@"
}

run_block() { # NAME BLOCK TTY
    local name=$1 text=$2 tty=$3 log=$work/log started=$SECONDS status=0 quoted
    rm -rf --one-file-system "$root/home/$user/gpufix"
    # by the user, as a clone is: folders too are the user's then
    chroot --userspec="$user:$user" --groups="" "$root" mkdir "/home/$user/gpufix"
    chroot --userspec="$user:$user" --groups="" "$root" tar -xf - -C "/home/$user/gpufix" <"$work/clone.tar"
    say "$name: $text"
    # exec, since a login shell that ends runs .bash_logout, whose status would stand for the command's
    if [ "$tty" = 1 ]; then
        quoted=${text//\'/\'\\\'\'}
        log=$root/tmp/$name.typescript
        as_user script -qefc "bash -lc 'exec \"\$@\"' - bash -euo pipefail -c '$quoted'" \
            "/tmp/$name.typescript" || status=$?
    else
        as_user setsid --wait bash -lc 'exec "$@"' - bash -euo pipefail -c "$text" </dev/null >"$log" 2>&1 || status=$?
    fi
    if [ "$status" -ne 0 ]; then
        say "${name/-/ }: exit status $status after $((SECONDS - started)) s; its last 40 lines:" >&2
        tail -n 40 "$log" >&2
        exit "$status"
    fi
    [ "$tty" = 1 ] || tail -n 1 "$log"
    say "${name/-/ }: $((SECONDS - started)) s"
}

inside() {
    local first test strays built
    first=$(block first-command)
    test=$(block test-command)
    mounts
    touch "$work/stamp"
    run_block first-command "$first" "${FRESH_ROOT_TTY:-0}"
    run_block test-command "$test" 0
    built=$(find "$root/home/$user/.cache/pip/wheels" -name '*.whl' -printf '%f ' 2>/dev/null || true)
    [ -z "$built" ] || say "no wheel on the index, so pip built it: $built"
    strays=$(cd "$root" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./run -o -path ./tmp \
        -o -path ./var/tmp -o -path "./home/$user" \) -prune -o -cnewer "$work/stamp" -printf '/%P\n')
    [ -z "$strays" ] || die "written outside /home/$user, /tmp and /var/tmp:"$'\n'"$strays"
    say "nothing was written outside /home/$user, /tmp and /var/tmp"
}

if [ "${1:-}" = --inside ]; then
    work=$2 root=$2/root
    inside
    exit
fi

# --- outside: the tree, and what is put into it

[ $# -eq 0 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$self" >&2; exit 2; }
[ "$(id -u)" = 0 ] || die "root is needed, to make a Debian tree and to enter it"
block first-command >/dev/null
block test-command >/dev/null

need=()
command -v git >/dev/null || need+=(git)
command -v mmdebstrap >/dev/null || need+=(mmdebstrap)
if [ ${#need[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || die "this machine needs ${need[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends \
        "${need[@]}" >/dev/null
fi

work=$(mktemp -d)
root=$work/root
partial=
child=
# shellcheck disable=SC2317  # the trap calls it
clean_up() {
    trap '' INT TERM HUP
    [ -z "$child" ] || { kill -KILL "$child" 2>/dev/null && wait "$child" 2>/dev/null; } || true
    [ -z "$partial" ] || rm -f "$partial"
    # nothing is mounted here: the mounts were in another name space; what ran there may take a moment to be gone
    for _ in {1..25}; do
        rm -rf --one-file-system "$work" 2>/dev/null && return
        sleep 0.2
    done
    say "could not remove $work" >&2
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

options=(--variant=minbase --format=tar "--include=$packages" '--aptopt=Acquire::Languages "none"')
for path in man doc locale info; do options+=("--dpkgopt=path-exclude=/usr/share/$path/*"); done
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpufix/fresh-root
key=$(printf '%s\n' "$suite" "$(uname -m)" "${options[@]}" | sha256sum | cut -c1-12)
archive=$cache/$suite-$key.tar
if [ ! -e "$archive" ]; then
    started=$SECONDS
    mkdir -p "$cache"
    partial=$cache/.$suite-$key.$$
    mmdebstrap -q "${options[@]}" "$suite" "$partial" >&2
    mv "$partial" "$archive"
    partial=
    say "made $archive: $((SECONDS - started)) s"
fi

mkdir -m 755 "$root"
tar -xf "$archive" --numeric-owner -p --exclude='./dev/*' -C "$root"
chroot "$root" python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$suite has no python3 >= 3.11"
chroot "$root" useradd --create-home --shell /bin/bash --uid 1000 --user-group "$user"
echo fresh >"$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 fresh\n' >"$root/etc/hosts"
rm -f "$root/etc/resolv.conf"
[ ! -e /etc/resolv.conf ] || cp -L /etc/resolv.conf "$root/etc/resolv.conf"

# how pip reaches an index from here: the settings that say so, and no other (a local folder of wheels is not the index)
settings=$({ python3 -m pip config list || pip config list || "$repo/.venv/bin/pip" config list; } 2>/dev/null || true)
setting() { # NAME: the environment before files, as pip has it
    local section value
    for section in :env: install global; do
        value=$(sed -n "s/^$section\.\.\{0,1\}$1='\(.*\)'\$/\1/p" <<<"$settings")
        [ -z "$value" ] || { printf '%s\n' "${value//\\n/ }"; return; }
    done
}
{
    echo "[global]"
    for name in index-url extra-index-url trusted-host proxy timeout default-timeout retries; do
        value=$(setting "$name")
        [ -z "$value" ] || echo "$name = $value"
    done
    for bundle in "$(setting cert)" "${REQUESTS_CA_BUNDLE:-}" "${CURL_CA_BUNDLE:-}" "${SSL_CERT_FILE:-}"; do
        [ -f "$bundle" ] || continue
        cat "$bundle" >"$root/etc/ssl/certs/ca-certificates.crt"
        echo "cert = /etc/ssl/certs/ca-certificates.crt"
        break
    done
} >"$root/etc/pip.conf"

# the clone: what git has, and what it would take
cd "$repo"
git -c "safe.directory=$repo" ls-files -z -co --exclude-standard --deduplicate | while IFS= read -r -d '' path; do
    if [ -e "$path" ] || [ -L "$path" ]; then printf '%s\0' "$path"; fi
done | tar -cf "$work/clone.tar" --null --no-recursion --verbatim-files-from -T -
say "$suite, $(chroot "$root" python3 --version), $(tar -tf "$work/clone.tar" | wc -l) files"

# in the background, so that a signal is not kept waiting; as_user gives the commands their signals back
setpriv --pdeathsig KILL unshare --mount --propagation private --uts --pid --fork --kill-child \
    bash "$self" --inside "$work" <&0 &
child=$!
status=0
wait "$child" || status=$?
child=
exit "$status"
