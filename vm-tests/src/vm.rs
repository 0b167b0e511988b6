//! A virtual machine that runs one script and ends.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::cache;
use crate::error::{Result, VmError, tail};
use crate::image::Image;
use crate::kernel::{Kernel, KernelImage};
use crate::module;
use crate::product;
use crate::qemu::{self, Qemu};

const TAIL_LINES: usize = 25;
/// Everything that QEMU can emulate, except fast string instructions: QEMU executes them byte by byte, and kernels rely
/// on them. Four levels of page tables are the default, as on most machines.
const CPU: &str = "max,-erms,-fsrm,la57=off";
/// The same with five levels of page tables.
pub(crate) const FIVE_LEVELS: &str = "max,-erms,-fsrm,la57=on";
/// The same for arm64. Pointers are signed by a cheap function instead of the architecture's cipher.
const CPU_ARM64: &str = "max,pauth-impdef=on";
/// Unless a scenario asks for another speed, an instruction takes 2^4 = 16 ns: see docs/development/vm-tests.md.
const INSTRUCTION_NS_LOG2: u32 = 4;
/// Processor time of the host after which a machine is taken to hang.
const CPU_LIMIT: Duration = Duration::from_mins(5);

/// A virtual machine to boot, and the script to run in it.
#[must_use = "it does nothing until it runs"]
#[derive(Clone, Debug)]
pub struct Vm {
    kernel: Kernel,
    cpu: Option<String>,
    memory_mib: u32,
    numa_nodes: u32,
    has_far_node: bool,
    cmdline_extra: String,
    contents: Vec<(Content, String)>,
    modules: Vec<String>,
    script: String,
    cpu_limit: Duration,
    instruction_ns_log2: u32,
}

#[derive(Clone, Debug)]
enum Content {
    Program(PathBuf),
    Tree(PathBuf),
    File(PathBuf),
    Text(String),
}

/// The results of a virtual machine.
#[derive(Clone, Debug)]
pub struct VmOutput {
    /// Everything that the kernel and the script printed on the console.
    pub console: String,
    pub stdout: String,
    pub exit_code: i32,
    /// The files that the script left under `/out`, by path below it.
    pub files: BTreeMap<String, Vec<u8>>,
    pub elapsed: Duration,
}

