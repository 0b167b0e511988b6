# shellcheck shell=bash
# The checks of run.sh. FIRST is what scripts/dist made, FOLDER is theirs, TARGET is a process of 64 MiB in use (busy.py).

is_static() {
    readelf --program-headers --wide "$FIRST/isotherm" >"$FOLDER/headers"
    grep LOAD "$FOLDER/headers" >/dev/null
    ! grep INTERP "$FOLDER/headers"
    readelf --dynamic "$FIRST/isotherm" >"$FOLDER/dynamic"
    ! grep NEEDED "$FOLDER/dynamic"
    # Nor does it tell where it was built.
    ! grep --text -o "$PWD[^[:space:]]\{0,60\}" "$FIRST/isotherm"
}

sums_agree() { (cd "$FIRST" && sha256sum --check --strict SHA256SUMS && [[ $(wc -l <SHA256SUMS) == 3 ]]); }

packs_the_same_bytes() {
    umask 077
    DIST=$SECOND scripts/dist tarball deb
    cmp "$FIRST/SHA256SUMS" "$SECOND/SHA256SUMS"
}

unpacks() {
    mkdir "$FOLDER/local"
    tar -xzf "$FIRST"/isotherm-*.tar.gz -C "$FOLDER/local" --strip-components 1
    lies_in "$FOLDER/local" share/zsh/site-functions/_isotherm share/man/man1/isotherm.1 share/doc/isotherm/LICENSE
    grep '^ExecStart=/usr/local/bin/isotherm ' "$FOLDER/local/lib/systemd/system/isotherm.service"
    "$FOLDER/local/bin/isotherm" --version
}

# lies_in FOLDER FILE...: those, and what lies at the same place in the tarball and the package.
lies_in() {
    local file
    for file in bin/isotherm lib/systemd/system/isotherm.service share/bash-completion/completions/isotherm \
        share/fish/vendor_completions.d/isotherm.fish share/isotherm/{grafana/isotherm.json,kubernetes/daemonset.yaml} \
        share/isotherm/{prometheus/isotherm.rules.yaml,service/isotherm.yaml} "${@:2}"; do
        [[ -s $1/$file ]] || {
            echo "no $file"
            return 1
        }
    done
}

installs_by_cargo() {
    # As the tests are built, which is soonest.
    cargo install --quiet --debug --locked --path crates/isotherm --root "$FOLDER/cargo"
    "$FOLDER/cargo/bin/isotherm" --version
}

installs_and_removes() {
    local root=$FOLDER/root dpkg
    mkdir -p "$root"/var/lib/dpkg/{info,updates}
    touch "$root"/var/lib/dpkg/{status,available}
    # Its scripts are run on this machine, where they see by DPKG_ROOT that it is not meant.
    dpkg=(dpkg "--root=$root" --force-script-chrootless --log=/dev/null)
    "${dpkg[@]}" --install "$FIRST"/*.deb
    "${dpkg[@]}" --status isotherm | grep '^Status: install ok installed$'
    "${dpkg[@]}" --verify isotherm
    lies_in "$root/usr" share/zsh/vendor-completions/_isotherm share/man/man1/isotherm.1.gz share/doc/isotherm/copyright
    grep '^ExecStart=/usr/bin/isotherm ' "$root/usr/lib/systemd/system/isotherm.service"
    # Neither enabled nor configured.
    [[ ! -e $root/etc ]]
    "${dpkg[@]}" --purge isotherm
    [[ ! -e $root/usr ]]
}

records_in_an_empty_root() {
    local root=$FOLDER/empty
    mkdir -p "$root"/{proc,sys,out}
    cp "$FIRST/isotherm" "$root/isotherm"
    # Mounts are of this namespace alone.
    unshare --mount --propagation private sh -euc '
        mount --rbind /proc "$1/proc"
        mount --rbind /sys "$1/sys"
        chroot "$1" /isotherm record --duration 3s --pid "$2" -o /out/r.isotherm
        chroot "$1" /isotherm report wss --json /out/r.isotherm >"$1/out/wss.json"' - "$root" "$TARGET"
    saw_it "$root/out/wss.json"
}

# A page as a file carries its what-if, which is optimised for releases alone.
its_page_is_light() {
    local page=$FOLDER/page.html
    "$FIRST/isotherm" record --pages --duration 3s --pid "$TARGET" -o "$FOLDER/pages.isotherm"
    "$FIRST/isotherm" report heatmap "$FOLDER/pages.isotherm" -o "$page"
    grep -c 'id="what-if-wasm"' "$page"
    (($(stat -c %s "$page") < 1500000))
}

records_in_a_container() {
    local image storage=(--root "$FOLDER/storage" --runroot "$FOLDER/run" --storage-driver vfs)
    mkdir -p "$FOLDER/context/dist" "$FOLDER/out"
    cp "$FIRST/isotherm" "$FOLDER/context/dist/"
    # Its last stage; there is no registry here for the image that it stands on.
    sed -n '/^FROM gcr.io/,$p' contrib/kubernetes/Containerfile |
        sed 's|^FROM .*|FROM scratch|; s|--from=build /src/||' >"$FOLDER/context/Containerfile"
    image=$(buildah "${storage[@]}" bud --quiet "$FOLDER/context")
    container=$(buildah "${storage[@]}" from "$image")
    bundle "$(buildah "${storage[@]}" mount "$container")"
    runc --root "$FOLDER/runc" run --bundle "$FOLDER/bundle" isotherm-test
    buildah "${storage[@]}" rm "$container"
    "$FIRST/isotherm" report wss --json "$FOLDER/out/r.isotherm" >"$FOLDER/out/wss.json"
    saw_it "$FOLDER/out/wss.json"
}

# As contrib/kubernetes/base/daemonset.yaml asks for it: privileged, the host's processes, a root that is read only.
bundle() {
    mkdir "$FOLDER/bundle"
    python3 - "$1" "$TARGET" "$FOLDER/out" >"$FOLDER/bundle/config.json" <<'END'
import json, pathlib, sys

rootfs, pid, out = sys.argv[1:]
bits = int(next(l for l in open("/proc/self/status") if l.startswith("CapBnd")).split()[1], 16)
names = """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT
SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE""".split()
held = [f"CAP_{name}" for bit, name in enumerate(names) if bits >> bit & 1]
bind = lambda at, source, *more: {"destination": at, "type": "bind", "source": source, "options": ["rbind", *more]}
json.dump({
    "ociVersion": "1.0.2",
    "root": {"path": rootfs, "readonly": True},
    "process": {
        "args": ["/isotherm", "record", "--duration", "3s", "--pid", pid, "-o", "/out/r.isotherm"],
        "cwd": "/",
        "user": {"uid": 0, "gid": 0},
        "capabilities": {kind: held for kind in ("bounding", "effective", "permitted", "inheritable")},
    },
    "mounts": [bind("/proc", "/proc"), bind("/sys", "/sys"), bind("/out", out, "rw")],
    "linux": {"namespaces": [{"type": "mount"}, {"type": "network"}]},
}, sys.stdout)
END
}

# saw_it FILE: all of busy.py's memory was in use in the median snapshot, and little else.
saw_it() {
    python3 - "$1" <<'END'
import json, sys

target = json.load(open(sys.argv[1]))["targets"][0]
mib = next(p["value"] for p in target["percentiles"] if p["percent"] == 50) / (1 << 20)
print(target["name"], target["snapshots"], "snapshots,", mib, "MiB")
assert target["snapshots"] > 1 and 60 < mib < 80
END
}
