//! Processes of a control group, version 1 or 2.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use isotherm_engine::{GroupCharge, Nanos};
use isotherm_policy::scheme::OpsFilter;
use thiserror::Error;

use crate::arch;
use crate::pods::{self, Pods};
use crate::text;

/// Maximum number of groups below the named one that are read.
const MAX_GROUPS: usize = 100_000;
/// Time for which a group's number is cached: another group may take its name.
const NUMBERS_LAST: Duration = Duration::from_secs(1);

/// Reason why a control group cannot be followed.
#[derive(Debug, Error)]
pub enum CgroupError {
    #[error(
        "no control group {wanted}: looked for {tried}; see /proc/PID/cgroup for the names of a process's groups"
    )]
    NotFound { wanted: String, tried: String },
    #[error(
        "no pod {wanted}: give pod:NAMESPACE/NAME or pod:NAMESPACE/NAME/CONTAINER; /var/log/pods on its node has the names"
    )]
    NoPod { wanted: String },
    #[error("cannot read /proc/self/mounts to find the control groups: {0}")]
    Mounts(#[source] io::Error),
}

/// Finds the directory of a group by its path, or by its name within a hierarchy (`/system.slice/redis.service`). A pod
/// is named `pod:NAMESPACE/NAME`, a container `pod:NAMESPACE/NAME/CONTAINER`. Of several groups, the first with a memory
/// controller counts. Only directories on a mount of control groups count: any user can choose the name and content of a
/// directory elsewhere.
pub fn find(name: &Path) -> Result<PathBuf, CgroupError> {
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(CgroupError::Mounts)?;
    let pod = name.to_str().and_then(|name| name.strip_prefix("pod:"));
    let of_pod = pod.map(|pod| {
        let groups = GroupNumbers::by_inode().into_values();
        let group = Pods::new(Path::new(pods::FOLDER)).group_of(pod, groups);
        group.ok_or_else(|| CgroupError::NoPod {
            wanted: pod.to_owned(),
        })
    });
    let of_pod = of_pod.transpose()?.map(PathBuf::from);
    let name = of_pod.as_deref().unwrap_or(name);
    let tried = candidates(name, &mounts);
    let is_group = |path: &&PathBuf| path.join("cgroup.procs").is_file();
    let mut found = tried.iter().filter(is_group);
    let first = found.clone().next();
    // Where both versions are mounted, only one of them knows memory.
    let known = found.find(|path| path.join("memory.stat").is_file());
    if let Some(group) = known.or(first) {
        // A slash at the end, or two in a row, make no other group.
        return Ok(group.components().collect());
    }
    let tried: Vec<String> = tried
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    Err(CgroupError::NotFound {
        wanted: name.display().to_string(),
        tried: tried.join(", "),
    })
}

fn candidates(name: &Path, mounts: &str) -> Vec<PathBuf> {
    if name.components().any(|part| part == Component::ParentDir) {
        return Vec::new();
    }
    let points: Vec<&Path> = cgroup_mounts(mounts).map(Path::new).collect();
    let by_path = (points.iter().any(|point| name.starts_with(point))).then(|| name.to_path_buf());
    let relative = name.strip_prefix("/").unwrap_or(name);
    let by_name = points.iter().map(|point| point.join(relative));
    by_path.into_iter().chain(by_name).collect()
}

/// Returns the mount points of all hierarchies: version 2 first, then the memory controller's.
fn cgroup_mounts(mounts: &str) -> impl Iterator<Item = &str> {
    let of = |wanted: &'static str| {
        mounts.lines().filter_map(move |line| {
            let mut words = line.split_whitespace().skip(1);
            let (point, kind, options) = (words.next()?, words.next()?, words.next()?);
            let rank = match kind {
                "cgroup2" => "v2",
                "cgroup" if options.split(',').any(|o| o == "memory") => "memory",
                "cgroup" => "v1",
                _ => return None,
            };
            (rank == wanted).then_some(point)
        })
    };
    of("v2").chain(of("memory")).chain(of("v1"))
}

