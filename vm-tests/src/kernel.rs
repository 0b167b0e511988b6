//! Debian's kernel packages: found with apt, fetched once, unpacked into `vm-tests/cache/`.
//!
//! The "cloud" flavour is used since it is the smallest one; it has the same memory management and BPF configuration as
//! the others and everything a serial console needs built in. The unsigned packages hold the very image that Debian
//! signs. A package in the cache is used as it is, so a test run needs no network. [`Kernel::fetch_newest`] looks for a
//! newer one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::{cache_dir, fetched, lock, unpack_packages};
use crate::error::{self, VmError};

isotherm_engine::named! {
    /// A Debian kernel to boot.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Kernel {
        /// 6.1: Debian 12's own. No DAMON.
        Debian61 = "6.1",
        /// 6.12: Debian 13's own, and Debian 12's backport. Has DAMON.
        Debian612 = "6.12",
        /// 6.1 for arm64: addresses of 48 bits, 4 levels of page tables.
        Debian61Arm64 = "6.1-arm64",
        /// 6.12 for arm64: addresses of 52 bits and 5 levels where the processor has them (FEAT_LPA2).
        Debian612Arm64 = "6.12-arm64",
        /// 6.12 for arm64 with pages of 16 KiB: addresses of 52 bits where the processor has them, else of 47.
        Debian612Arm64Pages16K = "6.12-arm64-16k",
        /// The newest kernel of Debian's unstable or experimental suite. It changes each month, so no everyday test may
        /// depend on it.
        DebianNewest = "newest",
    }

    /// Returns the name of the series, such as `6.12`, `6.12-arm64` or `newest`.
    fn series;
    all EVERY;
}

/// An unpacked kernel package.
#[derive(Clone, Debug)]
pub struct KernelImage {
    /// The release, as `uname -r` prints it.
    pub release: String,
    /// The bootable image.
    pub vmlinuz: PathBuf,
    /// The directory `lib/modules/RELEASE`.
    pub modules: PathBuf,
}

impl Kernel {
    /// Whether its machine is an arm64 one.
    pub(crate) const fn is_arm64(self) -> bool {
        matches!(
            self,
            Self::Debian61Arm64 | Self::Debian612Arm64 | Self::Debian612Arm64Pages16K
        )
    }

