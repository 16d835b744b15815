#!/bin/busybox sh
# The first process of the virtual machine: the host's files, read-only, below a layer that is gone with the machine.
busybox=/bin/busybox
for module in $($busybox cat /modules/order); do
	$busybox insmod "/modules/$module.ko"
done
$busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host
$busybox mount -t tmpfs tmpfs /changes
$busybox mkdir /changes/files /changes/work
$busybox mount -t overlay -o lowerdir=/host,upperdir=/changes/files,workdir=/changes/work overlay /machine
$busybox mount -t proc proc /machine/proc
$busybox mount -t sysfs sysfs /machine/sys
$busybox mount -t devtmpfs devtmpfs /machine/dev
$busybox mkdir -p /machine/dev/shm
$busybox mount -t tmpfs tmpfs /machine/dev/shm
$busybox mount -t tmpfs tmpfs /machine/tmp
$busybox mount -t cgroup2 -o nsdelegate cgroup2 /machine/sys/fs/cgroup
$busybox ifconfig lo up
# shellcheck disable=SC1091
. /settings
exec $busybox switch_root /machine /bin/sh "$project/tests/tools/cgroups/inside.sh" "$project" "$python"
