# Functions and the whole of the scenario `kernel-damon-damo`. $target is the workload, $slow are intervals.

mount -t tracefs trace /sys/kernel/tracing
dump() { grep -r . $tree | sed "s#^$tree/##" | sort; }
same() { cmp -s $1 $2 || die "$3: $(diff $1 $2)"; }
damo_does() { damo "$@" >/tmp/damo.out 2>&1 || die "damo $*: $(cat /tmp/damo.out)"; }

# damo writes a configuration's tree, and Isotherm reads it.
# A kernel that has attribute probes gets one.
probes=
echo 1 >$tree/nr_kdamonds && echo 1 >$tree/0/contexts/nr_contexts
if [ -d $tree/0/contexts/0/monitoring_attrs/probes ]; then
    probes='"probes": [{"filters": [{"filter_type": "anon", "matching": true, "allow": true, "path": null}], "weight": 3}],'
fi
echo 0 >$tree/nr_kdamonds
sed "s/TARGET/$target/; s/PROBES/$probes/" /damo.json >/tmp/damo.json
damo_does start /tmp/damo.json
dump >/out/damo.tree
isotherm damon --export /out/export.json >/out/damon.txt || exit 1
refused in_use run --world kernel -c /tmp/damo.json --duration 1s
refused in_use_record record --world kernel --pid $target --duration 1s -o /tmp/no
dump >/tmp/now
same /out/damo.tree /tmp/now "damo's kdamonds were disturbed"
damo_does stop
dump >/tmp/stopped

# The same by ours; then damo's, which is off, is there again.
isotherm run --world kernel --no-guard -c /tmp/damo.json >/tmp/said 2>&1 &
session=$!
# Schemes are held until their quotas are in force.
acts() {
    [ "$(cat $tree/1/state 2>/dev/null)" = on ] &&
        ! cat $tree/*/contexts/0/schemes/*/action 2>/dev/null | grep -q stat
}
wait_for 0.1 200 acts
sleep 1
dump >/out/ours.tree
kill -TERM $session
wait $session || die "$(cat /tmp/said)"
dump >/tmp/now
same /tmp/stopped /tmp/now "what damo had set up is not there again"

# damo reads what was exported, and does the same again.
damo_does start /out/export.json
dump >/out/again.tree
damo_does stop
echo 0 >$tree/nr_kdamonds

# Both see the same workload, one after the other. damo asks for perf, though it does not use it for snapshots.
taskset 1 vm-guest wake &
printf '#!/bin/sh\necho perf version 0\n' >/bin/perf
chmod +x /bin/perf
damo_does start --target_pid $target --monitoring_intervals 100ms 1s 10s
# Without a file that came with 6.14 damo writes no JSON.
format=json_compressed
grep -q "version 6\.12\." /proc/version && format=perf_script
echo $format >/out/format.txt
damo_does record --snapshot 1s 8 --do_record access --output_type $format -o /out/damo.record
damo_does report access --raw_number
cp /tmp/damo.out /out/access.txt
# Its kdamond can be listened to; that changes nothing.
dump >/tmp/before
isotherm damon record --duration 16s -o /out/listened.isotherm 2>/tmp/said || die "$(cat /tmp/said)"
dump >/tmp/now
same /tmp/before /tmp/now "listening has changed the tree"
damo_does stop
echo 0 >$tree/nr_kdamonds
for report in access heatmap wss; do
    isotherm report $report /out/damo.record >/out/$report.report || exit 1
    [ -s /out/$report.report ] || die "report $report says nothing"
done
isotherm convert /out/damo.record /out/theirs.isotherm >/dev/null || exit 1