impl Vm {
    /// Returns a machine with one processor, 1 GiB, one node, everything that QEMU can emulate, and a script that does
    /// nothing.
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            cpu: None,
            memory_mib: 1024,
            numa_nodes: 1,
            has_far_node: false,
            cmdline_extra: String::new(),
            contents: Vec::new(),
            modules: Vec::new(),
            script: String::new(),
            cpu_limit: CPU_LIMIT,
            instruction_ns_log2: INSTRUCTION_NS_LOG2,
        }
    }

    /// Sets QEMU's processor and its features.
    pub fn cpu(mut self, model: &str) -> Self {
        self.cpu = Some(model.to_owned());
        self
    }

    /// Sets the memory, which is divided equally among the nodes.
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Sets the number of memory nodes; each has a processor of its own.
    pub fn numa_nodes(mut self, nodes: u32) -> Self {
        assert!((1..=8).contains(&nodes), "one to eight nodes");
        self.numa_nodes = nodes;
        self
    }

    /// Divides the memory among a node with two processors, and one with none that the firmware (ACPI's HMAT) declares
    /// slower. Linux 6.7 and later make a lower memory tier of it. In emulation it is as fast as the other.
    pub fn far_node(self) -> Self {
        Self {
            has_far_node: true,
            ..self.numa_nodes(2)
        }
    }

    /// Adds words to the kernel's command line.
    pub fn cmdline_extra(mut self, words: &str) -> Self {
        self.cmdline_extra.push(' ');
        self.cmdline_extra.push_str(words);
        self
    }

    /// Brings the product along, as `/bin/isotherm`.
    pub fn product(self) -> Result<Self> {
        let path = product::isotherm(self.kernel)?;
        Ok(self.built(path, "bin/isotherm"))
    }

    /// Brings along what does in the guest what busybox cannot, as `/bin/vm-guest`.
    pub fn guest_tool(self) -> Result<Self> {
        let path = product::guest_tool(self.kernel)?;
        Ok(self.built(path, "bin/vm-guest"))
    }

    /// A program for arm64 is static and has no debug information: it goes along as it is.
    fn built(self, path: PathBuf, guest: &str) -> Self {
        if self.kernel.is_arm64() {
            return self.file(path, guest);
        }
        self.program_at(path, guest)
    }

    /// Brings a program along as `/bin/NAME`, with the shared libraries that it needs.
    pub fn program(self, host: impl Into<PathBuf>, name: &str) -> Self {
        self.program_at(host, &format!("bin/{name}"))
    }

    /// Brings a program along as the path `guest`, with the shared libraries that it needs.
    pub fn program_at(self, host: impl Into<PathBuf>, guest: &str) -> Self {
        self.with(Content::Program(host.into()), guest)
    }

    /// Brings along all files below a directory.
    pub fn tree(self, host: impl Into<PathBuf>, guest: &str) -> Self {
        self.with(Content::Tree(host.into()), guest)
    }

    /// Brings a file along as it is.
    pub fn file(self, host: impl Into<PathBuf>, guest: &str) -> Self {
        self.with(Content::File(host.into()), guest)
    }

    /// Writes a file in the guest.
    pub fn text(self, guest: &str, content: &str) -> Self {
        self.with(Content::Text(content.to_owned()), guest)
    }

    fn with(mut self, content: Content, guest: &str) -> Self {
        self.contents.push((content, guest.to_owned()));
        self
    }

    /// Loads a module, and the ones it needs, before the script.
    pub fn module(mut self, name: &str) -> Self {
        self.modules.push(name.to_owned());
        self
    }

    /// Loads zram and its compressor. On 6.1 the compressor is a separate module, which modprobe would load.
    pub fn zram(self) -> Self {
        let vm = self.module("zram");
        match vm.kernel {
            Kernel::Debian61 | Kernel::Debian61Arm64 => vm.module("lzo_rle"),
            _ => vm,
        }
    }

    /// Sets the script, which busybox `sh` runs after the functions of `script.sh`. Files that it leaves under `/out`
    /// come back. `$other_cpu` is taskset's mask of the second processor, or of the only one.
    pub fn script(mut self, text: &str) -> Self {
        text.clone_into(&mut self.script);
        self
    }

    /// Sets the processor time of the host after which the machine is taken to hang and is killed.
    pub fn cpu_limit(mut self, limit: Duration) -> Self {
        self.cpu_limit = limit;
        self
    }

    /// Sets the speed of the guest: each instruction takes 2^`ns_log2` nanoseconds of virtual time.
    pub fn instruction_ns_log2(mut self, ns_log2: u32) -> Self {
        self.instruction_ns_log2 = ns_log2;
        self
    }

    /// Boots, runs the script, and fails unless its exit code is 0.
    pub fn run_ok(&self) -> Result<VmOutput> {
        let output = self.run()?;
        if output.exit_code == 0 {
            return Ok(output);
        }
        Err(VmError::Script {
            code: output.exit_code,
            tail: tail(&output.stdout, TAIL_LINES),
        })
    }

    /// Boots, runs the script, and returns its results, whatever its exit code.
    pub fn run(&self) -> Result<VmOutput> {
        let kernel = self.kernel.image()?;
        let work = tempfile::tempdir().map_err(VmError::io("make a directory in", "/tmp"))?;
        let initrd = work.path().join("initramfs");
        let archive = self
            .image(&kernel)?
            .archive()
            .map_err(VmError::io("write", &initrd))?;
        fs::write(&initrd, archive).map_err(VmError::io("write", &initrd))?;

        let arguments = self.arguments(&kernel, work.path())?;
        let slot = cache::slot()?;
        let program = if self.kernel.is_arm64() {
            "qemu-system-aarch64"
        } else {
            "qemu-system-x86_64"
        };
        let mut qemu = Qemu::start(program, &arguments, &work.path().join("stderr"))?;
        let ended = qemu.wait(self.cpu_limit);
        let spent = qemu.spent();
        drop((qemu, slot));

        let console = read_lossy(&work.path().join("console"));
        let ended = ended.map_err(VmError::io("wait for", "qemu"))?;
        let Some(status) = ended else {
            return Err(VmError::TimedOut {
                cpu: spent.cpu,
                wall: spent.wall,
                tail: tail(&console, TAIL_LINES),
            });
        };
        let answer = unpack(&work.path().join("results"))
            .and_then(|files| VmOutput::new(files, console.clone(), spent.wall));
        if let Some(dir) = std::env::var_os("ISOTHERM_VM_KEEP") {
            keep(work.path(), Path::new(&dir))?;
        }
        answer.map_err(|why| VmError::NoAnswer {
            how: format!(
                "{status}; {why} {}",
                read_lossy(&work.path().join("stderr")).trim()
            ),
            tail: tail(&console, TAIL_LINES),
        })
    }

    fn image(&self, kernel: &KernelImage) -> Result<Image> {
        let mut image = Image::new(&self.kernel.busybox()?)?;
        for (content, guest) in &self.contents {
            match content {
                Content::Program(host) => image.program(host, guest)?,
                Content::Tree(host) => image.tree(host, guest)?,
                Content::File(host) => image.file(host, guest)?,
                Content::Text(text) => image.content(guest, text.clone().into_bytes()),
            }
        }
        let mut modules = Vec::new();
        for name in &self.modules {
            module::resolve(kernel, name, &mut modules)?;
        }
        for (index, (name, content)) in modules.into_iter().enumerate() {
            // insmod takes them in the order of their names.
            image.content(&format!("modules/{index:02}-{name}.ko"), content);
        }
        let functions = include_str!("script.sh");
        let script = format!(
            "export other_cpu={}\n{functions}{}",
            self.numa_nodes.min(2),
            self.script
        );
        image.content("script", script.into_bytes());
        Ok(image)
    }

    fn arguments(&self, kernel: &KernelImage, work: &Path) -> Result<Vec<String>> {
        let path = |path: &Path| path.display().to_string();
        // panic=-1 restarts at once, which ends QEMU without results. The kernel's ciphers are not tested again at each
        // boot. When 6.1 boots, its first processor waits for the second, which QEMU 7.2 does not execute meanwhile in
        // virtual time. Therefore init brings it up.
        let processors = match self.kernel {
            Kernel::Debian61 | Kernel::Debian61Arm64 => "maxcpus=1",
            _ => "",
        };
        // An arm64 machine has one serial port; the second is a PCI device.
        let is_arm64 = self.kernel.is_arm64();
        let (machine, cpu, console, results) = if is_arm64 {
            ("virt", CPU_ARM64, "ttyAMA0", "ttyS0")
        } else {
            ("q35", CPU, "ttyS0", "ttyS1")
        };
        let machine = machine.to_owned() + if self.has_far_node { ",hmat=on" } else { "" };
        let cmdline = format!(
            "console={console} results={results} loglevel=4 panic=-1 {processors} cryptomgr.notests{}",
            self.cmdline_extra
        );
        let mut arguments = qemu::accelerator(self.instruction_ns_log2, is_arm64)?;
        arguments.extend(
            ["-no-user-config", "-nodefaults", "-no-reboot"]
                .into_iter()
                .chain(["-display", "none", "-machine", &machine])
                .map(str::to_owned),
        );
        let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        option("-cpu", self.cpu.as_deref().unwrap_or(cpu).to_owned());
        option("-smp", self.numa_nodes.to_string());
        option("-m", format!("{}M", self.memory_mib));
        option("-kernel", path(&kernel.vmlinuz));
        option("-initrd", path(&work.join("initramfs")));
        option("-append", cmdline);
        option("-serial", format!("file:{}", path(&work.join("console"))));
        let results = path(&work.join("results"));
        if is_arm64 {
            option("-chardev", format!("file,id=results,path={results}"));
            option("-device", "pci-serial,chardev=results".to_owned());
        } else {
            option("-serial", format!("file:{results}"));
        }
        if self.numa_nodes > 1 {
            let size = self.memory_mib / self.numa_nodes;
            for node in 0..self.numa_nodes {
                option(
                    "-object",
                    format!("memory-backend-ram,id=m{node},size={size}M"),
                );
                let processors = match (self.has_far_node, node) {
                    (false, _) => format!(",cpus={node}"),
                    (true, 0) => ",cpus=0-1,initiator=0".to_owned(),
                    (true, _) => ",initiator=0".to_owned(),
                };
                option(
                    "-numa",
                    format!("node,nodeid={node},memdev=m{node}{processors}"),
                );
            }
        }
        if self.has_far_node {
            for (node, ns, bandwidth) in [(0, 80, "20G"), (1, 250, "10G")] {
                let lb =
                    format!("hmat-lb,initiator=0,target={node},hierarchy=memory,data-type=access-");
                option("-numa", format!("{lb}latency,latency={ns}"));
                option("-numa", format!("{lb}bandwidth,bandwidth={bandwidth}"));
            }
        }
        Ok(arguments)
    }
}

