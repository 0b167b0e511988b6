//! Debian's kernel packages: found with apt, fetched once, unpacked into `vm-tests/cache/`.
//!
//! The "cloud" flavour is used since it is the smallest one; it has the same memory management and
//! BPF configuration as the others and everything a serial console needs built in. The unsigned
//! packages hold the very image that Debian signs. What lies in the cache is used as it is, so that
//! a test run needs no network; [`Kernel::fetch_newest`] looks for a newer one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::VmError;

/// Which Debian kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// 6.1: Debian 12's own. No DAMON.
    Debian61,
    /// 6.12: Debian 13's own, and Debian 12's backport. Has DAMON.
    Debian612,
}

/// An unpacked kernel package.
#[derive(Clone, Debug)]
pub struct KernelImage {
    /// As `uname -r` prints it.
    pub release: String,
    /// The bootable image.
    pub vmlinuz: PathBuf,
    /// `lib/modules/RELEASE`.
    pub modules: PathBuf,
}

impl Kernel {
    /// All of them, oldest first.
    pub const ALL: [Self; 2] = [Self::Debian61, Self::Debian612];

    /// `6.1` or `6.12`.
    pub const fn series(self) -> &'static str {
        match self {
            Self::Debian61 => "6.1",
            Self::Debian612 => "6.12",
        }
    }

    /// The newest unpacked package in the cache; where there is none, the newest that apt knows.
    pub fn image(self) -> Result<KernelImage, VmError> {
        let cache = cache_dir()?;
        // One process fetches, the others wait and then find it.
        let _guard = lock(&cache.join("fetch.lock"))?;
        match self.newest_cached(&cache)? {
            Some(dir) => unpacked(&dir),
            None => self.fetch(&cache),
        }
    }

    /// The newest package that apt knows, fetched if the cache lacks it.
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

    /// The newest of this series among package names (a `_VERSION` may follow).
    fn newest(self, names: impl Iterator<Item = String>) -> Option<String> {
        let prefix = format!("linux-image-{}.", self.series());
        names
            .filter(|n| n.starts_with(&prefix) && n.contains("-cloud-amd64-unsigned"))
            .max_by_key(|n| numbers(n))
    }

    fn fetch(self, cache: &Path) -> Result<KernelImage, VmError> {
        let pattern = format!(
            r"^linux-image-{}\..*-cloud-amd64-unsigned$",
            self.series().replace('.', r"\.")
        );
        let found =
            self.output(Command::new("apt-cache").args(["search", "--names-only", &pattern]))?;
        let names = found
            .lines()
            .filter_map(|l| Some(l.split(' ').next()?.to_owned()));
        let package = self
            .newest(names)
            .ok_or_else(|| self.unavailable(format!("apt-cache knows no package {pattern}")))?;
        let policy = self.output(Command::new("apt-cache").args(["policy", &package]))?;
        let version = policy
            .lines()
            .find_map(|l| l.trim().strip_prefix("Candidate: "))
            .ok_or_else(|| self.unavailable(format!("{package} has no candidate version")))?;

        let dir = cache.join(format!("{package}_{}", version.replace(':', "%3a")));
        if dir.is_dir() {
            return unpacked(&dir);
        }
        let work =
            tempfile::tempdir_in(cache).map_err(VmError::io("make a directory in", cache))?;
        self.output(
            Command::new("apt-get")
                .args(["download", "-q", &package])
                .current_dir(work.path()),
        )?;
        let deb = only_entry(work.path())?;
        let tree = work.path().join("tree");
        self.output(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&tree))?;
        // Only a whole tree ever bears the final name.
        fs::rename(&tree, &dir).map_err(VmError::io("rename into place", &dir))?;
        unpacked(&dir)
    }

    fn output(self, command: &mut Command) -> Result<String, VmError> {
        let output = command
            .output()
            .map_err(|e| self.unavailable(format!("cannot run {command:?}: {e}")))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            let words = String::from_utf8_lossy(&output.stderr);
            Err(self.unavailable(format!("{command:?}: {}", words.trim())))
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

/// `vm-tests/cache`, or `$ISOTHERM_VM_CACHE`.
pub(crate) fn cache_dir() -> Result<PathBuf, VmError> {
    let dir = std::env::var_os("ISOTHERM_VM_CACHE").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("cache"),
        PathBuf::from,
    );
    fs::create_dir_all(&dir).map_err(VmError::io("make", &dir))?;
    Ok(dir)
}

/// Holds `path` locked until dropped.
pub(crate) fn lock(path: &Path) -> Result<fs::File, VmError> {
    let file = open_lock(path)?;
    file.lock().map_err(VmError::io("lock", path))?;
    Ok(file)
}

pub(crate) fn open_lock(path: &Path) -> Result<fs::File, VmError> {
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(VmError::io("open", path))
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
    Ok(KernelImage {
        vmlinuz: dir.join("boot").join(format!("vmlinuz-{release}")),
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

/// The numbers in a name, in order: enough to rank versions of one series.
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
    }
}
