//! What is tuned, as it was given: schemes in contexts, how they are watched, and what guards them.

use isotherm_config::{
    Configuration, ContextConfig, Method, Operations, Request, RequestError, SessionSpec,
    TargetSpec,
};
use isotherm_engine::guard::GuardLimits;

use super::space::Settings;

/// Schemes whose numbers are tuned, and all else that a run of them needs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// With the schemes as they are given.
    contexts: Vec<ContextConfig>,
    /// What is said beside them: how to watch, the guard, the seed.
    request: Request,
}

impl Plan {
    /// The schemes of `contexts` (those of a file), with those that `request` names added to the only context, or to one
    /// of their own. Under a guard the limits of `request`, and without any that of `max_slowdown`, become those of the
    /// contexts.
    ///
    /// # Errors
    /// A preset or scheme that is none; that there is nothing to do.
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

    /// With the schemes as they are given.
    pub fn contexts(&self) -> &[ContextConfig] {
        &self.contexts
    }

    /// Whether a guard stands over what is done.
    pub fn is_guarded(&self) -> bool {
        !self.request.acting.no_guard
    }

    /// The arguments of an `isotherm run` of the configuration in `file` (a shell's word), without targets.
    pub fn run_flags(&self, file: &str) -> String {
        let guard = if self.is_guarded() { "" } else { " --no-guard" };
        let is_faithful = self.request.monitoring.method == Some(Method::Faithful);
        let method = if is_faithful { " --faithful" } else { "" };
        format!("run --config \"{file}\"{guard}{method}")
    }

    /// All of it that predictions depend on, as text.
    pub fn fingerprint(&self) -> String {
        format!("{:?} {:?}", self.contexts, self.request)
    }

    /// The session of these settings, of all that runs on a machine.
    ///
    /// # Errors
    /// What does not fit together.
    pub fn session(&self, settings: &Settings) -> Result<SessionSpec, RequestError> {
        let contexts = settings.apply(&self.contexts);
        self.request.act_or_watch(&contexts, Some(everybody()))
    }

    /// The same without schemes.
    ///
    /// # Errors
    /// What does not fit together.
    pub fn watching(&self) -> Result<SessionSpec, RequestError> {
        let mut contexts = self.contexts.clone();
        for context in &mut contexts {
            context.schemes.clear();
        }
        self.request.act_or_watch(&contexts, Some(everybody()))
    }

    /// What is to be written for these settings.
    pub fn configuration(&self, settings: &Settings) -> Configuration {
        Configuration {
            contexts: settings.apply(&self.contexts),
            warnings: Vec::new(),
        }
    }
}

/// All processes of a simulated machine.
fn everybody() -> TargetSpec {
    TargetSpec::Processes {
        processes: Vec::new(),
        children: false,
    }
}

/// The context of the schemes that `request` names, which are then no longer named there.
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