impl VmOutput {
    fn new(
        mut received: BTreeMap<String, Vec<u8>>,
        console: String,
        elapsed: Duration,
    ) -> Result<Self, String> {
        let mut take = |name: &str| -> Result<String, String> {
            let bytes = received
                .remove(name)
                .ok_or(format!("no {name} came back;"))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let code = take("run/code")?;
        let stdout = take("run/stdout")?;
        Ok(Self {
            console,
            stdout,
            exit_code: code
                .trim()
                .parse()
                .map_err(|_| format!("the exit code is `{}`;", code.trim()))?,
            files: received
                .into_iter()
                .filter_map(|(path, content)| {
                    Some((path.strip_prefix("out/")?.to_owned(), content))
                })
                .collect(),
            elapsed,
        })
    }

    /// Returns a file from `/out`, as text.
    pub fn text(&self, name: &str) -> Result<String> {
        self.bytes(name)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Parses the file `NAME.json` from `/out`.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        serde_json::from_slice(self.bytes(&format!("{name}.json"))?)
            .map_err(|e| VmError::Wrong(format!("{name}.json: {e}")))
    }

    /// Reads the number in the file `NAME.txt` from `/out`.
    pub fn number(&self, name: &str) -> Result<u64> {
        let text = self.text(&format!("{name}.txt"))?;
        let number = text.trim().parse();
        number.map_err(|_| VmError::Wrong(format!("{name}.txt holds no number: {text}")))
    }

    /// Returns a file from `/out`.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        self.files.get(name).map(Vec::as_slice).ok_or_else(|| {
            VmError::Wrong(format!(
                "the script left no /out/{name}; it left {:?} and said:\n{}",
                self.files.keys().collect::<Vec<_>>(),
                tail(&self.stdout, TAIL_LINES)
            ))
        })
    }
}

