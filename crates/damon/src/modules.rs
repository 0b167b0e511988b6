//! The kernel's own users of DAMON: modules that run with their own parameters. They are read, never set.
//!
//! Source: `Documentation/admin-guide/mm/damon/{reclaim,lru_sort,stat}.rst`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Directory of the kernel's module parameters.
pub const MODULES_ROOT: &str = "/sys/module";
const NAMES: [(&str, &str); 3] = [
    ("damon_reclaim", "DAMON_RECLAIM"),
    ("damon_lru_sort", "DAMON_LRU_SORT"),
    ("damon_stat", "DAMON_STAT"),
];

/// State of one module when it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Name in the kernel's documentation: `DAMON_RECLAIM`, `DAMON_LRU_SORT` or `DAMON_STAT`.
    pub name: &'static str,
    /// Parameters by name, as text.
    pub parameters: BTreeMap<String, String>,
}

impl Module {
    /// Returns this kernel's modules, below `root`; none if nothing can be read.
    pub fn all(root: &Path) -> Vec<Self> {
        let modules = NAMES.iter().filter_map(|(directory, name)| {
            let entries = fs::read_dir(root.join(directory).join("parameters")).ok()?;
            let parameters = entries.flatten().filter_map(|entry| {
                let text = fs::read_to_string(entry.path()).ok()?;
                Some((
                    entry.file_name().into_string().ok()?,
                    text.trim().to_owned(),
                ))
            });
            Some(Self {
                name,
                parameters: parameters.collect(),
            })
        });
        modules.collect()
    }

    /// Returns whether it is on.
    pub fn is_enabled(&self) -> bool {
        self.text("enabled") == Some("Y")
    }

    /// Returns the process id of its kdamond, while that runs.
    pub fn kdamond_pid(&self) -> Option<u32> {
        self.text("kdamond_pid")?.parse().ok()
    }

    /// Returns the parameter that turns it off by `N`.
    pub fn switch(&self) -> String {
        format!(
            "{MODULES_ROOT}/{}/parameters/enabled",
            self.name.to_lowercase()
        )
    }

    /// Returns its name, and its process if that is known, if it is on.
    pub fn in_use(&self) -> Option<String> {
        self.is_enabled().then(|| match self.kdamond_pid() {
            Some(pid) => format!("{} (process {pid})", self.name),
            None => self.name.to_owned(),
        })
    }

    /// Returns the idle time of the memory at each percentile, in milliseconds, the most recently accessed first. For
    /// accessed memory it is negative: the time for which it has kept its access frequency
    /// (`memory_idle_ms_percentiles` of DAMON_STAT).
    pub fn idle_ms_percentiles(&self) -> Option<Vec<i64>> {
        let numbers = self.text("memory_idle_ms_percentiles")?.split(',');
        numbers.map(|number| number.trim().parse().ok()).collect()
    }

    /// Returns DAMON_STAT's estimate, in bytes a second.
    pub fn bandwidth(&self) -> Option<u64> {
        self.text("estimated_memory_bandwidth")?.parse().ok()
    }

    fn text(&self, parameter: &str) -> Option<&str> {
        self.parameters.get(parameter).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_they_say_is_read() {
        let root = tempfile::tempdir().expect("a directory");
        let parameters = root.path().join("damon_stat/parameters");
        fs::create_dir_all(&parameters).expect("directories");
        for (name, text) in [
            ("enabled", "Y\n"),
            ("kdamond_pid", "51\n"),
            ("memory_idle_ms_percentiles", "-20,0,1500\n"),
            ("estimated_memory_bandwidth", "4096\n"),
        ] {
            fs::write(parameters.join(name), text).expect("a parameter");
        }
        let modules = Module::all(root.path());
        let [stat] = &modules[..] else {
            panic!("{modules:?}");
        };
        assert_eq!(stat.in_use().as_deref(), Some("DAMON_STAT (process 51)"));
        assert_eq!(stat.idle_ms_percentiles(), Some(vec![-20, 0, 1500]));
        assert_eq!(stat.bandwidth(), Some(4096));
        assert_eq!(Module::default().in_use(), None);
    }
}
