"""Runs the tests of this directory where a cgroup v2 is delegated to us, and else in a virtual machine.

The machine is QEMU without acceleration, which works everywhere, with Debian's kernel and this machine's files.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast.tools.sandbox import cgroup_setup

HERE = Path(__file__).parent
PROJECT = HERE.parents[2]
QEMU = "qemu-system-x86_64"
LIMIT_S = 600
MODULES = """
    drivers/virtio/virtio_ring drivers/virtio/virtio drivers/virtio/virtio_pci_legacy_dev
    drivers/virtio/virtio_pci_modern_dev drivers/virtio/virtio_pci fs/netfs/netfs fs/fscache/fscache net/9p/9pnet
    net/9p/9pnet_virtio fs/9p/9p fs/overlayfs/overlay
"""
MACHINE = """
    -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 3072 -nographic -no-reboot -nic none
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap
    -device virtio-9p-pci,fsdev=host,mount_tag=host
"""


def main() -> int:
    if is_delegated():
        return subprocess.run([sys.executable, "-m", "pytest", "-n0", str(HERE)], cwd=PROJECT, check=False).returncode
    missing = [name for name in (QEMU, "apt-get", "dpkg-deb", "setpriv") if not shutil.which(name)]
    if missing:
        print(f"Without a delegated cgroup v2 these tests need {', '.join(missing)}.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        return run_in_machine(Path(directory))


def is_delegated() -> bool:
    try:
        own = cgroup_setup.own_directory(
            Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()
        )
        cgroup_setup.delegated(own)
    except OSError:
        return False
    return True


def run_in_machine(directory: Path) -> int:
    unpack_kernel(directory)
    (kernel,) = directory.glob("unpacked/boot/vmlinuz-*")
    command = [QEMU, *MACHINE.split(), "-kernel", str(kernel), "-initrd", str(pack_init(directory))]
    command += ["-append", "console=ttyS0 quiet panic=-1 mitigations=off"]
    console = directory / "console"
    with console.open("wb") as file:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, timeout=LIMIT_S, check=False)
    said = console.read_text(errors="replace").replace("\r", "")
    print(re.sub(r"^.*Killed process.*\n", "", said[max(0, said.find("user ")) :], flags=re.MULTILINE))
    return 0 if re.findall(r"^user \d+: ended with (\d+)$", said, re.MULTILINE) == ["0", "0"] else 1


def unpack_kernel(directory: Path) -> None:
    """Not installed: nothing of this machine is changed."""
    depends = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], check=True, capture_output=True, text=True)
    image = next(line.split()[1] for line in depends.stdout.splitlines() if "Depends:" in line)
    as_us = ["-o", "APT::Sandbox::User=root"]  # no other user can write to our directory
    subprocess.run(["apt-get", "download", "-qq", *as_us, image, "busybox-static"], cwd=directory, check=True)
    for package in directory.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(directory / "unpacked")], check=True)


def pack_init(directory: Path) -> Path:
    root, packed = directory / "init", directory / "init.cpio"
    for name in ("bin", "modules", "host", "changes", "machine"):
        (root / name).mkdir(parents=True)
    shutil.copy(directory / "unpacked/bin/busybox", root / "bin/busybox")
    shutil.copy(HERE / "init.sh", root / "init")
    (root / "init").chmod(0o755)
    (modules,) = directory.glob("unpacked/lib/modules/*/kernel")
    for name in MODULES.split():
        shutil.copy(modules / f"{name}.ko", root / "modules")
    (root / "modules/order").write_text("\n".join(os.path.basename(name) for name in MODULES.split()) + "\n")
    settings = f"project={shlex.quote(str(PROJECT))}\npython={shlex.quote(sys.executable)}\n"
    (root / "settings").write_text(settings)
    names = "\n".join(str(path.relative_to(root)) for path in [root, *sorted(root.rglob("*"))])
    with packed.open("wb") as file:
        command = [str(root / "bin/busybox"), "cpio", "-o", "-H", "newc"]
        subprocess.run(command, input=names.encode(), stdout=file, cwd=root, check=True)
    return packed


if __name__ == "__main__":
    sys.exit(main())