/// Unpacks the gzipped tar stream that the guest sent. Returns its regular files by path.
fn unpack(stream: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let wrong = |e: io::Error| format!("the results cannot be unpacked: {e};");
    let bytes = fs::read(stream).map_err(wrong)?;
    let mut plain = Vec::new();
    // The stream is read to its end first, since the checksum is compared only there.
    flate2::read::GzDecoder::new(bytes.as_slice())
        .read_to_end(&mut plain)
        .map_err(wrong)?;
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(plain.as_slice())
        .entries()
        .map_err(wrong)?
    {
        let mut entry = entry.map_err(wrong)?;
        if entry.header().entry_type().is_file() {
            let path = entry.path().map_err(wrong)?.to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).map_err(wrong)?;
            files.insert(path, content);
        }
    }
    Ok(files)
}

/// Copies a machine's console and its results, a gzipped tar, into `dir` for inspection.
fn keep(work: &Path, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(VmError::io("make", dir))?;
    for (from, to) in [("console", "console.txt"), ("results", "results.tar.gz")] {
        let to = dir.join(to);
        fs::copy(work.join(from), &to).map_err(VmError::io("write", to))?;
    }
    Ok(())
}

fn read_lossy(path: &Path) -> String {
    fs::read(path).map_or_else(
        |_| String::new(),
        |bytes| String::from_utf8_lossy(&bytes).replace('\r', ""),
    )
}