/// A group's limits, and the memory charged against them, in bytes. `None`: no limit, or not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemory {
    /// `memory.max`, or version 1's `memory.limit_in_bytes`.
    pub limit: Option<u64>,
    /// `memory.high`.
    pub high: Option<u64>,
    /// `memory.swap.max`, or by how much version 1's `memory.memsw.limit_in_bytes` exceeds the limit.
    pub swap_limit: Option<u64>,
    /// Charged bytes.
    pub used: Option<u64>,
}

impl GroupMemory {
    /// Reads version 2's files of the group at `directory`, or version 1's, whose value for no limit is that of all
    /// possible pages.
    pub fn of(directory: &Path) -> Self {
        const UNLIMITED: u64 = 1 << 62;
        let read = |name: &str| text::number::<u64>(directory.join(name));
        let limit = read("memory.max").or_else(|| read("memory.limit_in_bytes"));
        let with_swap = read("memory.memsw.limit_in_bytes").filter(|limit| *limit < UNLIMITED);
        Self {
            limit: limit.filter(|limit| *limit < UNLIMITED),
            high: read("memory.high"),
            swap_limit: read("memory.swap.max").or_else(|| Some(with_swap?.saturating_sub(limit?))),
            used: read("memory.current").or_else(|| read("memory.usage_in_bytes")),
        }
    }
}

/// Returns the smallest limit of the group at `directory` and those above it, and the memory charged against it.
/// Returns `None` if none has a limit.
pub fn memory(directory: &Path) -> Option<(u64, u64)> {
    let groups = directory.ancestors();
    let groups = groups.take_while(|group| group.join("cgroup.procs").is_file());
    let limited = groups.map(GroupMemory::of);
    let limited = limited.filter_map(|memory| memory.limit.zip(memory.used));
    limited.min_by_key(|(limit, _)| *limit)
}

/// Returns the charge of the group at `directory`. In version 1 the sums over the groups below it are the fields that
/// begin with `total_` (Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst).
pub fn charge(directory: &Path) -> GroupCharge {
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    charge_of(&stat, |name| text::number(directory.join(name)))
}

fn charge_of(stat: &str, number: impl Fn(&str) -> Option<u64>) -> GroupCharge {
    let fields: BTreeMap<&str, u64> = text::counters(stat).collect();
    let get = |v2: &str, v1: &str| fields.get(v1).or_else(|| fields.get(v2)).copied();
    let refaults = |v2: &str, v1: &str| Some(get(v2, v1)? << arch::frame_shift());
    let shared = get("shmem", "total_shmem");
    GroupCharge {
        total: number("memory.current").or_else(|| number("memory.usage_in_bytes")),
        anonymous: get("anon", "total_rss"),
        shared,
        page_cache: get("file", "total_cache")
            .map(|files| files.saturating_sub(shared.unwrap_or_default())),
        kernel: get("kernel", "").or_else(|| number("memory.kmem.usage_in_bytes")),
        kernel_reclaimable: get("slab_reclaimable", ""),
        swap: number("memory.swap.current").or_else(|| get("", "total_swap")),
        mapped: get("file_mapped", "total_mapped_file"),
        peak: number("memory.peak").or_else(|| number("memory.max_usage_in_bytes")),
        swap_refaults: refaults("workingset_refault_anon", "total_workingset_refault_anon"),
        file_refaults: refaults("workingset_refault_file", "total_workingset_refault_file"),
    }
}

/// Returns the process ids in the group at `directory` and in those below it, ascending. A group that is removed
/// meanwhile has none.
pub fn processes(directory: &Path) -> Vec<u32> {
    let mut found = BTreeSet::new();
    for group in with_those_below(directory) {
        let procs = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let pids = procs.lines().filter_map(|line| line.parse::<u32>().ok());
        // 0 denotes processes of another pid namespace.
        found.extend(pids.filter(|&pid| pid != 0));
    }
    found.into_iter().collect()
}

