#!/bin/busybox sh
# First program of a machine: loads modules, puts the host's file system below a writable layer, starts the agent there.
# Sourced settings: agent, address, name.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
. /settings

fail() { echo "softroce-init: $*"; echo o > /proc/sysrq-trigger; $b sleep 10; }

# A module that both lists have is loaded once.
for folder in modules disk_modules; do
    [ -e "/$folder/order" ] || continue
    while read -r module; do
        [ "$folder" = disk_modules ] && [ -e "/modules/$module" ] && continue
        $b insmod "/$folder/$module" || echo "softroce-init: $module was not loaded"
    done < "/$folder/order"
done

$b mkdir -p /lower /layer /merged
$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /lower || fail "no file system from the host"
$b mount -t tmpfs -o size=75% layer /layer
$b mkdir -p /layer/upper /layer/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work overlay /merged || fail "no writable layer"
cd /merged || fail "no merged root"
for folder in proc sys dev run tmp; do $b mkdir -p "$folder"; done
$b mount -t proc proc proc
$b mount -t sysfs sys sys
$b mount -t devtmpfs dev dev
$b mount -t tmpfs -o mode=755 run run
$b mkdir -p dev/shm dev/pts dev/hugepages
# Shells open the pipes of <( ) there.
$b ln -s /proc/self/fd dev/fd
$b mount -t tmpfs -o mode=1777,size=75% shm dev/shm
$b mount -t devpts devpts dev/pts
$b mount -t hugetlbfs hugepages dev/hugepages

$b hostname "$name"
# Tests reserve more memory than there is, and use little of it.
echo 1 > /proc/sys/vm/overcommit_memory
ulimit -l unlimited
ulimit -n 65536
$b ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
    port=eth0
else
    port=dummy0
    [ -e /sys/class/net/dummy0 ] || $b ip link add dummy0 type dummy
    $b ip link set dummy0 mtu 4500
fi
$b ip addr add "$address/24" dev "$port"
$b ip link set "$port" up

$b mount --move . /
# This shell stays the first process: it reaps what others leave behind.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 $b chroot . "$agent" agent --netdev "$port"
echo "softroce-init: the agent has ended"
echo o > /proc/sysrq-trigger
while :; do $b sleep 1; done
