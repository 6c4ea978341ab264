"""What is put on the node's disk: Debian, certificates, configuration, users, and the one stand-in image."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .machine import RealNodeError, run
from .names import ADDRESS, FSTAB_HEALTHY, GATEWAY, HERE, NODE, PAUSE_IMAGE, SERVER, SUDO_PASSWORD, USERS

HOST_PACKAGES = {
    "etcd": "etcd-server",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "ssh": "openssh-client",
    "systemd-nspawn": "systemd-container",
}
"""Commands that this host needs, and the Debian packages that have them."""
NODE_PACKAGES = (
    "bash-static,busybox-static,conntrack,containerd,containernetworking-plugins,dbus,iproute2,iptables,kmod,mount,"
    "openssh-server,procps,python3,sudo,systemd,systemd-sysv,udev,util-linux"
)
CONTAINERD_CONFIG = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true  # no score may be lowered inside nspawn
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
"""
CNI_CONFIG = {
    "cniVersion": "0.4.0",
    "name": "realnode",
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": True,
    "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"},
}
KUBELET_CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization: {mode: Webhook}
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: true
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 2s
nodeLeaseDurationSeconds: 8
"""
# kubeadm's own unit and drop-in, but for RestartSec (10 there), so that a crash loop shows in seconds
KUBELET_UNIT = """\
[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target containerd.service

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=3

[Install]
WantedBy=multi-user.target
"""
KUBELET_DROP_IN = """\
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
# nspawn leaves the cgroup v1 controllers read-only; runc must write to them
CGROUP_UNIT = """\
[Unit]
Description=Make the cgroup controllers writable for the container runtime
Before=containerd.service

[Service]
Type=oneshot
ExecStart=-/bin/sh -c 'for d in /sys/fs/cgroup /sys/fs/cgroup/*; do \\
    mount -o remount,rw $d || mount -o remount,bind,rw $d; done 2>/dev/null'

[Install]
WantedBy=multi-user.target
"""


def install_host_packages() -> None:
    """Install what this host lacks, with apt; elsewhere say what is lacking."""
    missing = [package for command, package in HOST_PACKAGES.items() if not shutil.which(command)]
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise RealNodeError(f"this machine needs {', '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        # where another apt is at work, it waits for its lock
        command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600", *arguments]
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Give a path to write to that becomes ``target`` once it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def make_stand_in_binary(cache: Path) -> Path:
    """Build deviceplugin/ where its sources changed. Static, so that it runs in the stand-in image."""
    source = HERE / "deviceplugin"
    digest = hashlib.sha256(b"".join((source / name).read_bytes() for name in ("main.go", "go.mod", "go.sum")))
    binary = cache / f"device-plugin-{digest.hexdigest()[:12]}"
    if not binary.exists():
        if not shutil.which("go"):
            raise RealNodeError(f"Go >= 1.24 is needed to build {source}")
        with whole_file(binary) as partial:
            build = ["go", "build", "-C", str(source), "-trimpath", "-ldflags", "-s -w", "-o", str(partial), "."]
            subprocess.run(build, check=True, env={**os.environ, "CGO_ENABLED": "0"}, stdout=sys.stderr)
    return binary


def make_root_archive(cache: Path) -> Path:
    """Make the node's root with mmdebstrap where it is not cached: Debian bookworm, and nothing of one run."""
    digest = hashlib.sha256(NODE_PACKAGES.encode()).hexdigest()
    archive = cache / f"bookworm-{digest[:12]}.tar"
    if not archive.exists():
        excluded = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
        options = [f"--dpkgopt=path-exclude={path}" for path in excluded]
        options += ['--aptopt=Acquire::Languages "none"', f"--include={NODE_PACKAGES}", "--format=tar"]
        with whole_file(archive) as partial:
            command = ["mmdebstrap", "-q", "--variant=minbase", *options, "bookworm", str(partial)]
            subprocess.run(command, check=True, stdout=sys.stderr)
    return archive


def make_pki(pki: Path) -> None:
    """A certificate authority of this run, and what it signs. Nothing outside the work folder trusts it."""
    pki.mkdir(mode=0o700)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    authority = ["-keyout", f"{pki}/ca.key", "-out", f"{pki}/ca.crt", "-subj", "/CN=realnode-ca", "-days", "365"]
    usage = "keyUsage=critical,digitalSignature,keyCertSign,cRLSign"
    run(["openssl", "req", "-x509", *key, *authority, "-addext", usage])
    names = f"subjectAltName=IP:{GATEWAY},IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default.svc"
    for name, subject, extension in (
        ("apiserver", "/CN=kube-apiserver", f"extendedKeyUsage=serverAuth\n{names}"),
        ("admin", "/O=system:masters/CN=kubernetes-admin", "extendedKeyUsage=clientAuth"),
        ("kubelet", f"/O=system:nodes/CN=system:node:{NODE}", "extendedKeyUsage=clientAuth"),
        ("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client", "extendedKeyUsage=clientAuth"),
    ):
        base = str(pki / name)
        common = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\nbasicConstraints=CA:FALSE\n"
        Path(f"{base}.ext").write_text(f"{extension}\n{common}")
        run(["openssl", "req", *key, "-keyout", f"{base}.key", "-out", f"{base}.csr", "-subj", subject])
        signer = ["-CA", f"{pki}/ca.crt", "-CAkey", f"{pki}/ca.key", "-CAcreateserial", "-extfile", f"{base}.ext"]
        run(["openssl", "x509", "-req", "-in", f"{base}.csr", "-out", f"{base}.crt", "-days", "365", *signer])
    run(["openssl", "genrsa", "-out", f"{pki}/sa.key", "2048"])
    run(["openssl", "rsa", "-in", f"{pki}/sa.key", "-pubout", "-out", f"{pki}/sa.pub"])


def kubeconfig(pki: Path, user: str) -> str:
    def embedded(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    return f"""\
apiVersion: v1
kind: Config
current-context: realnode
contexts:
- name: realnode
  context: {{cluster: realnode, user: {user}}}
clusters:
- name: realnode
  cluster:
    server: {SERVER}
    certificate-authority-data: {embedded("ca.crt")}
users:
- name: {user}
  user:
    client-certificate-data: {embedded(f"{user}.crt")}
    client-key-data: {embedded(f"{user}.key")}
"""


def inventory(key: Path) -> str:
    """An Ansible inventory with the node, as root."""
    ssh = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes"
    return (
        f"[gpu_nodes]\n{NODE} ansible_host={ADDRESS} ansible_user=root ansible_ssh_private_key_file={key} "
        f"ansible_python_interpreter=/usr/bin/python3 ansible_ssh_common_args='{ssh}'\n"
    )


def furnish(root: Path, pki: Path, public_key: Path, kubelet: Path) -> None:
    """Turn a bare Debian into the node: kubelet, containerd, sshd, users."""
    shutil.copy2(kubelet, root / "usr/bin/kubelet")
    config, flags = kubelet_settings(minor=int(run([str(kubelet), "--version"]).split(".")[1]))
    files = {
        "etc/hostname": f"{NODE}\n",
        "etc/hosts": f"127.0.0.1 localhost\n{ADDRESS} {NODE}\n",
        "etc/fstab": FSTAB_HEALTHY,
        "etc/kubernetes/kubelet.conf": kubeconfig(pki, "kubelet"),
        "etc/kubernetes/pki/ca.crt": (pki / "ca.crt").read_text(),
        "etc/cni/net.d/10-bridge.conf": json.dumps(CNI_CONFIG),
        "etc/containerd/config.toml": CONTAINERD_CONFIG,
        "etc/ssh/sshd_config.d/realnode.conf": "UseDNS no\nPermitRootLogin prohibit-password\n",
        "etc/sudoers.d/realnode": "operator ALL=(ALL:ALL) ALL\nops ALL=(ALL:ALL) NOPASSWD: ALL\n",
        "etc/systemd/system/cgroup-rw.service": CGROUP_UNIT,
        "usr/lib/systemd/system/kubelet.service": KUBELET_UNIT,
        "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": KUBELET_DROP_IN,
        "var/lib/kubelet/config.yaml": config,
        "var/lib/kubelet/kubeadm-flags.env": f'KUBELET_KUBEADM_ARGS="{" ".join(flags)}"\n',
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "etc/sudoers.d/realnode").chmod(0o440)
    (root / "etc/kubernetes/kubelet.conf").chmod(0o600)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    (wants / "kubelet.service").symlink_to("/usr/lib/systemd/system/kubelet.service")
    (wants / "cgroup-rw.service").symlink_to("/etc/systemd/system/cgroup-rw.service")
    for user, group in (("operator", "operator"), ("ops", "users")):  # Debian has a group "operator" already
        run(["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", "--gid", group, user])
    run(["chroot", str(root), "chpasswd"], stdin=f"operator:{SUDO_PASSWORD}\n")
    for user in USERS:
        home = root / ("root" if user == "root" else f"home/{user}")
        key = home / ".ssh" / "authorized_keys"
        key.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(public_key, key)
        for private in (key.parent, key):
            os.chown(private, home.stat().st_uid, home.stat().st_gid)


def kubelet_settings(minor: int) -> tuple[str, list[str]]:
    """Give the configuration and the kubeadm flags of a kubelet 1.MINOR: where the runtime is named has moved."""
    socket = "unix:///run/containerd/containerd.sock"
    config, flags = KUBELET_CONFIG, [f"--hostname-override={NODE}", f"--node-ip={ADDRESS}"]
    if minor < 24:  # dockershim was still the default
        flags.append("--container-runtime=remote")
    if minor < 27:
        flags.append(f"--container-runtime-endpoint={socket}")
    else:
        config += f"containerRuntimeEndpoint: {socket}\n"
    if minor >= 31:
        config += "failCgroupV1: false\n"
    return config, flags


def make_image(root: Path, plugin: Path, names: list[str]) -> bytes:
    """Give the stand-in image in the format of ``docker save``, which ``ctr images import`` takes.

    One layer: busybox as the shell, bash, vfio-manage.sh, and the device plugin, which is the pause process too.
    """
    layer = make_layer(root, plugin)
    digest = hashlib.sha256(layer).hexdigest()
    machine = os.uname().machine
    config = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/pause"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": names, "Layers": [f"{digest}/layer.tar"]}]).encode()
    image = io.BytesIO()
    with tarfile.open(fileobj=image, mode="w") as archive:
        add_file(archive, config_name, config)
        add_file(archive, f"{digest}/layer.tar", layer)
        add_file(archive, "manifest.json", manifest)
    return image.getvalue()