/// Returns the group of version 2 with the processes of the one at `directory`. On machines with both versions it has the
/// same name, and knows pressure. Returns `None` if it is the topmost one, or most of its processes are others.
pub(crate) fn twin(directory: &Path) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let name = cgroup_mounts(&mounts).find_map(|top| directory.strip_prefix(top).ok())?;
    let twin = Path::new(cgroup_mounts(&mounts).next()?).join(name);
    let (there, own) = (processes(&twin), processes(directory));
    // Some begin or end meanwhile.
    let nr_both = there
        .iter()
        .filter(|pid| own.binary_search(pid).is_ok())
        .count();
    let is_twin = !name.as_os_str().is_empty() && 2 * nr_both > there.len();
    is_twin.then_some(twin)
}

/// Returns the CPU time of the group at `directory` and those below it, ended processes included (version 2).
pub fn cpu(directory: &Path) -> Option<Nanos> {
    let stat = fs::read_to_string(directory.join("cpu.stat")).ok()?;
    let value = |line: &str| line.strip_prefix("usage_usec ")?.parse().ok();
    let usage_us: u64 = stat.lines().find_map(value)?;
    Some(Nanos(usage_us.saturating_mul(1000)))
}

/// Returns the groups with processes of their own, of the one at `directory` and those below it; a group comes before
/// those below it.
pub fn occupied(directory: &Path) -> Vec<PathBuf> {
    let groups = with_those_below(directory);
    let is_occupied = |group: &PathBuf| {
        fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty())
    };
    groups.filter(is_occupied).collect()
}

/// Iterates over the group at `directory` and all below it. A group's children are listed after the group was used: a
/// process that moves down meanwhile is found there.
fn with_those_below(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let mut to_visit = vec![directory.to_path_buf()];
    let mut last: Option<PathBuf> = None;
    let next = move || {
        let entries = last.take().map(fs::read_dir);
        let entries = entries.into_iter().flatten().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        to_visit.extend(below.map(|entry| entry.path()).take(MAX_GROUPS));
        last = to_visit.pop();
        last.clone()
    };
    std::iter::from_fn(next).take(MAX_GROUPS)
}

/// Numbers by which the kernel's memory map knows groups: the inode numbers of their directories. Finding one reads the
/// table of mounts, so it is cached for a second.
#[derive(Debug, Default)]
pub struct GroupNumbers {
    known: BTreeMap<String, (Instant, Option<u64>)>,
}

impl GroupNumbers {
    /// Returns the groups of the hierarchy in which memory is charged, by the inode numbers of their directories. The
    /// names are those of `/proc/PID/cgroup`.
    pub fn by_inode() -> BTreeMap<u64, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let has_memory = |point: &&str| {
            let controllers = fs::read_to_string(Path::new(point).join("cgroup.controllers"));
            controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == "memory"))
                || Path::new(point).join("memory.stat").is_file()
        };
        let Some(root) = cgroup_mounts(&mounts).find(has_memory) else {
            return BTreeMap::new();
        };
        let groups = with_those_below(Path::new(root)).filter_map(|group| {
            let inode = fs::metadata(&group).ok()?.ino();
            let name = group.strip_prefix(root).unwrap_or(&group);
            Some((inode, format!("/{}", name.display())))
        });
        groups.collect()
    }

    /// Returns the number of each filter's group; `None` for filters of other kinds.
    pub fn of_filters(&mut self, filters: &[(OpsFilter, bool, bool)]) -> Vec<Option<u64>> {
        let of = |(filter, ..): &(OpsFilter, bool, bool)| match filter {
            OpsFilter::Memcg { path } => self.of(path),
            _ => None,
        };
        filters.iter().map(of).collect()
    }

    fn of(&mut self, name: &str) -> Option<u64> {
        if let Some((at, number)) = self.known.get(name)
            && at.elapsed() < NUMBERS_LAST
        {
            return *number;
        }
        let group = find(Path::new(name)).ok();
        let metadata = group.and_then(|directory| fs::metadata(directory).ok());
        let number = metadata.map(|metadata| metadata.ino());
        self.known.insert(name.to_owned(), (Instant::now(), number));
        number
    }
}

