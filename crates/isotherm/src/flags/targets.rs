//! Targets: the memory to watch.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};
use isotherm_config::{ProcessSpec, TargetSpec, ThpPolicy, World};
use isotherm_engine::units::parse_bytes;
use isotherm_engine::{AddressRange, PAGE_SIZE};

use super::names::one_of;

pub(crate) const WORLDS: &[(&str, &str, World)] = &[
    ("linux", "Isotherm, on any kernel", World::Linux),
    ("kernel", "The kernel's DAMON, through sysfs", World::Kernel),
];
const THP: &[(&str, &str, ThpPolicy)] = &[
    ("inherit", "As the system does it", ThpPolicy::Inherit),
    (
        "advised",
        "Only where the command or a scheme asks for them",
        ThpPolicy::Advised,
    ),
    ("never", "Not at all", ThpPolicy::Never),
];

/// Options of targets.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Targets")]
#[expect(clippy::struct_excessive_bools, reason = "flags")]
pub(crate) struct TargetArgs {
    /// Watch these running processes, by id or name. Separate several by commas, or repeat the option; write a comma
    /// in a name as `\,`
    #[arg(short, long, value_name = "PID|NAME")]
    pub(crate) pid: Vec<ProcessList>,

    /// Watch every process of this control group (v1 or v2), or of pod:NAMESPACE/NAME or pod:NAMESPACE/NAME/CONTAINER on
    /// this node, and of the groups below it, as they come and go
    #[arg(long, value_name = "PATH", conflicts_with_all = ["pid", "physical", "command"])]
    pub(crate) cgroup: Option<PathBuf>,

    /// Watch every process of the machine, as they come and go, under one budget: all but kernel threads and
    /// isotherm itself
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "physical", "command"])]
    pub(crate) all: bool,

    /// Leave out these processes of --all, --physical or --node, by id or name as --pid takes them
    #[arg(long, value_name = "PID|NAME", conflicts_with_all = ["pid", "cgroup", "command"])]
    pub(crate) exclude: Vec<ProcessList>,

    /// Watch the machine's physical memory, and report it by physical address
    #[arg(long, conflicts_with_all = ["pid", "command"])]
    pub(crate) physical: bool,

    /// Let Isotherm itself watch and act, or the kernel's DAMON where there is one
    #[arg(long, value_parser = one_of(WORLDS), default_value = "linux")]
    pub(crate) world: World,

    /// Watch a simulated process of 1 GiB, where real ones cannot be watched
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "all", "physical", "node", "command"])]
    pub(crate) simulated: bool,

    /// Watch the memory of this NUMA node, as --physical does
    #[arg(long, value_name = "N", conflicts_with_all = ["pid", "cgroup", "all", "command"])]
    pub(crate) node: Option<u32>,

    /// Watch only these addresses (DAMON's initial regions), e.g. 0x7f0000000000-0x7f4000000000; physical ones
    /// with --physical and --node [default: all]
    #[arg(long, value_name = "A-B", value_parser = parse_range, value_delimiter = ',')]
    pub(crate) range: Vec<AddressRange>,

    /// Watch the processes that descend from the targets, too; of a running process, not those whose
    /// parent has ended before
    #[arg(long)]
    pub(crate) children: bool,

    /// Give the command's first faults huge pages as the system does it, only where the command or a scheme asks
    /// for them (Linux 6.18), or never, which also keeps schemes from making any
    #[arg(
        long,
        value_parser = one_of(THP),
        value_name = "WHEN",
        default_value = "inherit",
        requires = "command"
    )]
    pub(crate) thp: ThpPolicy,

    /// Run this command and watch it
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "pid")]
    pub(crate) command: Vec<OsString>,
}

