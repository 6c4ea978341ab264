#!/bin/bash
# Finds or builds the Kubernetes binaries of the real node: kube-apiserver, kube-controller-manager,
# kube-scheduler, kubelet, kubectl. Prints the folder that holds them; says what it does on stderr.
#
#   build_kubernetes.sh            build what is missing, print the folder
#   build_kubernetes.sh --find     print the folder, or fail where it is not complete; builds nothing
#
#   WAY=A (default)        the Go module k8s.io/kubernetes at $K8S_VERSION (v1.34.4); needs Go >= 1.24;
#                          6 min cold on 2 cores
#   WAY=B                  Debian's source package kubernetes (bookworm: 1.20.2) with Debian's Go 1.19;
#                          needs root and apt, 6 min cold on 2 cores
#   KUBEBUILDER_ASSETS     used as it is where it holds all five (it seldom has a kubelet)
#   GPUFIX_KUBERNETES      the cache; default ${XDG_CACHE_HOME:-~/.cache}/gpufix/kubernetes, one folder
#                          a version
#
# The cache lies outside the checkout. A build is made in a folder of its own and moved into place at
# the end, so a killed one leaves nothing that looks complete. Where everything is there, this is a
# no-op of a few milliseconds.
set -euo pipefail

COMMANDS="kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl"
WAY=${WAY:-A}
CACHE=${GPUFIX_KUBERNETES:-${XDG_CACHE_HOME:-$HOME/.cache}/gpufix/kubernetes}
case $WAY in
A) VERSION=${K8S_VERSION:-v1.34.4} ;;
B) VERSION=v1.20.2 ;;
*)
    echo "build_kubernetes.sh: WAY is A or B, not '$WAY'" >&2
    exit 2
    ;;
