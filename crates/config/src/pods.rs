//! Policies of pods: the annotations `isotherm.io/...` in a list of pods from the API server.
//!
//! Problem: the owner of a pod decides whether its memory may be reclaimed, and the API server has that decision.
//!
//! Approach: name, namespace, uid and Isotherm's annotations are read from a `PodList` or `PartialObjectMetadataList`;
//! all else is skipped while it streams by. A pod without annotations is reported on only. A pod with wrong ones is,
//! too, and the error is reported.
//!
//! Limits: at most [`PODS_MAX`] pods are read, and [`OURS_MAX`] of Isotherm's annotations of each. A static pod has
//! another uid at the API server than on its node (its mirror's). So its policy is unknown, and it is not acted on.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use isotherm_engine::Nanos;
use isotherm_engine::units::parse_time;
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use thiserror::Error;

/// Prefix of Isotherm's annotations.
const PREFIX: &str = "isotherm.io/";
/// Annotation with the policy.
const POLICY: &str = "policy";
/// Annotation with the minimum idle time.
const MIN_AGE: &str = "min-age";
/// Annotations of `isotherm recommend`, which say nothing of paging out.
const RESIZES: [&str; 3] = ["resize", "resized", "resize-failed"];
/// Limit of the pods in a list; a kubelet's default limit is 110.
pub const PODS_MAX: usize = 10_000;
/// Limit of Isotherm's annotations on one pod; there are five.
const OURS_MAX: usize = 16;
/// Limits of a name's length, and of the shown part of a value.
const NAME_MAX: usize = 253;
const SHOWN_MAX: usize = 40;

/// A list of pods that cannot be read.
#[derive(Debug, Error)]
#[error("it answers no list of pods: {0}")]
pub struct PodListError(#[from] serde_json::Error);

/// An error in a pod's annotations.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PodProblem {
    #[error("isotherm.io/policy is {0:?}; it may be report or reclaim")]
    Policy(String),
    #[error("isotherm.io/min-age is {0:?}, which is no time: 30s, 5m, 2h")]
    MinAge(String),
    #[error("there is no annotation isotherm.io/{0}; there are policy, min-age and resize")]
    Unknown(String),
    /// The pod has more annotations of this prefix than could be meant.
    #[error("there are more than {OURS_MAX} annotations isotherm.io/...")]
    TooMany,
}

/// Policy for a pod's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPolicy {
    /// Report cold memory only.
    #[default]
    Report,
    /// Let schemes page memory out after this idle time; zero leaves the time to the schemes.
    Reclaim { min_age: Nanos },
}

/// A pod with its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotatedPod {
    /// Uid, as in the names of its control groups.
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Policy of the pod; if it is an error, the pod is not acted on.
    pub policy: Result<PodPolicy, PodProblem>,
}

/// Reads a list of pods.
///
/// # Errors
/// Fails if the text is no such list, ends too early or has too many pods.
pub fn read_pods(text: impl Read) -> Result<Vec<AnnotatedPod>, PodListError> {
    let mut reader = serde_json::Deserializer::from_reader(std::io::BufReader::new(text));
    let list = PodList::deserialize(&mut reader)?;
    reader.end()?;
    // Any other answer has no pods either, but does not mean a node without pods.
    if !matches!(&*list.kind, "PodList" | "PartialObjectMetadataList") {
        let kind = shown(&list.kind);
        return Err(serde_json::Error::custom(format!("its kind is {kind:?}")).into());
    }
    Ok(list.items)
}

#[derive(Deserialize)]
struct PodList {
    kind: String,
    #[serde(deserialize_with = "bounded")]
    items: Vec<AnnotatedPod>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    #[serde(default)]
    annotations: Option<Ours>,
}

/// Reads the pods of a list, up to the limit.
fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<AnnotatedPod>, D::Error> {
    struct Items;
    impl<'de> Visitor<'de> for Items {
        type Value = Vec<AnnotatedPod>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of pods")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut pods = Vec::new();
            while let Some(pod) = items.next_element::<Pod>()? {
                if pods.len() == PODS_MAX {
                    let text = format!("more than {PODS_MAX} pods on one node");
                    return Err(A::Error::custom(text));
                }
                pods.push(pod.metadata.annotated()?);
            }
            Ok(pods)
        }
    }
    deserializer.deserialize_seq(Items)
}

