#!/bin/bash
# boot.sh TREE PIDFILE: start systemd as PID 1 of a Debian tree, in namespaces of its own, without a
# network.  Writes the pid, as seen from outside, to PIDFILE.  Needs root and util-linux.
#
# pivot_root and not chroot: nsenter(1) enters the root of the mount namespace.
set -euo pipefail
tree=$1 pidfile=$2
group=/sys/fs/cgroup/unified/vmplace-molecule
[ -d /sys/fs/cgroup/unified ] || group=/sys/fs/cgroup/vmplace-molecule
mkdir -p "$group" "$(dirname "$pidfile")"
rm -f "$pidfile"

# shellcheck disable=SC2016 # the inner shell expands it
inside='
set -e
cd "$1"
mount --bind . . && cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys || mount --rbind /sys sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
	: >"dev/$node"
	mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
ip link set lo up
mkdir -p .old
pivot_root . .old
umount -l /.old
rmdir /.old
exec env -i container=molecule PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init
'
setsid unshare --mount --uts --ipc --pid --cgroup --net --fork --kill-child --propagation private \
	bash -c "$inside" bash "$tree" </dev/null >"$pidfile.log" 2>&1 &
outer=$!
echo "$outer" >"$group/cgroup.procs"
for _ in $(seq 100); do
	if pid=$(pgrep -P "$outer"); then
		echo "$pid" | head -n 1 >"$pidfile"
		exit 0
	fi
	sleep 0.1
done
cat "$pidfile.log" >&2
exit 1
