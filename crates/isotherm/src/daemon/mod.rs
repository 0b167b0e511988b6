//! The daemon: `isotherm run` with a socket for requests.
//!
//! Problem: schemes that work for weeks must be inspected, tuned and stopped while they work, by permitted users only.
//! A client must not hold up the daemon.
//!
//! Approach: one process with one thread. Others only ask which pods may be acted on ([`pod_policy`]) and send metrics.
//! The loop is that of `isotherm run`: a session's step, then its actions. Between two steps it answers requests on a
//! Unix socket, and scrapes on a loopback port if one is configured. A request ends the loop's sleep. No client can
//! make the loop wait ([`crate::serve`]).
//!
//! Limits: a request waits for the current step, which may page out some 64 MiB. The targets and the monitor's settings
//! stay as they were at the start; schemes and the guard's limits can be tuned. Nothing in /sys or /proc is set, so a
//! crash leaves nothing to restore: locks end with their owner, and a socket that is left over is replaced.

pub(crate) mod client;
mod notify;
mod otlp;
mod pod_policy;
mod scrape;
mod socket;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use isotherm_config::{ActingRequest, ContextSpec, Request, SessionSpec, TargetSpec, World};
use isotherm_engine::{CpuAccount, Nanos};
use isotherm_linux::clock::process_cpu;
use isotherm_linux::pods::Pods;
use isotherm_policy::scheme::{Action, Scheme};
use isotherm_record::{Item, RecordError, printable};
use isotherm_session::protocol::{
    DaemonRequest, Done, Feed, LiveState, Metrics, OtlpTimes, PodPolicies, Reply, Status,
};
use isotherm_session::{Acting, PodPermits, Session, Step, new_acting, warnings};
use nix::sys::epoll::{Epoll, EpollCreateFlags};

pub(crate) use otlp::OtlpReceiver;
pub(crate) use pod_policy::PodPolicySource;
use socket::Socket;
pub(crate) use socket::make_folder_of;

use crate::blame::LiveBlame;
use crate::flags::{contexts_of, ensure_doable, lower, parse};
use crate::serve::{Answer, Server, Then};
use notify::Manager;
use otlp::OtlpSender;
use pod_policy::PodPolicyWatch;
use tracing::{debug, error, info, warn};

/// Default path of the daemon's socket.
pub(crate) const SOCKET: &str = "/run/isotherm/isotherm.sock";
/// The loop turns at least this often.
const TURN: Nanos = Nanos(1_000_000_000);

/// Memory that is idle for at least this time is attributed to functions, every [`BLAME_EVERY`].
const BLAME_AT_LEAST: Nanos = Nanos(60_000_000_000);
const BLAME_EVERY: Nanos = Nanos(30_000_000_000);

/// Followers at a time: the other places are for requests.
const FOLLOWERS_MAX: usize = 8;
/// A follower that is behind by more than this number of bytes is disconnected.
const BEHIND_MAX: usize = 64 << 20;
/// Bytes of a request that `-v` logs.
const REQUEST_SHOWN: usize = 80;

pub(crate) struct Config {
    pub(crate) socket: PathBuf,
    pub(crate) metrics: Option<SocketAddr>,
    /// The receiver that metrics are sent to.
    pub(crate) otlp: Option<OtlpReceiver>,
    /// The kubelet's folder of logs, if metrics name the pods of control groups.
    pub(crate) pods: Option<PathBuf>,
    /// The source that names the pods which may be acted on; without it schemes act on all targets.
    pub(crate) pod_policy: Option<PodPolicySource>,
    pub(crate) request: Request,
    /// A configuration file, which is read again on SIGHUP.
    pub(crate) file: Option<PathBuf>,
}

struct Daemon {
    config: Config,
    spec: SessionSpec,
    session: Session,
    acting: Acting,
    live: LiveState,
    blame: Option<LiveBlame>,
    feed: Feed,
    nr_followers: usize,
    manager: Manager,
    pods: Option<Pods>,
    pod_policy: Option<PodPolicyWatch>,
    is_ending: bool,
}