impl Metadata {
    fn annotated<E: serde::de::Error>(self) -> Result<AnnotatedPod, E> {
        let names = [&self.uid, &self.namespace, &self.name];
        if names.iter().any(|name| name.len() > NAME_MAX) {
            return Err(E::custom("a pod with a name longer than there are"));
        }
        Ok(AnnotatedPod {
            uid: self.uid,
            namespace: self.namespace,
            name: self.name,
            policy: self.annotations.unwrap_or_default().policy(),
        })
    }
}

/// Isotherm's annotations, without their prefix.
#[derive(Default)]
struct Ours {
    values: BTreeMap<String, String>,
    has_more: bool,
}

impl<'de> Deserialize<'de> for Ours {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Annotations;
        impl<'de> Visitor<'de> for Annotations {
            type Value = Ours;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ours, A::Error> {
                let mut ours = Ours::default();
                while let Some(key) = map.next_key::<String>()? {
                    let Some(name) = key.strip_prefix(PREFIX) else {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    };
                    let value = map.next_value::<String>()?;
                    if ours.values.len() < OURS_MAX {
                        ours.values.insert(shown(name), value);
                    } else {
                        ours.has_more = true;
                    }
                }
                Ok(ours)
            }
        }
        deserializer.deserialize_map(Annotations)
    }
}

impl Ours {
    /// Returns the policy of all annotations together. If one is not understood, the pod is not acted on: a misspelt
    /// name may have been meant to forbid more than the rest does.
    fn policy(self) -> Result<PodPolicy, PodProblem> {
        if self.has_more {
            return Err(PodProblem::TooMany);
        }
        let (mut is_reclaimed, mut min_age) = (false, Nanos(0));
        for (name, value) in self.values {
            match (&*name, &*value) {
                (POLICY, "report") => is_reclaimed = false,
                (POLICY, "reclaim") => is_reclaimed = true,
                (POLICY, _) => return Err(PodProblem::Policy(shown(&value))),
                (MIN_AGE, text) => {
                    min_age = parse_time(text).map_err(|_| PodProblem::MinAge(shown(&value)))?;
                }
                (name, _) if RESIZES.contains(&name) => {}
                _ => return Err(PodProblem::Unknown(name)),
            }
        }
        Ok(if is_reclaimed {
            PodPolicy::Reclaim { min_age }
        } else {
            PodPolicy::Report
        })
    }
}