/// Returns the control group to which a process's memory is charged, as in `/proc/PID/cgroup`: that of version 2, else
/// the memory controller's. Returns `None` if it has neither, or has ended.
pub fn of_process(pid: u32) -> Option<String> {
    group_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

fn group_in(groups: &str) -> Option<String> {
    let charged = of_memory(groups).min_by_key(|(controllers, _)| controllers.is_empty());
    Some(charged?.1.to_owned())
}

/// Iterates over the lines of `/proc/PID/cgroup` of groups to which memory may be charged: controllers (none in version
/// 2) and path.
fn of_memory(groups: &str) -> impl Iterator<Item = (&str, &str)> {
    let fields = groups
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'));
    fields.filter(|(names, _)| names.is_empty() || names.split(',').any(|name| name == "memory"))
}

/// Returns the bytes that the control groups of a process may still charge: the smallest headroom of its own group and
/// all above it. Returns `None` if none of them is limited, or nothing can be read.
pub(crate) fn headroom(pid: u32) -> Option<u64> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let rooms = memory_groups(&groups, &mounts).into_iter();
    rooms
        .filter_map(|(group, top)| headroom_up_to(&group, &top))
        .min()
}

/// Returns the groups to which a process's memory may be charged, from the lines of `/proc/PID/cgroup`, and the top of
/// each one's hierarchy.
fn memory_groups(groups: &str, mounts: &str) -> Vec<(PathBuf, PathBuf)> {
    let paths: Vec<&str> = of_memory(groups).map(|(_, path)| path).collect();
    let below = |top: &str| {
        let top = PathBuf::from(top);
        let inside = paths.iter().map(|path| path.trim_start_matches('/'));
        let inside = inside.filter(|path| !path.contains(".."));
        let all: Vec<_> = inside.map(|path| (top.join(path), top.clone())).collect();
        all
    };
    cgroup_mounts(mounts).flat_map(below).collect()
}

