//! `isotherm web`: the page of a record, or of what runs now, in a browser on this machine.

mod site;

use std::net::{Shutdown, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use isotherm_engine::Nanos;
use isotherm_record::{Item, Reader};
use isotherm_report::Scope;
use isotherm_session::{Session, Step};
use isotherm_view::{Document, Finished};
use tracing::{info, warn};

use super::report::source::Source;
use crate::daemon::{SOCKET, client};
use crate::flags::WatchArgs;
use site::{Content, Record, Site};

/// Steps of a session that may wait for the page; further steps are left out of it.
const WAITING_MAX: usize = 256;
/// Items of a daemon that may wait for the page.
const FOLLOWED_MAX: usize = 8192;
/// Period of checks whether the user ends the command.
const LOOK: Duration = Duration::from_millis(200);

/// Show a record, or what runs now, on a page in a browser on this machine.
///
/// The page is served on a loopback address. Only users who know the printed address, which contains a token, can open
/// it.
/// `isotherm report heatmap -o page.html` writes the same page as one file.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm web rec.isotherm
  isotherm web before.isotherm after.isotherm --no-browser
  isotherm web --pid 1234
  isotherm web --daemon
  isotherm web --all --cpu-budget 0.5%")]
pub(crate) struct Args {
    /// Show these records [default: the newest *.isotherm file here, unless targets are named].
    #[arg(value_name = "FILE", conflicts_with_all = ["pid", "cgroup", "all", "physical", "node", "simulated", "command"])]
    files: Vec<PathBuf>,

    /// Show what the daemon (`isotherm start`) sees and does, from now on; it need not be watched twice.
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = SOCKET,
        conflicts_with_all = ["files", "pid", "cgroup", "all", "physical", "node", "simulated", "command"])]
    daemon: Option<PathBuf>,

    /// Listen on this address; port 0 is any that is free.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Listen on an address that others can reach. Nothing is encrypted: put a proxy before it that is.
    #[arg(long)]
    allow_remote: bool,

    /// Open no browser, only print the address.
    #[arg(long)]
    no_browser: bool,

    #[command(flatten)]
    watch: WatchArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let address = args.listen;
    ensure!(
        address.ip().is_loopback() || args.allow_remote,
        "--listen {address}: others could reach this address, and nothing is encrypted. Leave it out, and reach a \
         machine elsewhere by `ssh -L`; or say --allow-remote, and put a proxy before it that encrypts"
    );
    if let Some(socket) = &args.daemon {
        return followed(args, socket);
    }
    if args.watch.targets.spec().is_some() {
        return live(args);
    }
    let files: Vec<Option<PathBuf>> = match &args.files[..] {
        [] => vec![None],
        files => files.iter().cloned().map(Some).collect(),
    };
    let (mut documents, mut records) = (Vec::new(), Vec::new());
    for file in files {
        let shown = Source::open_pages(file.as_deref())?.document(Scope::default())?;
        records.push(Record {
            trace: shown.trace,
            parts: shown.parts,
        });
        documents.push(shown.document);
    }
    let container = Finished::container(&documents)?;
    drop(documents);
    let stop = crate::stop::by_signals()?;
    let content = Content::Whole { container, records };
    serve(args, content, &stop, || Ok(()))?;
    Ok(ExitCode::SUCCESS)
}

/// Serves the content until `stop` is set, and does something else meanwhile.
fn serve(
    args: &Args,
    content: Content,
    stop: &AtomicBool,
    meanwhile: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (ready, address) = mpsc::sync_channel(1);
    std::thread::scope(|threads| {
        let serving = threads.spawn(|| Site::serve(args.listen, content, stop, ready));
        let announced = announce(args, address.recv());
        if announced.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        let done = announced.and_then(|()| meanwhile());
        let served = serving.join();
        done.and(served.map_err(|_| anyhow!("the server has panicked: a bug"))?)
    })
}

