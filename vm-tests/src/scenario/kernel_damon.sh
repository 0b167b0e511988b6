# Functions for scenarios with the kernel's DAMON. $tree is the directory of kdamonds, $target the workload.

tree=/sys/kernel/mm/damon/admin/kdamonds
is_empty() { [ "$(cat $tree/nr_kdamonds)" = 0 ] || die "the tree is not as it was: $1"; }
is_on() { [ "$(cat $tree/0/state 2>/dev/null)" = on ]; }

# refused NAME COMMAND: fails unless isotherm refuses the command, and leaves its message in /out/NAME.txt.
refused() {
    name=$1
    shift
    isotherm "$@" 2>/out/$name.txt && die "$name was not refused"
    [ ! -e /tmp/no ] || die "$name has left a record"
    cat /out/$name.txt
}

stat=/sys/module/damon_stat/parameters/enabled
if [ "$(cat $stat 2>/dev/null)" = Y ]; then
    refused module record --world kernel --physical --duration 1s -o /tmp/no
    is_empty module
    echo N >$stat
fi

# Has the first kdamond do something; others may be at the tree.
kdamond() { wait_for 0.05 200 takes $1; }
takes() { { echo $1 >$tree/0/state; } 2>/dev/null; }

# counters NAME: a line for each scheme of the first kdamond in /out/NAME.txt: the time, the scheme, its counters, the
# quota in force. If the kdamond ends meanwhile, this ends too.
counters() {
    kdamond update_schemes_stats && kdamond update_schemes_effective_quotas || return
    now=$(cut -d' ' -f1 /proc/uptime)
    for scheme in $tree/0/contexts/0/schemes/[0-9]*; do
        # While a commit makes them anew there is none, and the pattern stands for itself.
        case $scheme in *'*') continue ;; esac
        # A commit makes these directories anew.
        numbers=$(exec 2>/dev/null && cd $scheme && cat stats/nr_tried stats/sz_tried stats/nr_applied \
            stats/sz_applied stats/qt_exceeds quotas/effective_bytes) &&
            echo $now ${scheme##*/} $numbers >>/out/$1.txt
    done
}

# kernel_until NAME CONDITION OPTIONS: has the kernel run schemes until the condition holds, or for a minute, and notes
# their counters all the while.
kernel_until() {
    name=$1
    until="$2"
    shift 2
    taskset $other_cpu isotherm run --json --world kernel --no-guard "$@" >/out/$name.json &
    running=$!
    wait_for 0.1 200 is_on
    since=$(cut -d. -f1 /proc/uptime)
    until $until || up_for 60; do
        counters $name
        sleep 0.3
    done
    counters $name
    kill -TERM $running
    wait $running || die acting $name failed
    is_empty $name
    is_well $name
}

# Conditions.
up_for() { [ $(cut -d. -f1 /proc/uptime) -ge $((since + $1)) ]; }
# A number of the hot or the cold part, by its name in what `vm-guest pages` says.
part() {
    vm-guest pages --pid $target --truth /out/truth.jsonl --active | tr -d ' \n' |
        sed -n "s/.*\"$1\":{[^}]*}[^}]*\"$2\":\([0-9]*\).*/\1/p"
}
at_least() { [ "0$(part $1 $2)" -ge $3 ]; }
at_most() { [ "$(part $1 $2)" -le $3 ]; }
# At least so many bytes of the part $1 are on node $2.
some_on() { [ "0$(said "\"$1\":{[^}]*\"nodes\":{[^}]*\"$2\":")" -ge $3 ]; }
