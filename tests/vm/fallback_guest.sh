#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Inside a machine with an RDMA device (tests/vm/run): what tern does when the device cannot be used. Each trouble
# is made for real and undone: mode auto goes on with ONE warning that says why, mode required fails with the
# remedy, `tern doctor` finds it, nothing dies by a signal.
#
# usage: fallback_guest.sh TERN
tern=$1
failures=0
user='' # prefix of commands
errors=$(mktemp)
export TERN_LOG_LEVEL=warn

fail() { # TEXT
	echo "FAILED: $1"
	sed 's/^/    /' "$errors"
	failures=$((failures + 1))
}

# One context, as a process of a job makes it. What it says goes to $errors.
context() { # MODE
	local status
	TERN_VERBS_MODE=$1 $user "$tern" info --memory >/dev/null 2>"$errors"
	status=$?
	# libibverbs has warnings of its own
	sed -i '/^libibverbs: Warning: /d' "$errors"
	return $status
}

ok() { # NAME
	local status
	context required
	status=$?
	[ $status = 0 ] || fail "$1: required ends with $status"
	context auto
	status=$?
	[ $status = 0 ] && [ ! -s "$errors" ] || fail "$1: auto ends with $status, or warns"
	echo "done: $1"
}

# auto: status 0 and one line with the words; required: status 1 and the words; off: status 0, silent.
refused() { # NAME CHECK WORDS...
	local name=$1 check=$2 status word
	shift 2
	context auto
	status=$?
	[ $status = 0 ] || fail "$name: auto ends with $status"
	[ "$(wc -l <"$errors")" = 1 ] || fail "$name: auto says $(wc -l <"$errors") lines, not 1"
	for word; do grep -qF -e "$word" "$errors" || fail "$name: auto does not say '$word'"; done
	context required
	status=$?
	[ $status = 1 ] || fail "$name: required ends with $status"
	for word in "$@" verbs.mode; do grep -qF -e "$word" "$errors" || fail "$name: required does not say '$word'"; done
	context off
	status=$?
	[ $status = 0 ] && [ ! -s "$errors" ] || fail "$name: off ends with $status, or warns"
	# doctor names it, and fails: the device is there and cannot be used
	$user "$tern" doctor --no-self-test >"$errors" 2>&1
	status=$?
	[ $status = 1 ] || fail "$name: doctor ends with $status"
	grep -qE "^fail +$check" "$errors" || fail "$name: doctor does not fail $check"
	echo "done: $name"
}

# Without a library: a file system over its folder with a hole in it, seen by that command alone.
without() { # LIBRARY COMMAND...
	unshare -m bash -c '
		hole=$1; shift
		at=$(mktemp -d) && mount -t tmpfs none "$at" && mkdir "$at/up" "$at/work" || exit 125
		mknod "$at/up/$(basename "$hole")" c 0 0 &&
		mount -t overlay none -o "lowerdir=$(dirname "$hole"),upperdir=$at/up,workdir=$at/work" \
			"$(dirname "$hole")" || exit 125
		exec "$@"' bash "$@"
}

[ -e /sys/class/infiniband/$VM_RDMA ] || { echo "no device"; exit 1; }
node=/dev/infiniband/$(ls /sys/class/infiniband_verbs | grep uverbs | head -n 1)
nobody='setpriv --reuid=65534 --regid=65534 --clear-groups'
library=$(ldconfig -p | awk '/libibverbs\.so\.1 /{print $NF; exit}')
drivers=$(ls -d "$(dirname "$library")/libibverbs")

ok "the device as it is"

chmod 0600 "$node"
user=$nobody
refused "no permission" "permission.$VM_RDMA" "not permitted" "/dev/infiniband/uverbs"
chmod 0666 "$node"

user="$nobody prlimit --memlock=65536:65536"
refused "memlock 64 KiB" memlock "RLIMIT_MEMLOCK" "64 KiB" "ulimit -l"

user="without $library"
refused "no libibverbs" libibverbs "libibverbs.so.1" "install libibverbs1"
user="without $drivers"
refused "no driver for the device" "permission.$VM_RDMA" "ibverbs-providers"
user=''

mv "$node" /dev/node.away
refused "no device node" "permission.$VM_RDMA" "$VM_RDMA" "is not there"
mv /dev/node.away "$node"

vm-link down
refused "port down" "device.$VM_RDMA" "not ACTIVE" "cable"
vm-link up

ip addr flush dev "$VM_NETDEV"
refused "no routed address" "provider.verbs" "no usable GID" "routed address"
vm-addr "$VM_OWN_ADDR"

ok "the device again"

# Huge pages: enough, then too few. Neither is a matter of verbs.
pages() { # KIND
	"$tern" info --memory 2>"$errors" | grep -qE "^  pages +$1\$" || fail "huge pages: not $1"
}
sysctl -q vm.nr_hugepages=64
pages huge
[ -s "$errors" ] && fail "huge pages: warns with enough of them"
sysctl -q vm.nr_hugepages=1
TERN_MEM_EXTENT_MIN=8MiB pages 4k
[ "$(grep -c 'huge pages of 2 MiB wanted' "$errors")" = 1 ] || fail "huge pages: not one warning"
grep -q 'raise vm.nr_hugepages' "$errors" || fail "huge pages: no remedy"
TERN_MEM_HUGE_PAGES=off TERN_MEM_EXTENT_MIN=8MiB pages 4k
[ -s "$errors" ] && fail "huge pages: warns though they are off"
sysctl -q vm.nr_hugepages=0
pages 4k
[ -s "$errors" ] && fail "huge pages: warns where nobody set any aside"
echo "done: huge pages"

# A job goes on without: two processes move data over something else.
chmod 0600 "$node"
$nobody "$tern" perf --op put,send --sizes 64 --rounds 1 --round-time 0.02 >"$errors.out" 2>"$errors" ||
	fail "a job without permission: status $?"
grep -qE '^transport (shm|tcp)' "$errors.out" || fail "a job without permission: not over shm or tcp"
chmod 0666 "$node"
echo "done: a job goes on"

"$tern" info --memory | grep -qE "verbs.registrations.$VM_RDMA +[1-9]" || fail "tern info --memory: no registrations"
"$tern" doctor >"$errors" 2>&1 || fail "doctor at the end: status $?"
grep -qE '^ok +self_test.verbs' "$errors" || fail "doctor at the end: no self-test of verbs"
rm -f "$errors" "$errors.out"
echo "$failures failures"
[ $failures = 0 ]
