#!/bin/sh
# libvirt_host.sh TREE FOLDER SHARED: libvirtd of a Debian tree, in namespaces of its own, over files of its own.
# Its /run is FOLDER/run, its /shared is SHARED; FOLDER/etc is laid over its /etc.  A libvirtd that ends comes back.
# Before it stands what makes the mount namespace private (lab/toolbox.py).
set -eu
tree=$1 folder=$2 shared=$3
space=$folder/space root=$folder/space/root
mount -t tmpfs space "$space"
mkdir "$space/upper" "$space/work" "$root"
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$space/upper,workdir=$space/work" "$root"
cp -a "$folder/etc/." "$root/etc/"
for name in dev sys; do mount --rbind "/$name" "$root/$name"; done
mount -t proc proc "$root/proc"
mkdir "$root/shared"
mount --bind "$folder/run" "$root/run"
mount --bind "$shared" "$root/shared"
hostname "$(basename "$folder")"
exec chroot "$root" sh -c 'virtlogd & while :; do libvirtd & echo $! > /run/libvirtd.pid; wait $!; sleep 0.1; done'