/// Runs until the targets end, or until a signal or a request ends it.
pub(crate) fn run(config: Config) -> anyhow::Result<()> {
    let spec = resolve(&config)?;
    let poll = Rc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("cannot poll sockets")?);
    let mut requests = socket::open(&config.socket, &poll)?;
    let mut scrapes = config
        .metrics
        .map(|address| scrape::open(address, &poll))
        .transpose()?;
    for warning in warnings(&spec) {
        warn!("{warning}");
    }
    let mut session = Session::start(&spec, crate::out::command_line())?;
    session.outlive_hang_up();
    session.wake_by(duplicate(&poll)?);
    let mut items = Vec::new();
    session.step(Nanos(u64::MAX), &mut items)?;
    let mut acting = new_acting(&spec)?;
    if config.pod_policy.is_some() {
        // No pod, until the permitted pods are known.
        acting.permit_only(PodPermits::new())?;
    }
    for warning in acting.warnings() {
        warn!("{warning}");
    }
    session.give_up_privileges(true)?;
    let otlp = config.otlp.clone();
    let mut otlp = otlp.map(OtlpSender::start).transpose()?;
    let mut live = LiveState::new(session.now());
    let of_pods = config.pod_policy.clone();
    live.pods = of_pods.as_ref().map(|of| PodPolicies::new(&of.node));
    let mut daemon = Daemon {
        live,
        feed: Feed::new(session.header().clone()),
        blame: LiveBlame::new(session.header(), BLAME_AT_LEAST, BLAME_EVERY),
        nr_followers: 0,
        pods: config.pods.as_deref().map(Pods::new),
        pod_policy: of_pods.map(PodPolicyWatch::start).transpose()?,
        config,
        spec,
        session,
        acting,
        manager: Manager::find(),
        is_ending: false,
    };
    daemon.act(&mut items)?;
    daemon.manager.ready();
    daemon.work(&mut items, &mut requests, scrapes.as_mut(), otlp.as_mut())?;
    daemon.manager.stopping();
    info!("{}", daemon.acting.summary().text());
    Ok(())
}

/// Returns a client that follows neither redirects nor proxies of the environment.
fn agent(timeout: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .proxy(None)
        .max_redirects(0)
        .max_idle_connections(0);
    config.build().new_agent()
}

/// Returns [`Then::Listen`], unless the daemon ends.
fn then(is_ending: bool) -> Then {
    if is_ending { Then::Close } else { Then::Listen }
}

/// Duplicates the epoll descriptor: the session owns a descriptor of its own that wakes it.
fn duplicate(poll: &Epoll) -> anyhow::Result<OwnedFd> {
    use std::os::fd::AsFd;
    poll.0
        .as_fd()
        .try_clone_to_owned()
        .context("cannot poll sockets")
}

/// Resolves the session's specification; reads the configuration file, if one is named.
fn resolve(config: &Config) -> anyhow::Result<SessionSpec> {
    let contexts = contexts_of(config.file.as_deref())?;
    let spec = lower(&config.request, &contexts)?;
    if config.pod_policy.is_some() {
        ensure_for_pods(&spec)?;
    }
    Ok(spec)
}

/// Fails unless `--all` names the targets and all schemes page out or count idle memory. Pods permit only the reclaim
/// of idle memory, and only the owner of a process is known.
fn ensure_for_pods(spec: &SessionSpec) -> anyhow::Result<()> {
    let is_all = |context: &ContextSpec| matches!(context.targets, TargetSpec::All { .. });
    ensure!(
        spec.world == World::Linux && spec.contexts.iter().all(is_all),
        "--pod-policy goes with --all, by `--world linux`: whose memory it is must be known"
    );
    let is_reclaim = |scheme: &Scheme| {
        matches!(scheme.action, Action::Pageout | Action::Stat) && scheme.is_idle_only()
    };
    let schemes = || spec.contexts.iter().flat_map(ContextSpec::schemes);
    ensure!(
        schemes().all(is_reclaim),
        "with --pod-policy schemes may page out idle memory (pageout) or count it (stat), as that is what pods permit"
    );
    Ok(())
}

