# What a session of a page begins with: a machine of its own. Its root is a copy on write of this one, its processes end
# with it, and no network is there but its own loopback. Called with the directory of the session, then those to be seen
# as they are.
set -eu
work=$1
shift
mount -t tmpfs tmpfs "$work/over"
mkdir "$work/over/upper" "$work/over/work" "$work/over/root"
root="$work/over/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/over/upper,workdir=$work/over/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
for seen in "$@" "$work"; do
    mkdir -p "$root$seen"
    mount --bind "$seen" "$root$seen"
done
# Stores are on a real disk, as no broker starts in memory.
for place in /archive /data /lake /srv /var/lib/activemq /var/lib/tandemmq; do
    mkdir -p "$root$place" "$work/disk$place"
    mount --bind "$work/disk$place" "$root$place"
done
"$PYTHON" -c 'import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: up and running'
echo one >/proc/sys/kernel/hostname
printf '127.0.0.1 localhost one a b\n127.0.0.2 two\n' >"$root/etc/hosts"
cd "$work/here"
exec chroot "$root" bash -c 'cd "$1" && exec bash "$2"' bash "$work/here" "$work/session"
