//! Finds the pod of a control group on a machine with a kubelet.
//!
//! A pod's control group has its uid in its name, whichever driver made it (`kubepods/burstable/podUID`,
//! `kubepods-burstable-podUID_WITH_UNDERSCORES.slice`). The kubelet keeps a pod's logs in
//! `/var/log/pods/NAMESPACE_NAME_UID`, and links to those of containers in `/var/log/containers/POD_NAMESPACE_NAME-ID.log`.
//! So they are joined without an API server or a token.

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
const CONTAINERS_MAX: usize = 100_000;

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    /// Names of its containers by their ids.
    pub containers: BTreeMap<String, String>,
}

impl Pod {
    /// Returns the name of the container that a control group is of.
    pub fn container_of_group(&self, group: &str) -> Option<&str> {
        let mut containers = self.containers.iter();
        let (_, name) = containers.find(|(id, _)| group.contains(id.as_str()))?;
        Some(name)
    }
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
            self.read_containers();
            self.read = Some(Instant::now());
        }
        &self.known
    }

    /// Returns the control group of `NAMESPACE/NAME`, or of `NAMESPACE/NAME/CONTAINER`, of `groups`.
    pub(crate) fn group_of(
        &mut self,
        name: &str,
        groups: impl Iterator<Item = String>,
    ) -> Option<String> {
        let mut parts = name.splitn(3, '/');
        let (namespace, name, container) = (parts.next()?, parts.next()?, parts.next());
        let pods = self.list().iter();
        let pods = pods.filter(|(_, pod)| pod.namespace == namespace && pod.name == name);
        let pods: BTreeMap<&String, &Pod> = pods.collect();
        let is_it = |group: &String| {
            let pod = uid_of_group(group).and_then(|uid| pods.get(&uid));
            pod.is_some_and(|pod| {
                container.is_none_or(|name| pod.container_of_group(group) == Some(name))
            })
        };
        // The group of the pod holds those of its containers.
        groups.filter(is_it).min_by_key(String::len)
    }

    fn read_containers(&mut self) {
        let folder = self.folder.with_file_name("containers");
        let pods = self.known.values_mut();
        // A pod that was made anew has the name of the one before.
        let mut by_name: BTreeMap<(String, String), Vec<&mut Pod>> = BTreeMap::new();
        for pod in pods {
            let name = (pod.name.clone(), pod.namespace.clone());
            by_name.entry(name).or_default().push(pod);
        }
        let names = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in names.take(CONTAINERS_MAX) {
            let name = entry.file_name();
            let Some((pod, container, id)) = name.to_str().and_then(of_link) else {
                continue;
            };
            for pod in by_name.get_mut(&pod).into_iter().flatten() {
                pod.containers.insert(id.clone(), container.clone());
            }
        }
    }
}

/// Parses `POD_NAMESPACE_NAME-ID.log` into the pod's name and namespace, the container's name, and its id.
fn of_link(name: &str) -> Option<((String, String), String, String)> {
    let (left, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    let mut parts = left.split('_').map(str::to_owned);
    let (pod, namespace, container) = (parts.next()?, parts.next()?, parts.next()?);
    let is_id = id.len() >= 32 && id.chars().all(|c| c.is_ascii_hexdigit());
    (is_id && parts.next().is_none()).then(|| ((pod, namespace), container, id.to_owned()))
}

/// Parses `NAMESPACE_NAME_UID`; neither of the first two has an underscore.
fn of_folder(name: &str) -> Option<(String, Pod)> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_all = parts.next().is_none() && !namespace.is_empty() && !pod.is_empty();
    let pod = Pod {
        namespace: namespace.to_owned(),
        name: pod.to_owned(),
        containers: BTreeMap::new(),
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
        let besteffort = format!("/kubepods/besteffort/pod{UID}/ff");
        let plain = "0123456789abcdef0123456789abcdef";
        let of_plain = format!("/kubepods.slice/kubepods-pod{plain}.slice");
        for (group, wanted) in [
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-ff.scope",
                Some(UID),
            ),
            (&besteffort, Some(UID)),
            (&of_plain, Some(plain)),
            ("/system.slice/podman.service", None),
            ("/kubepods.slice/kubepods-podnonsense.slice", None),
            ("", None),
        ] {
            assert_eq!(uid_of_group(group).as_deref(), wanted, "{group}");
        }
    }

    #[test]
    fn the_kubelets_folder_says_who_they_are() {
        let logs = tempfile::tempdir().expect("a folder");
        let folder = logs.path().join("pods");
        let id = "ab".repeat(32);
        for name in [
            &format!("shop_cart-7d9f_{UID}"),
            "nonsense",
            "a_b_c",
            &format!("__{UID}"),
        ] {
            fs::create_dir_all(folder.join(name)).expect("made");
        }
        let links = logs.path().join("containers");
        fs::create_dir(&links).expect("made");
        for link in [
            &format!("cart-7d9f_shop_web-server-{id}.log"),
            &format!("other_shop_web-{id}.log"),
            "nonsense.log",
        ] {
            fs::write(links.join(link), "").expect("written");
        }
        let mut pods = Pods::new(&folder);
        let shop = Pod {
            namespace: "shop".into(),
            name: "cart-7d9f".into(),
            containers: [(id.clone(), "web-server".into())].into(),
        };
        let group = format!("/kubepods.slice/cri-containerd-{id}.scope");
        assert_eq!(shop.container_of_group(&group), Some("web-server"));
        assert_eq!(shop.container_of_group("/kubepods.slice"), None);
        assert_eq!(pods.list(), &[(UID.to_owned(), shop)].into());
        let pod = format!("/kubepods/pod{UID}");
        let container = format!("{pod}/{id}");
        let groups = [container.clone(), pod.clone(), format!("{pod}/other")];
        let mut of = |name: &str| pods.group_of(name, groups.clone().into_iter());
        assert_eq!(of("shop/cart-7d9f"), Some(pod));
        assert_eq!(of("shop/cart-7d9f/web-server"), Some(container));
        for none in ["shop/cart-7d9f/db", "shop/cart", "shop"] {
            assert_eq!(of(none), None);
        }
        assert!(Pods::new(Path::new("/nowhere")).list().is_empty());
    }
}
