//! The input of tuning: schemes in contexts, monitoring options, and guards.

use isotherm_config::{
    Configuration, ContextConfig, Method, Operations, Request, RequestError, SessionSpec,
    TargetSpec,
};
use isotherm_policy::guard::GuardLimits;

use super::space::Settings;

/// Schemes whose numbers are tuned, and everything else that a run of them needs.
#[derive(Clone, Debug)]
pub struct TuningPlan {
    contexts: Vec<ContextConfig>,
    request: Request,
}

impl TuningPlan {
    /// Creates a plan from the schemes of `contexts` (those of a file). Schemes that `request` names are added to the
    /// only context, or to one of their own. Under a guard, the contexts take the limits of `request`. Contexts without
    /// a maximum slowdown take `max_slowdown`. Fails if a preset or scheme is unknown, if several contexts could take
    /// an added scheme, or if there is no scheme.
    pub fn new(
        mut contexts: Vec<ContextConfig>,
        mut request: Request,
        max_slowdown: Option<f64>,
    ) -> Result<Self, RequestError> {
        let added = added(&mut request)?;
        if let Some(added) = added {
            match contexts.as_mut_slice() {
                [] => contexts.push(added),
                [only] => only.schemes.extend(added.schemes),
                _ => {
                    return Err(RequestError::ForWhichContext {
                        flag: "--preset or --scheme",
                    });
                }
            }
        }
        if contexts.iter().all(|context| context.schemes.is_empty()) {
            return Err(RequestError::NoScheme);
        }
        for context in &mut contexts {
            let guard = &mut context.own.guard;
            if request.acting.no_guard {
                *guard = GuardLimits::default();
            } else {
                *guard = request.acting.limits.or(*guard);
                guard.max_slowdown = guard.max_slowdown.or(max_slowdown);
            }
        }
        Ok(Self { contexts, request })
    }

    /// Returns the contexts with the schemes as given.
    pub fn contexts(&self) -> &[ContextConfig] {
        &self.contexts
    }

    /// Whether the schemes run under a guard.
    pub fn is_guarded(&self) -> bool {
        !self.request.acting.no_guard
    }

    /// Returns the arguments of an `isotherm run` of the configuration in `file` (a shell's word), without targets.
    pub fn run_flags(&self, file: &str) -> String {
        let guard = if self.is_guarded() { "" } else { " --no-guard" };
        let is_faithful = self.request.monitoring.method == Some(Method::Faithful);
        let method = if is_faithful { " --faithful" } else { "" };
        format!("run --config \"{file}\"{guard}{method}")
    }

    /// Returns everything that predictions depend on, as text.
    pub fn fingerprint(&self) -> String {
        format!("{:?} {:?}", self.contexts, self.request)
    }

    /// Returns the session of these settings, with all processes of the machine as targets. Fails if settings or
    /// options contradict each other.
    pub fn session(&self, settings: &Settings) -> Result<SessionSpec, RequestError> {
        let contexts = settings.apply(&self.contexts);
        self.request.act_or_watch(&contexts, Some(everybody()))
    }

    /// Returns the same session without schemes. Fails if options contradict each other.
    pub fn watching(&self) -> Result<SessionSpec, RequestError> {
        let mut contexts = self.contexts.clone();
        for context in &mut contexts {
            context.schemes.clear();
        }
        self.request.act_or_watch(&contexts, Some(everybody()))
    }

    /// Returns the configuration to write for these settings.
    pub fn configuration(&self, settings: &Settings) -> Configuration {
        Configuration {
            contexts: settings.apply(&self.contexts),
            warnings: Vec::new(),
        }
    }
}

/// Returns a target of all processes of a simulated machine.
fn everybody() -> TargetSpec {
    TargetSpec::named(Vec::new())
}

/// Takes the schemes that `request` names out of it, and returns them as a context; `None` if it names none.
fn added(request: &mut Request) -> Result<Option<ContextConfig>, RequestError> {
    let (schemes, is_physical) = request.acting.schemes()?;
    request.acting.presets.clear();
    request.acting.scheme_lines.clear();
    Ok((!schemes.is_empty()).then(|| ContextConfig {
        operations: if is_physical {
            Operations::Paddr
        } else {
            Operations::Vaddr
        },
        schemes,
        ..ContextConfig::default()
    }))
}