/// Returns the smallest headroom of a group and those above it, up to `top`. A missing file means no limit.
fn headroom_up_to(group: &Path, top: &Path) -> Option<u64> {
    // Version 2, twice, and version 1: the file of the limit and the file of the charge.
    const FILES: [(&str, &str); 3] = [
        ("memory.max", "memory.current"),
        ("memory.high", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ];
    let ancestors = group.ancestors().take_while(|path| path.starts_with(top));
    let rooms = ancestors.flat_map(|path| FILES.map(|files| (path, files)));
    rooms
        .filter_map(|(path, (limit, used))| {
            let limit: u64 = text::number(path.join(limit))?;
            Some(limit.saturating_sub(text::number(path.join(used))?))
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_above_a_process_counts() {
        let top = tempfile::tempdir().expect("a directory");
        let (outer, inner) = (top.path().join("a"), top.path().join("a/b"));
        fs::create_dir_all(&inner).expect("directories");
        let write = |path: &Path, name: &str, text: &str| {
            fs::write(path.join(name), text).expect("a file");
        };
        assert_eq!(headroom_up_to(&inner, top.path()), None);
        write(&inner, "memory.max", "max\n");
        write(&inner, "memory.current", "40\n");
        assert_eq!(headroom_up_to(&inner, top.path()), None);
        write(&outer, "memory.max", "100\n");
        write(&outer, "memory.current", "70\n");
        assert_eq!(headroom_up_to(&inner, top.path()), Some(30));
        write(&inner, "memory.high", "50\n");
        assert_eq!(headroom_up_to(&inner, top.path()), Some(10));
        assert_eq!(headroom_up_to(&outer, top.path()), Some(30));
    }

    #[test]
    fn version_1_limits_memory_and_swap_together() {
        let group = tempfile::tempdir().expect("a directory");
        let swap_limit = |with_swap: &str| {
            let path = group.path().join("memory.memsw.limit_in_bytes");
            fs::write(path, with_swap).expect("a file");
            GroupMemory::of(group.path()).swap_limit
        };
        let path = group.path().join("memory.limit_in_bytes");
        fs::write(path, "100\n").expect("a file");
        assert_eq!(swap_limit("100\n"), Some(0));
        assert_eq!(swap_limit("150\n"), Some(50));
        assert_eq!(swap_limit("9223372036854771712\n"), None);
    }

    #[test]
    fn a_charge_is_of_the_groups_below_as_well() {
        let v1 = "cache 1\nshmem 2\ntotal_cache 700\ntotal_rss 50\ntotal_shmem 300\ntotal_swap 9\n\
                  total_mapped_file 310\ntotal_workingset_refault_file 4\n";
        let charge = charge_of(v1, |name| (name == "memory.usage_in_bytes").then_some(800));
        let mut wanted = GroupCharge {
            total: Some(800),
            anonymous: Some(50),
            shared: Some(300),
            page_cache: Some(400),
            kernel: None,
            swap: Some(9),
            mapped: Some(310),
            file_refaults: Some(4),
            ..GroupCharge::default()
        };
        assert_eq!(charge, wanted);
        let v2 = "anon 50\nfile 700\nkernel 20\nshmem 300\nslab_reclaimable 8\nfile_mapped 310\n\
                  workingset_refault_file 4\n";
        let charge = charge_of(v2, |name| (name == "memory.swap.current").then_some(9));
        wanted.total = None;
        wanted.kernel = Some(20);
        wanted.kernel_reclaimable = Some(8);
        assert_eq!(charge, wanted);
        assert_eq!(charge_of("", |_| None), GroupCharge::default());
    }

    #[test]
    fn a_process_is_in_the_group_that_its_memory_is_charged_to() {
        let check = |groups: &str, wanted: Option<&str>| {
            assert_eq!(group_in(groups).as_deref(), wanted, "{groups:?}");
        };
        let service = "/system.slice/a:b.service";
        check(&format!("0::{service}\n"), Some(service));
        check("4:memory:/x\n3:cpu,cpuacct:/y\n0::/z\n", Some("/x"));
        check("3:cpu:/y\n", None);
        check("nonsense", None);
    }

    #[test]
    fn groups_are_found_in_both_versions() {
        let mounts = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
        let groups = "4:memory:/x\n3:cpu,cpuacct:/y\n0::/../z\n";
        let found = memory_groups(groups, mounts);
        let groups: Vec<&Path> = found.iter().map(|(group, _)| group.as_path()).collect();
        let wanted = ["unified/x", "memory/x"].map(|name| Path::new("/sys/fs/cgroup").join(name));
        assert_eq!(groups, wanted);
        assert_eq!(memory_groups("", mounts), []);
        assert_eq!(headroom(0), None);
    }

    #[test]
    fn version_2_is_looked_into_first() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = cgroup_mounts(mounts);
        let wanted = ["unified", "memory", "cpu"].map(|name| format!("/sys/fs/cgroup/{name}"));
        assert!(found.eq(wanted));
    }

    #[test]
    fn a_group_is_on_a_mount_of_groups_and_nowhere_else() {
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let check = |name: &str, wanted: &[&str]| {
            let found = candidates(Path::new(name), mounts);
            assert_eq!(found, wanted.iter().map(PathBuf::from).collect::<Vec<_>>());
        };
        check("system.slice", &["/sys/fs/cgroup/system.slice"]);
        check("/a/b", &["/sys/fs/cgroup/a/b"]);
        let (group, below) = ("/sys/fs/cgroup/a", "/sys/fs/cgroup/sys/fs/cgroup/a");
        check(group, &[group, below]);
        check("../tmp/x", &[]);
        check("/sys/fs/cgroup/../../tmp", &[]);
        let fake = tempfile::tempdir().expect("a directory");
        fs::write(fake.path().join("cgroup.procs"), "1\n").expect("a file");
        find(fake.path()).expect_err("no group");
    }

    #[test]
    fn a_group_that_is_not_there_is_an_error_that_says_where_it_was_sought() {
        let error = find(Path::new("/no/such/group")).expect_err("there is none");
        assert!(error.to_string().contains("/no/such/group"), "{error}");
        assert_eq!(processes(Path::new("/no/such/group")), Vec::<u32>::new());
    }
}