/// Monitors on this thread and serves on another, so that no browser delays the monitor.
fn live(args: &Args) -> anyhow::Result<ExitCode> {
    isotherm_linux::clock::count_thread_alone();
    let request = args.watch.request();
    let mut session = Session::start(&request.watch()?, crate::out::command_line())?;
    session.give_up_privileges(false)?;
    let document = Document::new(session.header(), Scope::default());
    let stopped = grows(args, document, WAITING_MAX, |page| {
        watch(&mut session, page)?;
        // The page stays until the user ends the command.
        if !session.is_stopped() {
            info!("what was watched has ended; the page stays, Ctrl-C ends it");
        }
        page.end();
        while !session.is_stopped() {
            std::thread::sleep(LOOK);
        }
        Ok(())
    });
    if let Some(mut child) = session.take_child() {
        isotherm_linux::process::terminate(&mut child);
        child.wait().ok();
    }
    stopped.map(|()| ExitCode::SUCCESS)
}

/// Reads a daemon's items on another thread, and waits on this one for the end.
fn followed(args: &Args, socket: &Path) -> anyhow::Result<ExitCode> {
    let stop = crate::stop::by_signals()?;
    let (input, stream) = client::follow(socket)?;
    let reader =
        Reader::open(input).with_context(|| format!("{} sends no record", socket.display()))?;
    let document = Document::new(reader.header(), Scope::default());
    grows(args, document, FOLLOWED_MAX, |page| {
        std::thread::scope(|threads| {
            let reading = threads.spawn(|| {
                // A record that is cut off has ended.
                for item in reader {
                    match item {
                        // The daemon does not wait for this process, so this thread may wait for the page.
                        Ok(item) => page.tell_all(vec![item]),
                        Err(error) => {
                            warn!("{} sends a damaged record: {error}", socket.display());
                            break;
                        }
                    }
                }
                if !stop.load(Ordering::Relaxed) {
                    info!("the daemon has ended; the page stays, Ctrl-C ends it");
                }
                page.end();
            });
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
            }
            stream.shutdown(Shutdown::Both).ok();
            reading
                .join()
                .map_err(|_| anyhow!("what reads has panicked: a bug"))
        })
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Serves a page of the items that `send` passes to it, until `send` returns.
fn grows(
    args: &Args,
    document: Document,
    waiting_max: usize,
    send: impl FnOnce(&Page) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (items, taken) = mpsc::sync_channel(waiting_max);
    let stop = AtomicBool::new(false);
    let page = Page {
        items: Mutex::new(Some(items)),
        has_left_out: AtomicBool::new(false),
    };
    let content = Content::Live {
        document: Box::new(document),
        items: taken,
    };
    serve(args, content, &stop, || {
        let result = send(&page);
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// The sender's side of a page that grows.
struct Page {
    /// None once it has ended.
    items: Mutex<Option<SyncSender<Vec<Item>>>>,
    has_left_out: AtomicBool,
}

impl Page {
    /// Sends items if the queue has a free place: it never blocks.
    fn tell(&self, items: Vec<Item>) {
        let page = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let reported = page.as_ref().map(|page| page.try_send(items));
        if let Some(Err(TrySendError::Full(_))) = reported
            && !self.has_left_out.swap(true, Ordering::Relaxed)
        {
            warn!("the page is slower than what is watched: it leaves some of it out");
        }
    }

    /// Sends items; waits for a free place in the queue.
    fn tell_all(&self, items: Vec<Item>) {
        let page = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = &*page {
            page.send(items).ok();
        }
    }

    /// Ends the items, which also ends the page's live part.
    fn end(&self) {
        let mut page = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        *page = None;
    }
}

fn watch(session: &mut Session, page: &Page) -> anyhow::Result<()> {
    loop {
        let mut items = Vec::new();
        let step = session.step(Nanos(u64::MAX), &mut items)?;
        page.tell(items);
        if step != Step::Going {
            return Ok(());
        }
    }
}

/// Prints the page's address, and opens it in a browser.
fn announce(
    args: &Args,
    address: Result<anyhow::Result<String>, mpsc::RecvError>,
) -> anyhow::Result<()> {
    let address = address.map_err(|_| anyhow!("the server has not begun"))??;
    println!("{address}");
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    // Running a browser as root is unsafe, and most browsers refuse it.
    if args.no_browser || !has_screen || nix::unistd::geteuid().is_root() {
        info!("open this address in a browser; Ctrl-C ends it");
        return Ok(());
    }
    let opened = Command::new("xdg-open")
        .arg(&address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = opened {
        info!("no browser is opened (xdg-open: {error}); open this address in one");
    }
    Ok(())
}
