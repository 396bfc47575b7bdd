#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The first process of a kernel under test: mounts, loads modules, runs the stages, powers off. Lines that begin with
# @@ are read by boot.rs.
/bin/busybox mkdir -p /applets /proc /sys /dev /etc /tmp /run/netns /var/run /root
/bin/busybox --install -s /applets
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/applets HOME=/root RUST_BACKTRACE=0
# Programs look up host and protocol names.
printf '127.0.0.1 localhost\n::1 localhost\n' >/etc/hosts
printf 'hosts: files\nprotocols: files\n' >/etc/nsswitch.conf
printf 'root:x:0:0:root:/root:/bin/sh\n' >/etc/passwd
printf 'icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n' >/etc/protocols
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
# Nothing is mounted on /tmp: the image may have the clone there.
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
while read -r module; do
    insmod "$module" 2>/dev/null || echo "@@ module $module is not taken"
done </modules
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
seconds() { cut -d. -f1 /proc/uptime; }
echo "@@ version $(uname -v | sed 's/.*Debian \([^ ]*\).*/\1/')"
tab="$(printf '\t')"
while IFS="$tab" read -r name limit command; do
    echo "@@ begin $name"
    from=$(seconds)
    timeout "$limit" sh -c "$command" </dev/null 2>&1
    status=$?
    echo "@@ end $name $status $(($(seconds) - from))"
done </stages
echo "@@ off"
poweroff -f