impl TargetArgs {
    /// Returns the named targets, if there are any.
    pub(crate) fn spec(&self) -> Option<TargetSpec> {
        let children = self.children;
        if self.simulated {
            return Some(TargetSpec::Simulated);
        }
        if self.physical || self.node.is_some() {
            return Some(TargetSpec::Physical {
                node: self.node,
                exclude: processes(&self.exclude),
            });
        }
        if self.all {
            let exclude = processes(&self.exclude);
            return Some(TargetSpec::All { exclude });
        }
        if let Some(path) = &self.cgroup {
            return Some(TargetSpec::Cgroup(path.clone()));
        }
        if !self.command.is_empty() {
            return Some(TargetSpec::Command {
                command: self.command.clone(),
                children,
                is_silent: false,
                thp: self.thp,
            });
        }
        let processes = processes(&self.pid);
        (!processes.is_empty()).then_some(TargetSpec::Processes {
            processes,
            children,
        })
    }
}

/// Processes of one argument, such as `1234,redis-server`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessList(Vec<ProcessSpec>);

impl FromStr for ProcessList {
    type Err = String;

    /// Splits at commas; `\,` is a comma of a name.
    fn from_str(text: &str) -> Result<Self, String> {
        // Neither an argument nor a command name holds NUL.
        let text = text.replace("\\,", "\0");
        let process = |part: &str| part.replace('\0', ",").parse::<ProcessSpec>();
        let processes: Result<Vec<_>, _> = text.split(',').map(process).collect();
        processes.map(Self)
    }
}

/// Returns all processes of an option that may be repeated.
pub(crate) fn processes(lists: &[ProcessList]) -> Vec<ProcessSpec> {
    lists.iter().flat_map(|list| list.0.clone()).collect()
}

/// Parses `A-B`, each a number (0x for hexadecimal, underscores and commas allowed) or a size like 4G.
fn parse_range(text: &str) -> anyhow::Result<AddressRange> {
    let Some((start, end)) = text.split_once('-') else {
        bail!("'{text}' is not of the form START-END, e.g. 0x100000000-0x200000000 or 4G-8G");
    };
    let range = AddressRange::checked(parse_address(start)?, parse_address(end)?);
    let range = range.with_context(|| format!("'{text}' ends before it starts"))?;
    let aligned = range.start.is_multiple_of(PAGE_SIZE) && range.end.is_multiple_of(PAGE_SIZE);
    ensure!(
        aligned,
        "'{text}' does not begin and end at page boundaries (multiples of {PAGE_SIZE})"
    );
    Ok(range)
}

fn parse_address(text: &str) -> anyhow::Result<u64> {
    let text = text.trim();
    if let Some(digits) = text.strip_prefix("0x") {
        let digits = digits.replace(['_', ','], "");
        return u64::from_str_radix(&digits, 16)
            .with_context(|| format!("'{text}' is not an address"));
    }
    parse_bytes(text).with_context(|| format!("'{text}' is not an address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_separates_processes_and_an_escaped_one_is_of_a_name() {
        let check = |text: &str, wanted: &[ProcessSpec]| {
            let list: ProcessList = text.parse().expect(text);
            assert_eq!(processes(&[list]), wanted, "{text}");
        };
        let name = |name: &str| ProcessSpec::Name(name.to_owned());
        let both = [ProcessSpec::Pid(7), name("redis-server")];
        check("7,redis-server", &both);
        check(r"a\,b,c\d", &[name("a,b"), name(r"c\d")]);
        for bad in ["", "a,", "7,,8", "0"] {
            assert!(bad.parse::<ProcessList>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_are_checked() {
        let pages = AddressRange::new(0x1000, 0x3000);
        assert_eq!(parse_range("0x1000-0x3000").ok(), Some(pages));
        let sizes = AddressRange::new(4 << 30, 8 << 30);
        assert_eq!(parse_range("4G-8G").ok(), Some(sizes));
        for bad in ["", "1", "0x2000-0x1000", "0x1001-0x2000", "a-b"] {
            assert!(parse_range(bad).is_err(), "{bad}");
        }
    }
}
