# Functions for the acting scenarios' scripts. $target is the workload.

# look NAME [--sum]: says in /out/NAME.json where the target has its memory.
look() {
    name=$1
    shift
    vm-guest pages --pid $target --truth /out/truth.jsonl "$@" >/out/$name.json || exit 1
}

# act NAME OPTIONS: runs schemes, and leaves in /out/NAME.json what they did.
act() {
    name=$1
    shift
    taskset $other_cpu isotherm run --json "$@" >/out/$name.json || die acting $name failed
    is_well $name
}

# act_until NAME CONDITION OPTIONS: the same until the condition holds, or for 120 looks.
act_until() {
    name=$1
    until="$2"
    shift 2
    taskset $other_cpu isotherm run --json "$@" >/out/$name.json &
    running=$!
    wait_for 1 120 $until
    sleep 1
    kill -TERM $running
    wait $running || die acting $name failed
    is_well $name
}

# Conditions.
sees() { vm-guest pages --pid $target --truth /out/truth.jsonl | tr -d ' \n' | grep -q "$1"; }
# Less than 1 MB of what is cold is in memory.
cold_is_out() { sees '"cold":{"present":[0-9]\{1,6\},'; }
# So many bytes are in huge pages.
huge() { sees "\"anon_huge\":$1[,}]"; }
huge_at_least() { [ "$(said '"anon_huge":')" -ge $(($1 << 20)) ]; }
# Anonymous memory of the target, in KiB.
anon() { sed -n 's/RssAnon:[^0-9]*\([0-9]*\) kB/\1/p' /proc/$target/status; }
anon_at_most() { [ "$(anon)" -le $1 ]; }
anon_at_least() { [ "0$(anon)" -ge $1 ]; }
# A number that the look says after what matches $1.
said() { vm-guest pages --pid $target --truth /out/truth.jsonl | tr -d ' \n' | sed -n "s/.*$1\([0-9]*\).*/\1/p"; }
# At most so many bytes are referenced, and were a while ago.
referenced_at_most() { [ "$(said '"referenced":')" -le $1 ] && sleep 6; }
# is_on_node PART NODE BYTES: at least so many bytes of the hot or cold memory are on the node.
is_on_node() { [ "$(said "\"$1\":{[^}]*\"nodes\":{[^}]*\"$2\":")0" -ge ${3}0 ]; }
# Swap has no more than this free, and what then was refused has been.
swap_is_full() { [ "$(sed -n 's/SwapFree: *\([0-9]*\) kB/\1/p' /proc/meminfo)" -le $1 ] && sleep 5; }
# All that is cold is on this node, and some of it is.
cold_is_on() { sees "\"cold\":{\"present\":[0-9]*,\"swapped\":[0-9]*,\"nodes\":{\"$1\":[0-9]*}"; }
some_cold_is_on() { sees "\"cold\":{[^}]*\"nodes\":{[^}]*\"$1\":"; }

dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