/// Returns the beginning of a foreign text.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn list(pods: &[Value]) -> Value {
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": pods})
    }

    fn pod(annotations: &Value) -> Value {
        json!({
            "metadata": {
                "name": "cart", "namespace": "shop", "uid": "u", "annotations": annotations,
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}],
            },
            "spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "isotherm.io/policy"}]}]},
        })
    }

    fn read(value: &Value) -> Result<Vec<AnnotatedPod>, PodListError> {
        read_pods(value.to_string().as_bytes())
    }

    fn policy(annotations: &Value) -> Result<PodPolicy, PodProblem> {
        let mut pods = read(&list(&[pod(annotations)])).expect("a list");
        assert_eq!((&*pods[0].namespace, &*pods[0].name), ("shop", "cart"));
        pods.remove(0).policy
    }

    #[test]
    fn a_pod_says_what_may_be_done_to_it() {
        let reclaim = |seconds: u64| {
            let min_age = Nanos(seconds * 1_000_000_000);
            Ok(PodPolicy::Reclaim { min_age })
        };
        let check = |annotations: Value, wanted: Result<PodPolicy, PodProblem>| {
            assert_eq!(policy(&annotations), wanted, "{annotations}");
        };
        for annotations in [
            Value::Null,
            json!({}),
            json!({"a/b": "c", "isotherm.io.evil/policy": "reclaim"}),
            json!({"isotherm.io/policy": "report"}),
            json!({"isotherm.io/min-age": "30s"}),
            json!({"isotherm.io/resize": "limits", "isotherm.io/resized": "{}"}),
        ] {
            check(annotations, Ok(PodPolicy::Report));
        }
        check(json!({"isotherm.io/policy": "reclaim"}), reclaim(0));
        let both = json!({"isotherm.io/min-age": "2m", "isotherm.io/policy": "reclaim"});
        check(both, reclaim(120));
    }

    #[test]
    fn what_is_not_understood_leaves_the_pod_alone() {
        let check = |annotations: Value, wanted: &str| {
            let problem = policy(&annotations).expect_err("a problem").to_string();
            assert!(problem.contains(wanted), "{problem}");
            assert!(problem.len() < 400, "{problem}");
        };
        for (policy, wanted) in [
            ("Reclaim", "\"Reclaim\""),
            ("", "\"\""),
            (&"\u{1b}".repeat(200_000), "..."),
        ] {
            check(json!({"isotherm.io/policy": policy}), wanted);
        }
        for (key, value, wanted) in [
            ("min-age", "soon", "\"soon\""),
            ("min-age", "-5s", "min-age"),
            ("minage", "1h", "isotherm.io/minage"),
        ] {
            let key = format!("isotherm.io/{key}");
            check(json!({"isotherm.io/policy": "reclaim", key: value}), wanted);
        }
        let many = (0..100).map(|i| (format!("isotherm.io/{i}"), json!("x")));
        check(many.collect::<serde_json::Map<_, _>>().into(), "more than");
    }

    #[test]
    fn what_is_no_list_of_pods_is_no_empty_one() {
        let cut = list(&[pod(&Value::Null)]).to_string();
        let denied = json!({"kind": "Status", "code": 403, "items": []}).to_string();
        let nameless = list(&[json!({"metadata": {"name": "a"}})]).to_string();
        let odd = list(&[pod(&json!({"isotherm.io/policy": 7}))]).to_string();
        let long =
            list(&[json!({"metadata": {"name": "a".repeat(300), "namespace": "b", "uid": "c"}})]);
        for text in [
            "",
            "null",
            "{}",
            "<html>",
            &cut[..cut.len() / 2],
            &(cut.clone() + "x"),
            &denied,
            &nameless,
            &odd,
            &long.to_string(),
            &"[".repeat(1 << 20),
        ] {
            read_pods(text.as_bytes()).expect_err(text);
        }
        assert_eq!(read(&list(&[])).expect("a node without pods"), []);
        let partial = json!({"kind": "PartialObjectMetadataList", "items": [pod(&Value::Null)]});
        assert_eq!(read(&partial).expect("a list").len(), 1);
    }

    #[test]
    fn a_list_has_an_end() {
        let most = vec![pod(&Value::Null); PODS_MAX];
        assert_eq!(read(&list(&most)).expect("a long list").len(), PODS_MAX);
        let too_many = vec![pod(&Value::Null); PODS_MAX + 1];
        let error = read(&list(&too_many)).expect_err("too many").to_string();
        assert!(error.contains("10000"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_pods(&bytes[..]);
        }

        #[test]
        fn lists_with_a_byte_changed_are_read_or_refused(at in any::<prop::sample::Index>(), byte: u8) {
            let annotations = json!({"isotherm.io/policy": "reclaim", "isotherm.io/min-age": "5m"});
            let mut text = list(&[pod(&annotations)]).to_string().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            let _ = read_pods(&text[..]);
        }

        /// Only the one word, in this spelling, permits acting.
        #[test]
        fn no_other_word_lets_memory_go(key in "(isotherm.io/)?[a-z-]{0,8}", value in ".*", age in ".{0,8}") {
            let said = policy(&json!({&key: &value, "isotherm.io/min-age": &age}));
            let is_said = key == "isotherm.io/policy" && value == "reclaim" && parse_time(&age).is_ok();
            prop_assert_eq!(matches!(said, Ok(PodPolicy::Reclaim { .. })), is_said);
        }
    }
}
