#!/bin/busybox sh
# The guest's first process: mounts what the script needs, runs it, hands its results back over the
# second serial port, and restarts (QEMU ends then).
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t debugfs debug /sys/kernel/debug
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup /sys/fs/cgroup
hostname isotherm-vm
ip link set lo up
# The kernel's command line names the port.
stty -F /dev/$results raw -echo
for processor in /sys/devices/system/cpu/cpu*/online; do
    [ -e "$processor" ] && echo 1 >"$processor"
done
for module in /modules/*.ko; do
    [ -e "$module" ] && insmod "$module"
done

: >/run/stdout
tail -f /run/stdout &
(cd /tmp && exec sh /script) >>/run/stdout 2>&1 </dev/null
echo $? >/run/code
# Whatever the script left behind must neither write on nor slow the transfer.
kill -9 -1
cd /
tar -c run/code run/stdout out | gzip -1 >/dev/$results
reboot -f