impl Daemon {
    /// Turns the loop until the targets end, or until a signal or a request ends it.
    fn work(
        &mut self,
        items: &mut Vec<Item>,
        requests: &mut Server<Socket>,
        mut scrapes: Option<&mut Server<TcpListener>>,
        mut otlp: Option<&mut OtlpSender>,
    ) -> anyhow::Result<()> {
        while self.step(items)? {
            let now = self.session.now();
            let news = self.news();
            if !news.is_empty() {
                requests.publish_all(now, &news, BEHIND_MAX);
            }
            self.nr_followers = requests.nr_subscribers();
            requests.serve(now, &mut |message| self.answer(message));
            if requests.nr_subscribers() == 0 {
                self.feed.rest();
            }
            if let Some(scrapes) = scrapes.as_deref_mut() {
                scrapes.serve(now, &mut |message| {
                    scrape::answer(message, || self.metrics(None))
                });
            }
            if let Some(otlp) = otlp.as_deref_mut()
                && let Some(times) = otlp.due(now)
            {
                otlp.send(self.metrics(Some(times)));
            }
            if self.is_ending {
                break;
            }
        }
        Ok(())
    }

    fn status(&self) -> Status<'_> {
        let config = self.config.file.as_ref();
        let config = config.map(|path| path.display().to_string());
        let (cost, _) = self.session.cost();
        let (now, acting) = (self.session.now(), self.acting.status());
        self.live
            .status(env!("CARGO_PKG_VERSION"), config, now, cost, acting)
    }

    /// Returns the metrics as text, or as an OTLP request of these times.
    fn metrics(&mut self, otlp: Option<OtlpTimes>) -> Vec<u8> {
        let none = BTreeMap::new();
        let metrics = Metrics {
            version: env!("CARGO_PKG_VERSION"),
            now: self.session.now(),
            live: &self.live,
            acting: self.acting.status(),
            cost: self.session.cost().0,
            cpu_budget: self.session.cpu_budget(),
            pods: self.pods.as_mut().map_or(&none, Pods::list),
        };
        match otlp {
            None => metrics.text().into_bytes(),
            Some(times) => metrics.otlp(times),
        }
    }

    /// Applies the pods' permissions, if a new answer has arrived.
    fn follow_pods(&mut self) -> anyhow::Result<()> {
        let answer = self.pod_policy.as_ref().and_then(PodPolicyWatch::take);
        let (Some(answer), Some(policies)) = (answer, &mut self.live.pods) else {
            return Ok(());
        };
        let is_new = answer.is_ok();
        for note in policies.take(self.session.now(), answer) {
            warn!("{}", printable(&note));
        }
        if is_new {
            self.acting.permit_only(policies.permits())?;
        }
        Ok(())
    }

    /// Runs one turn of the loop; returns whether to continue.
    fn step(&mut self, items: &mut Vec<Item>) -> anyhow::Result<bool> {
        self.follow_pods()?;
        let now = self.session.now();
        let until = (now + TURN).min(self.acting.wake_at(now).unwrap_or(now + TURN));
        let step = self.session.step(until, items)?;
        self.act(items)?;
        if self.session.take_hang_up() {
            match self.reload() {
                Ok(notes) => notes.iter().for_each(|note| warn!("{}", printable(note))),
                Err(error) => {
                    let error = format!("{error:#}");
                    error!("nothing was changed: {}", printable(&error));
                }
            }
        }
        let now = self.session.now();
        if self.manager.is_due(now) {
            let headline = self.headline();
            self.manager.turn(now, &headline);
        }
        Ok(step == Step::Going)
    }

    fn act(&mut self, items: &mut Vec<Item>) -> anyhow::Result<()> {
        self.acting.step(&mut self.session, items)?;
        for item in items.drain(..) {
            if let Item::Note { text, .. } = &item {
                info!("{}", printable(text));
            }
            if let Err(error) = self.feed.push(&item) {
                self.lose_followers(&error);
            }
            if let Some(blame) = &mut self.blame {
                blame.push(&item);
            }
            self.live.take(item);
        }
        self.blame();
        Ok(())
    }

    /// Attributes idle memory to the functions that touched it first, if stacks are recorded and it is time.
    fn blame(&mut self) {
        let Some(blame) = &mut self.blame else {
            return;
        };
        // This is no cost of monitoring, and must not lengthen intervals.
        let before = process_cpu();
        if let Some(status) = blame.take(self.session.now()) {
            self.live.blame = Some(status);
        }
        let spent = process_cpu().since(before);
        self.session.charge(CpuAccount::Reports, spent);
    }

    /// Formats a one-line state for the service manager.
    fn headline(&self) -> String {
        let status = self.acting.status();
        let schemes = status.contexts.iter().flat_map(|c| &c.schemes);
        let applied: u64 = schemes.map(|s| s.stats.sz_applied).sum();
        format!(
            "{}{} targets, {} acted on{}",
            if status.paused { "paused; " } else { "" },
            self.live.nr_targets(),
            isotherm_engine::units::format_bytes(applied),
            if status.contexts.iter().all(|c| c.guard.is_open) {
                ""
            } else {
                "; stopped by the guard"
            },
        )
    }

    /// Answers a request with a line of JSON; the answer closes the connection if the daemon ends.
    fn answer(&mut self, message: &[u8]) -> Answer {
        let shown = &message[..message.len().min(REQUEST_SHOWN)];
        debug!("request: {}", printable(&String::from_utf8_lossy(shown)));
        let done = match DaemonRequest::parse(message) {
            Ok(DaemonRequest::Status) => {
                return Answer::line(&Reply::done(self.status()), Then::Listen);
            }
            Ok(DaemonRequest::Tune { config, name }) => self.tune(&config, &name),
            Ok(DaemonRequest::Schemes { presets, lines }) => self.set_schemes(presets, lines),
            Ok(DaemonRequest::Reload) => self.reload(),
            Ok(DaemonRequest::Pause) => Ok(self.set_paused(true)),
            Ok(DaemonRequest::Resume) => Ok(self.set_paused(false)),
            Ok(DaemonRequest::Follow) => return self.follow(),
            Ok(DaemonRequest::Stop) => {
                self.is_ending = true;
                Ok(Vec::new())
            }
            Err(error) => Err(error.into()),
        };
        match done {
            Ok(notes) => Answer::line(&Reply::done(Done { notes }), then(self.is_ending)),
            Err(error) => Answer::line(&Reply::failed(format!("{error:#}")), then(self.is_ending)),
        }
    }

    /// Returns the new items for followers.
    fn news(&mut self) -> Vec<u8> {
        self.feed.take().unwrap_or_else(|error| {
            self.lose_followers(&error);
            Vec::new()
        })
    }

    /// Stops the followers' feed: an item that could not be sent leaves a gap, and a record with a gap cannot be read.
    fn lose_followers(&mut self, error: &RecordError) {
        warn!("followers get no more items: {error}");
        self.feed.rest();
    }

    fn follow(&mut self) -> Answer {
        if self.nr_followers >= FOLLOWERS_MAX {
            let why = format!("{FOLLOWERS_MAX} follow already, which is the most");
            return Answer::line(&Reply::failed(why), Then::Listen);
        }
        self.nr_followers += 1;
        let begun = match self.feed.begin(self.session.now()) {
            Ok(begun) => begun,
            Err(error) => return Answer::line(&Reply::failed(error.to_string()), Then::Listen),
        };
        let mut answer = Answer::line(&Reply::done(Done { notes: Vec::new() }), Then::Subscribe);
        answer.bytes.extend(begun);
        answer
    }

    fn set_paused(&mut self, is_paused: bool) -> Vec<String> {
        self.acting.set_paused(is_paused);
        Vec::new()
    }

    /// Applies a configuration's schemes and limits. Returns notes for the user.
    fn tune(&mut self, text: &str, name: &str) -> anyhow::Result<Vec<String>> {
        let configuration = parse(name, text)?;
        let mut notes: Vec<String> = configuration
            .warnings
            .iter()
            .map(|warning| format!("{name}: {warning}"))
            .collect();
        let request = &self.config.request;
        let request = Request {
            acting: ActingRequest {
                scheme_lines: Vec::new(),
                presets: Vec::new(),
                ..request.acting.clone()
            },
            ..request.clone()
        };
        let spec = lower(&request, &configuration.contexts)?;
        notes.extend(self.apply(spec, name)?);
        Ok(notes)
    }

    /// Replaces the schemes of the one context; its limits and budgets stay.
    fn set_schemes(
        &mut self,
        presets: Vec<String>,
        scheme_lines: Vec<String>,
    ) -> anyhow::Result<Vec<String>> {
        let named = presets.iter().map(|name| format!("--preset {name}"));
        let lines = scheme_lines.iter().map(|line| format!("--scheme '{line}'"));
        let name = named.chain(lines).collect::<Vec<_>>().join(" ");
        let asked = ActingRequest {
            presets,
            scheme_lines,
            ..ActingRequest::default()
        };
        let (schemes, _) = asked.schemes()?;
        ensure!(!schemes.is_empty(), "no scheme is named");
        let mut spec = self.spec.clone();
        let nr = spec.contexts.len();
        let [context] = &mut spec.contexts[..] else {
            bail!(
                "{} are at work, and {name} does not say for which it is; `isotherm tune -c FILE` does",
                contexts(nr)
            );
        };
        let acting = context.acting.clone().unwrap_or_default();
        context.acting = Some(acting.with_schemes(schemes)?);
        ensure_doable(&spec, acting.is_dry_run)?;
        self.apply(spec, &name)
    }

    /// Reads the files again that were named at the start.
    fn reload(&mut self) -> anyhow::Result<Vec<String>> {
        let spec = resolve(&self.config)?;
        let name = self.config.file.as_ref().map_or_else(
            || "the command line".to_owned(),
            |path| path.display().to_string(),
        );
        self.apply(spec, &name)
    }

    fn apply(&mut self, spec: SessionSpec, name: &str) -> anyhow::Result<Vec<String>> {
        if self.config.pod_policy.is_some() {
            ensure_for_pods(&spec)?;
        }
        let (nr, nr_at_work) = (spec.contexts.len(), self.spec.contexts.len());
        ensure!(
            nr == nr_at_work,
            "{name} holds {}, but {} at work; that takes a new start",
            contexts(nr),
            match nr_at_work {
                1 => "1 is".to_owned(),
                nr => format!("{nr} are"),
            },
        );
        for (new, old) in spec.contexts.iter().zip(&self.spec.contexts) {
            ensure!(
                new.targets.is_physical() == old.targets.is_physical(),
                "{name} is for {} memory, but {} memory is watched; that takes a new start",
                kind(new),
                kind(old),
            );
        }
        self.acting.tune(&spec, &mut self.session)?;
        let mut nr_schemes = 0;
        let both = self.spec.contexts.iter_mut().zip(spec.contexts);
        for (at, (old, new)) in both.enumerate() {
            let is_paused = |of: &ContextSpec| of.acting.as_ref().is_some_and(|a| a.is_paused);
            // A context that `isotherm pause` has paused stays paused, unless the file's own setting has changed.
            if is_paused(&new) != is_paused(old) {
                self.acting.set_context_paused(at, is_paused(&new));
            }
            nr_schemes += new.schemes().len();
            old.acting = new.acting;
        }
        self.live.tuned(self.session.now(), name);
        Ok(vec![format!(
            "{nr_schemes} schemes of {name} are in force{}; what is watched and how stays as at the start",
            match nr {
                1 => String::new(),
                nr => format!(" in {}", contexts(nr)),
            }
        )])
    }
}

fn contexts(nr: usize) -> String {
    format!("{nr} context{}", if nr == 1 { "" } else { "s" })
}

fn kind(context: &ContextSpec) -> &'static str {
    if context.targets.is_physical() {
        "physical"
    } else {
        "processes'"
    }
}