    /// Returns Debian's name of its architecture.
    pub(crate) const fn architecture(self) -> &'static str {
        if self.is_arm64() { "arm64" } else { "amd64" }
    }

    /// Returns the flavour of its package. There is none for the cloud with larger pages.
    fn flavour(self) -> String {
        match self {
            Self::Debian612Arm64Pages16K => "arm64-16k".to_owned(),
            _ => format!("cloud-{}", self.architecture()),
        }
    }

    /// Returns the kernel after which a test is named, such as `on_6_12` or `on_6_12_arm64`.
    pub(crate) fn of_test(name: &str) -> Self {
        let is_it =
            |kernel: &Self| format!("on_{}", kernel.series()).replace(['.', '-'], "_") == name;
        let found = Self::EVERY.into_iter().find(is_it);
        found.unwrap_or_else(|| panic!("no kernel is called `{name}`"))
    }

    /// Whether a package of this name is of the series.
    fn is_of_series(self, name: &str) -> bool {
        let Some(version) = name.strip_prefix("linux-image-") else {
            return false;
        };
        let numbers = numbers(version);
        let series = (numbers.first().copied(), numbers.get(1).copied());
        let is_newer =
            version.starts_with(|c: char| c.is_ascii_digit()) && series > (Some(6), Some(12));
        // Since 6.16 the package without `-unsigned` in its name is not signed. Before, that package holds no kernel,
        // but depends on the package that does.
        let package = name.split('_').next().unwrap_or(name);
        let flavour = format!("-{}", self.flavour());
        let has_kernel = package.ends_with(&format!("{flavour}-unsigned"))
            || (is_newer && package.ends_with(&flavour));
        has_kernel
            && match self {
                Self::Debian61 | Self::Debian61Arm64 => series == (Some(6), Some(1)),
                Self::Debian612 | Self::Debian612Arm64 | Self::Debian612Arm64Pages16K => {
                    series == (Some(6), Some(12))
                }
                Self::DebianNewest => is_newer,
            }
    }

    /// Returns the newest unpacked package in the cache, or fetches the newest that apt knows.
    pub fn image(self) -> Result<KernelImage, VmError> {
        let cache = cache_dir()?;
        // One process fetches, the others wait and then find it.
        let _guard = lock(&cache.join("fetch.lock"))?;
        match self.newest_cached(&cache)? {
            Some(dir) => unpacked(&dir),
            None => self.fetch(&cache),
        }
    }

    /// Returns the newest package that apt knows, and fetches it if the cache lacks it.
    pub fn fetch_newest(self) -> Result<KernelImage, VmError> {
        let cache = cache_dir()?;
        let _guard = lock(&cache.join("fetch.lock"))?;
        self.fetch(&cache)
    }

    fn newest_cached(self, cache: &Path) -> Result<Option<PathBuf>, VmError> {
        let entries = fs::read_dir(cache).map_err(VmError::io("list", cache))?;
        let names = entries
            .filter_map(Result::ok)
            .filter_map(|e| e.file_name().into_string().ok());
        Ok(self.newest(names).map(|name| cache.join(name)))
    }

    /// Returns the newest package of this series among `names` (a `_VERSION` may follow a name).
    fn newest(self, names: impl Iterator<Item = String>) -> Option<String> {
        names
            .filter(|name| self.is_of_series(name))
            .max_by_key(|name| numbers(name))
    }

    fn fetch(self, cache: &Path) -> Result<KernelImage, VmError> {
        let apt = self.apt(cache)?;
        let pattern = format!(r"^linux-image-[0-9.]+.*-{}(-unsigned)?$", self.flavour());
        let found = self.run("apt-cache", &apt, &["search", "--names-only", &pattern])?;
        let names = found
            .lines()
            .filter_map(|l| Some(l.split(' ').next()?.to_owned()));
        let package = self
            .newest(names)
            .ok_or_else(|| self.unavailable(format!("apt-cache knows no package {pattern}")))?;
        let policy = self.run("apt-cache", &apt, &["policy", &package])?;
        let version = policy
            .lines()
            .find_map(|l| l.trim().strip_prefix("Candidate: "))
            .ok_or_else(|| self.unavailable(format!("{package} has no candidate version")))?;

        let name = format!("{package}_{}", version.replace(':', "%3a"));
        let dir = fetched(&name, |work, tree| {
            let packages = self.parts(&package, &apt);
            unpack_packages(&apt, &packages, work, tree, |command| self.output(command))
        })?;
        unpacked(&dir)
    }

    /// Returns the packages that hold the kernel: `package`, or since 7.2 one with the image and one with the modules.
    fn parts(self, package: &str, apt: &[String]) -> Vec<String> {
        let others = ["linux-binary-", "linux-modules-"]
            .map(|prefix| package.replacen("linux-image-", prefix, 1));
        let is_known = |name: &String| self.run("apt-cache", apt, &["show", name]).is_ok();
        if self == Self::DebianNewest && others.iter().all(is_known) {
            return others.to_vec();
        }
        vec![package.to_owned()]
    }

    /// Returns options for apt. For the newest kernel they name separate package lists of Debian's newest suites, for
    /// another architecture the lists of that, which are fetched. The system's lists do not change.
    fn apt(self, cache: &Path) -> Result<Vec<String>, VmError> {
        if self != Self::DebianNewest && !self.is_arm64() {
            return Ok(Vec::new());
        }
        let place = cache.join(format!("apt-{}", self.architecture()));
        for below in ["lists/partial", "archives/partial"] {
            let path = place.join(below);
            fs::create_dir_all(&path).map_err(VmError::io("make", &path))?;
        }
        // The other suites are on the mirror that this machine uses for Debian.
        let format = "$(LABEL) $(REPO_URI)";
        let of_packages = ["indextargets", "--format", format, "Created-By: Packages"];
        let targets = self.run("apt-get", &[], &of_packages)?;
        let uri = targets
            .lines()
            .find_map(|line| line.strip_prefix("Debian "));
        let uri = uri.ok_or_else(|| {
            self.unavailable("apt has no list of Debian's own packages".to_owned())
        })?;
        let mut options = vec![
            format!("Dir::State::Lists={}", place.join("lists").display()),
            format!("Dir::Cache={}", place.display()),
            format!("APT::Architecture={}", self.architecture()),
            format!("APT::Architectures::={}", self.architecture()),
            "Acquire::Languages=none".to_owned(),
        ];
        if self == Self::DebianNewest {
            let suites = ["sid", "experimental"].map(|suite| format!("deb {uri} {suite} main\n"));
            let sources = place.join("sources.list");
            fs::write(&sources, suites.concat()).map_err(VmError::io("write", &sources))?;
            options.push(format!("Dir::Etc::SourceList={}", sources.display()));
            options.push("Dir::Etc::SourceParts=-".to_owned());
        }
        let options = options.into_iter();
        let options: Vec<String> = options.flat_map(|of| ["-o".to_owned(), of]).collect();
        self.run("apt-get", &options, &["update", "-q"])?;
        Ok(options)
    }

    /// Returns the path of a busybox for its machine that needs no library.
    pub(crate) fn busybox(self) -> Result<PathBuf, VmError> {
        if !self.is_arm64() {
            return Ok("/bin/busybox".into());
        }
        let cache = cache_dir()?;
        let _guard = lock(&cache.join("fetch.lock"))?;
        let tree = fetched("busybox-arm64", |work, tree| {
            let packages = ["busybox-static".to_owned()];
            let apt = self.apt(&cache)?;
            unpack_packages(&apt, &packages, work, tree, |command| self.output(command))
        })?;
        let places = ["bin/busybox", "usr/bin/busybox"].map(|place| tree.join(place));
        let found = places.into_iter().find(|place| place.exists());
        found.ok_or_else(|| self.unavailable("busybox-static holds no busybox".to_owned()))
    }

    fn run(self, program: &str, options: &[String], args: &[&str]) -> Result<String, VmError> {
        self.output(Command::new(program).args(options).args(args))
    }

    fn output(self, command: &mut Command) -> Result<String, VmError> {
        match error::output(command) {
            Ok(output) => Ok(String::from_utf8_lossy(&output).into_owned()),
            Err(error) => Err(self.unavailable(error.to_string())),
        }
    }

    fn unavailable(self, why: String) -> VmError {
        VmError::Unavailable {
            what: format!("Debian's {} kernel", self.series()),
            why,
            fix: "on Debian 12 run `apt-get update`; elsewhere unpack the package's tree into \
                  vm-tests/cache/PACKAGE_VERSION/"
                .to_owned(),
        }
    }
}

