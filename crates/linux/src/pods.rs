//! Finds the pod of a control group on a machine with a kubelet.
//!
//! A pod's control group has its uid in its name, whichever driver made it (`kubepods/burstable/podUID`,
//! `kubepods-burstable-podUID_WITH_UNDERSCORES.slice`). The kubelet keeps a pod's logs in
//! `/var/log/pods/NAMESPACE_NAME_UID`. So the two are joined without an API server or a token.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Default folder of the kubelet's logs.
pub const FOLDER: &str = "/var/log/pods";
/// Time for which a read list is valid.
const KEPT: Duration = Duration::from_secs(5);
/// Maximum number of known pods: a kubelet's default is 110.
const PODS_MAX: usize = 10_000;

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
}

/// The pods of this machine.
#[derive(Clone, Debug)]
pub struct Pods {
    folder: PathBuf,
    known: BTreeMap<String, Pod>,
    read: Option<Instant>,
}

impl Pods {
    /// Returns the pods in the kubelet's folder of logs.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            known: BTreeMap::new(),
            read: None,
        }
    }

    /// Returns the existing pods by uid; the list is at most some seconds old. Returns none if the folder cannot be
    /// read.
    pub fn list(&mut self) -> &BTreeMap<String, Pod> {
        if self.read.is_none_or(|read| read.elapsed() >= KEPT) {
            let names = fs::read_dir(&self.folder).into_iter().flatten().flatten();
            let pods = names.filter_map(|entry| of_folder(entry.file_name().to_str()?));
            self.known = pods.take(PODS_MAX).collect();
            self.read = Some(Instant::now());
        }
        &self.known
    }
}

/// Parses `NAMESPACE_NAME_UID`; neither of the first two has an underscore.
fn of_folder(name: &str) -> Option<(String, Pod)> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_all = parts.next().is_none() && !namespace.is_empty() && !pod.is_empty();
    let pod = Pod {
        namespace: namespace.to_owned(),
        name: pod.to_owned(),
    };
    (is_all && is_uid(uid)).then(|| (uid.to_owned(), pod))
}

/// Returns the uid in a control group's path, with dashes as elsewhere. It is the innermost one if a node runs within a
/// pod.
pub fn uid_of_group(group: &str) -> Option<String> {
    let parts = group.rsplit('/');
    let mut uids = parts.filter_map(|part| {
        let part = part.strip_suffix(".slice").unwrap_or(part);
        let (_, uid) = part.rsplit_once("pod")?;
        let uid = uid.replace('_', "-");
        is_uid(&uid).then_some(uid)
    });
    uids.next()
}

/// Whether the text is a UUID; those of static pods are 32 digits.
fn is_uid(text: &str) -> bool {
    let digits = text.chars().filter(char::is_ascii_hexdigit).count();
    let dashes = text.chars().filter(|c| *c == '-').count();
    digits == 32 && digits + dashes == text.len() && matches!(dashes, 0 | 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0a1b2c3d-1111-2222-3333-444455556666";

    #[test]
    fn uids_are_found_whichever_driver_made_the_group() {
        for (group, wanted) in [
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-ff.scope",
                Some(UID),
            ),
            (
                "/kubepods/besteffort/pod0a1b2c3d-1111-2222-3333-444455556666/ff",
                Some(UID),
            ),
            (
                "/kubepods.slice/kubepods-pod0123456789abcdef0123456789abcdef.slice",
                Some("0123456789abcdef0123456789abcdef"),
            ),
            ("/system.slice/podman.service", None),
            ("/kubepods.slice/kubepods-podnonsense.slice", None),
            ("", None),
        ] {
            assert_eq!(uid_of_group(group).as_deref(), wanted, "{group}");
        }
    }

    #[test]
    fn the_kubelets_folder_says_who_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [
            &format!("shop_cart-7d9f_{UID}"),
            "nonsense",
            "a_b_c",
            &format!("__{UID}"),
        ] {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        let mut pods = Pods::new(folder.path());
        let shop = Pod {
            namespace: "shop".into(),
            name: "cart-7d9f".into(),
        };
        assert_eq!(pods.list(), &[(UID.to_owned(), shop)].into());
        assert!(Pods::new(Path::new("/nowhere")).list().is_empty());
    }
}