esac
OUT=$CACHE/$VERSION
MINOR=${VERSION#v1.}
WORK=
PARTIAL=

say() { echo "build_kubernetes.sh: $*" >&2; }

complete() {
    local command
    for command in $COMMANDS; do [ -f "$1/$command" ] && [ -x "$1/$command" ] || return 1; done
}

clean_up() {
    [ -z "$WORK" ] || rm -rf "$WORK"
    [ -z "$PARTIAL" ] || rm -rf "$PARTIAL"
}

# The modules of Kubernetes' own staging area: go.mod of k8s.io/kubernetes replaces them by folders
# that the published module does not have, so each is replaced by its published version here.
STAGING="api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider
cluster-bootstrap code-generator component-base component-helpers controller-manager cri-api cri-client
csi-translation-lib dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator
kube-controller-manager kube-proxy kube-scheduler kubectl kubelet metrics mount-utils
pod-security-admission sample-apiserver sample-cli-plugin sample-controller"

build_from_module() {
    local command module version_package=k8s.io/component-base/version
    command -v go >/dev/null || {
        say "WAY=A needs Go >= 1.24 on PATH (or GPUFIX_KUBERNETES with a built $VERSION)"
        exit 1
    }
    cd "$WORK"
    {
        printf 'module realnode.invalid/kubernetes\n\ngo 1.24\n\nrequire k8s.io/kubernetes %s\n' "$VERSION"
        for module in $STAGING; do printf 'replace k8s.io/%s => k8s.io/%s v0.%s\n' "$module" "$module" "$MINOR"; done
    } >go.mod
    {
        printf '//go:build tools\n\npackage kubernetes\n\nimport (\n'
        for command in $COMMANDS; do printf '\t_ "k8s.io/kubernetes/cmd/%s"\n' "$command"; done
        printf ')\n'
    } >tools.go
    # -e: modules needed only by other modules' tests may be out of reach, and are not needed
    go mod tidy -e >&2 || true
    say "building $COMMANDS $VERSION"
    # no inlining and no debug information: a quarter less to compile
    # shellcheck disable=SC2086  # COMMANDS is a list of words
    CGO_ENABLED=0 go build -trimpath -o "$PARTIAL/" -gcflags "all=-dwarf=false -l" \
        -ldflags "-s -w -X $version_package.gitVersion=$VERSION \
            -X $version_package.gitMajor=1 -X $version_package.gitMinor=${MINOR%%.*}" \
        $(printf 'k8s.io/kubernetes/cmd/%s ' $COMMANDS)
}

build_from_debian() {
    local command reflect2 source_list version_package=k8s.io/kubernetes/vendor/k8s.io/component-base/version
    local apt=(apt-get -qq -o "Dir::State::Lists=$WORK/lists" -o "Dir::Etc::SourceList=/dev/null"
        -o "Dir::Etc::SourceParts=$WORK/sources" -o "APT::Sandbox::User=root")
    if ! [ -x /usr/lib/go-1.19/bin/go ] || ! command -v jq rsync make >/dev/null; then
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            golang-1.19-go jq rsync make >&2
    fi
    # the machine's own Debian mirror, as a source of sources, in lists that are only ours
    mkdir -p "$WORK/sources" "$WORK/lists/partial"
    for source_list in /etc/apt/sources.list /etc/apt/sources.list.d/debian.*; do
        case $source_list in
        *.sources) [ ! -e "$source_list" ] || sed 's/^Types:.*/Types: deb-src/' "$source_list" >"$WORK/sources/debian.sources" ;;
        *) [ ! -e "$source_list" ] || sed -n 's/^deb /deb-src /p' "$source_list" >"$WORK/sources/$(basename "$source_list" .list).list" ;;
        esac
    done
    cd "$WORK"
    "${apt[@]}" update >&2
    "${apt[@]}" source --download-only kubernetes >&2 # Debian calls it 1.20.5+really1.20.2
    mkdir -p gopath/src/k8s.io
    tar xzf kubernetes_*.orig.tar.gz -C gopath/src/k8s.io
    mv gopath/src/k8s.io/kubernetes-1.20.2 gopath/src/k8s.io/kubernetes
    cd gopath/src/k8s.io/kubernetes
    unset GOROOT GOFLAGS
    export PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=$WORK/gopath GO111MODULE=off CGO_ENABLED=0 GOENV=off
    # 1.20.2 is older than Go 1.18, under which its vendored reflect2 corrupts maps: kube-apiserver dies on a
    # custom object. reflect2 v1.0.2 is the same with that repaired.
    reflect2=$(GO111MODULE=on go mod download -json github.com/modern-go/reflect2@v1.0.2 | jq -er .Dir)
    rm -rf vendor/github.com/modern-go/reflect2
    cp -r --no-preserve=mode "$reflect2" vendor/github.com/modern-go/reflect2
    say "generating files"
    make generated_files >&2
    for command in $COMMANDS; do
        say "building $command $VERSION"
        go build -trimpath -o "$PARTIAL/" -ldflags "-s -w -X $version_package.gitVersion=$VERSION \
            -X $version_package.gitMajor=1 -X $version_package.gitMinor=20" "./cmd/$command"
    done
}

case ${1:-} in
"" | --find) ;;
*)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
    ;;
esac
if [ "$WAY" = A ] && [ -z "${K8S_VERSION:-}" ] && [ -n "${KUBEBUILDER_ASSETS:-}" ] && complete "$KUBEBUILDER_ASSETS"; then
    echo "$KUBEBUILDER_ASSETS"
    exit 0
fi
if complete "$OUT"; then
    echo "$OUT"
    exit 0
fi
if [ "${1:-}" = --find ]; then
    say "no complete set of binaries in $OUT"
    exit 1
fi

mkdir -p "$CACHE"
exec 9>"$CACHE/.lock"
flock 9 # one build at a time; whoever waited finds the work done
if ! complete "$OUT"; then
    trap clean_up EXIT
    rm -rf "$CACHE/.$VERSION".*
    PARTIAL=$(mktemp -d "$CACHE/.$VERSION.XXXXXX")
    WORK=$(mktemp -d)
    case $WAY in A) build_from_module ;; B) build_from_debian ;; esac
    "$PARTIAL/kubelet" --version | grep -qF "$VERSION"
    chmod 755 "$PARTIAL"
    rm -rf "$OUT"
    mv -T "$PARTIAL" "$OUT"
    PARTIAL=
fi
echo "$OUT"