def make_layer(root: Path, plugin: Path) -> bytes:
    busybox = root / "bin/busybox"
    applets = set(run([str(busybox), "--list"]).split()) - {"busybox", "bash"}
    files = {
        "bin/busybox": busybox,
        "bin/bash": root / "bin/bash-static",
        "bin/vfio-manage.sh": HERE / "image" / "vfio-manage.sh",
        "device-plugin": plugin,
    }
    links = {**{f"bin/{applet}": "busybox" for applet in sorted(applets)}, "pause": "device-plugin"}
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for folder in ("bin", "host", "tmp"):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        for name, source in files.items():
            add_file(archive, name, source.read_bytes())
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return layer.getvalue()


def add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o755
    archive.addfile(member, io.BytesIO(content))


class Pristine:
    """What a test may change on the node's disk, kept as it was after the first boot, and put back."""

    paths = (
        "etc",
        "usr/lib/systemd/system",
        "var/lib/kubelet/config.yaml",
        "var/lib/kubelet/kubeadm-flags.env",
    )
    left_alone = frozenset({"etc/machine-id", "etc/mtab", "etc/resolv.conf", "etc/.updated", "etc/.pwd.lock"})

    def __init__(self, root: Path, kept: Path) -> None:
        self.root = root
        self.kept = kept

    def keep(self) -> None:
        for path in self.paths:
            (self.kept / path).parent.mkdir(parents=True, exist_ok=True)
            run(["cp", "-a", str(self.root / path), str(self.kept / path)])

    def put_back(self) -> list[str]:
        """Put back what changed, and give the paths."""
        if not all(is_there(self.kept / path) for path in self.paths):
            raise RealNodeError("this node was brought up by other code, or half: realnode.sh down, then up")
        changed: list[str] = []
        for path in self.paths:
            self._put_back(path, changed)
        return changed

    def _put_back(self, path: str, changed: list[str]) -> None:
        if path in self.left_alone:
            return
        kept, current = self.kept / path, self.root / path
        folders = [it for it in (kept, current) if it.is_dir() and not it.is_symlink()]
        if len(folders) == 2 and same_owner_and_mode(kept, current):
            for name in sorted({entry.name for folder in folders for entry in folder.iterdir()}):
                self._put_back(f"{path}/{name}", changed)
        elif not same_file(kept, current):
            changed.append(path)
            remove(current)
            if is_there(kept):
                run(["cp", "-a", str(kept), str(current)])


def is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def same_owner_and_mode(one: Path, other: Path) -> bool:
    a, b = one.lstat(), other.lstat()
    return (a.st_mode, a.st_uid, a.st_gid) == (b.st_mode, b.st_uid, b.st_gid)


def same_file(one: Path, other: Path) -> bool:
    if not (is_there(one) and is_there(other)):
        return is_there(one) == is_there(other)
    if not same_owner_and_mode(one, other):
        return False
    if one.is_symlink():
        return one.readlink() == other.readlink()
    return one.is_file() and one.read_bytes() == other.read_bytes()
