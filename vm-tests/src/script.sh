# Functions for every script. $target is the workload, if there is one.

die() {
    echo "$*"
    exit 1
}

# wait_for SECONDS TRIES COMMAND: until the command succeeds. Fails after so many tries, so many seconds apart.
wait_for() {
    local pause=$1 left=$2
    shift 2
    until "$@"; do
        [ $left -gt 0 ] || return 1
        left=$((left - 1))
        sleep $pause
    done
}

is_well() { kill -0 $target || die "the workload died under $1"; }

