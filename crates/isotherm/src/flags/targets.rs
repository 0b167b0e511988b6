//! What to watch.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use isotherm_config::{ProcessSpec, TargetSpec, ThpPolicy, World};
use isotherm_engine::units::parse_bytes;
use isotherm_engine::{AddressRange, PAGE_SIZE};

/// Who watches and acts.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WorldArg {
    /// Isotherm, on any kernel
    #[default]
    Linux,
    /// The kernel's DAMON, through sysfs
    Kernel,
}

impl From<WorldArg> for World {
    fn from(world: WorldArg) -> Self {
        match world {
            WorldArg::Linux => Self::Linux,
            WorldArg::Kernel => Self::Kernel,
        }
    }
}

/// What to watch.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "What to watch")]
#[expect(clippy::struct_excessive_bools, reason = "flags")]
pub(crate) struct TargetArgs {
    /// Running processes, by id or name; several with commas or by repeating the flag
    #[arg(short, long, value_name = "PID|NAME", value_delimiter = ',')]
    pub(crate) pid: Vec<ProcessSpec>,

    /// Every process of this control group (v1 or v2) and of those below it, as they come and go
    #[arg(long, value_name = "PATH", conflicts_with_all = ["pid", "physical", "command"])]
    pub(crate) cgroup: Option<PathBuf>,

    /// Every process of the machine, as they come and go, under one budget: all but kernel threads and
    /// isotherm itself
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "physical", "command"])]
    pub(crate) all: bool,

    /// With --all, --physical or --node: but not these processes, by id or name
    #[arg(long, value_name = "PID|NAME", value_delimiter = ',', conflicts_with_all = ["pid", "cgroup", "command"])]
    pub(crate) exclude: Vec<ProcessSpec>,

    /// The machine's physical memory, whoever maps it, told by physical address
    #[arg(long, conflicts_with_all = ["pid", "command"])]
    pub(crate) physical: bool,

    /// Who watches and acts: Isotherm itself, or the kernel's DAMON where there is one
    #[arg(long, value_enum, default_value_t)]
    pub(crate) world: WorldArg,

    /// A simulated process of 1 GiB, where real ones cannot be watched
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "all", "physical", "node", "command"])]
    pub(crate) simulated: bool,

    /// The memory of this NUMA node, whoever maps it (--physical need not be said)
    #[arg(long, value_name = "N", conflicts_with_all = ["pid", "cgroup", "all", "command"])]
    pub(crate) node: Option<u32>,

    /// Only these addresses (DAMON's initial regions), e.g. 0x7f0000000000-0x7f4000000000; physical ones
    /// with --physical and --node
    #[arg(long, value_name = "A-B", value_parser = parse_range, value_delimiter = ',')]
    pub(crate) range: Vec<AddressRange>,

    /// Watch the processes that descend from the targets, too (of a running process, not those whose
    /// parent has ended before)
    #[arg(long)]
    pub(crate) children: bool,

    /// Huge pages that the command's first faults get: as the system does it, only where the command or a scheme
    /// asks for them (Linux 6.18), or none, which also keeps schemes from making any
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        requires = "command"
    )]
    pub(crate) thp: WhenThp,

    /// A command to run and watch
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "pid")]
    pub(crate) command: Vec<OsString>,
}

/// Huge pages of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WhenThp {
    /// As the system does it
    #[default]
    Inherit,
    /// Only where the command or a scheme asks for them
    Advised,
    /// Not at all
    Never,
}

impl TargetArgs {
    /// What is named, if anything is.
    pub(crate) fn spec(&self) -> Option<TargetSpec> {
        let children = self.children;
        if self.simulated {
            return Some(TargetSpec::Simulated);
        }
        if self.physical || self.node.is_some() {
            return Some(TargetSpec::Physical {
                node: self.node,
                exclude: self.exclude.clone(),
            });
        }
        if self.all {
            let exclude = self.exclude.clone();
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
                thp: match self.thp {
                    WhenThp::Inherit => ThpPolicy::Inherit,
                    WhenThp::Advised => ThpPolicy::Advised,
                    WhenThp::Never => ThpPolicy::Never,
                },
            });
        }
        let processes = self.pid.clone();
        (!processes.is_empty()).then_some(TargetSpec::Processes {
            processes,
            children,
        })
    }
}

/// `A-B`, each a number (0x for hexadecimal, underscores and commas allowed) or a size like 4G.
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
    fn ranges_are_checked() {
        assert_eq!(
            parse_range("0x1000-0x3000").ok(),
            Some(AddressRange::new(0x1000, 0x3000))
        );
        assert_eq!(
            parse_range("4G-8G").ok(),
            Some(AddressRange::new(4 << 30, 8 << 30))
        );
        for bad in ["", "1", "0x2000-0x1000", "0x1001-0x2000", "a-b"] {
            assert!(parse_range(bad).is_err(), "{bad}");
        }
    }
}