fn unpacked(dir: &Path) -> Result<KernelImage, VmError> {
    // A usr-merged package has usr/lib/modules.
    let modules = ["lib/modules", "usr/lib/modules"]
        .map(|m| dir.join(m))
        .into_iter()
        .find(|m| m.is_dir())
        .ok_or_else(|| {
            VmError::Wrong(format!(
                "{} is no kernel package's tree (no lib/modules); remove it",
                dir.display()
            ))
        })?;
    let modules = only_entry(&modules)?;
    let release = modules
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    // Since 7.2 the image lies among the modules.
    let in_boot = dir.join("boot").join(format!("vmlinuz-{release}"));
    Ok(KernelImage {
        vmlinuz: if in_boot.exists() {
            in_boot
        } else {
            modules.join("vmlinuz")
        },
        release,
        modules,
    })
}

fn only_entry(dir: &Path) -> Result<PathBuf, VmError> {
    let mut entries = fs::read_dir(dir).map_err(VmError::io("list", dir))?;
    match (entries.next(), entries.next()) {
        (Some(Ok(only)), None) => Ok(only.path()),
        _ => Err(VmError::Wrong(format!(
            "{} was to hold exactly one entry",
            dir.display()
        ))),
    }
}

/// Returns the numbers in a name, in order, which suffice to rank versions of one series.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::Kernel;

    fn check(kernel: Kernel, names: &[&str], want: Option<&str>) {
        let found = kernel.newest(names.iter().map(ToString::to_string));
        assert_eq!(found.as_deref(), want);
    }

    #[test]
    fn newest_is_by_number_within_the_series() {
        let names = [
            "linux-image-6.1.0-9-cloud-amd64-unsigned",
            "linux-image-6.1.0-56-cloud-amd64-unsigned",
            "linux-image-6.12.99+deb12-cloud-amd64-unsigned",
            "linux-image-6.12.117+deb12-cloud-amd64-unsigned",
            "linux-image-6.12.200+deb12-rt-amd64-unsigned",
        ];
        check(Kernel::Debian61, &names, Some(names[1]));
        check(Kernel::Debian612, &names, Some(names[3]));
        check(Kernel::Debian612, &names[..2], None);
        check(Kernel::DebianNewest, &names, None);
        let newer = [
            "linux-image-6.13.9+deb14-cloud-amd64-unsigned",
            "linux-image-7.2-cloud-amd64_7.2-1",
            "linux-image-6.19.14+deb14-cloud-amd64",
            "linux-image-7.3-cloud-amd64-dbg",
            "linux-image-cloud-amd64",
        ];
        check(Kernel::DebianNewest, &newer, Some(newer[1]));
    }
}
