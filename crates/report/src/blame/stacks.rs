//! The record's stacks, and what their frames are called.

use isotherm_record::{FrameTable, StackFrame, StackId, StackNode, StackSamples, printable};

/// What a frame is called that nobody knows the caller of.
pub(super) const CUT: &str = "[unknown caller]";
/// Code that was made at run time, and that nobody has a name for.
const ANONYMOUS: &str = "[code made at run time]";
/// A stack of which nothing is known.
pub(super) const NOTHING: &str = "[unknown stack]";

/// A function on a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Function {
    pub(super) name: String,
    /// The file's name, without directories; `None` of code that was made at run time.
    pub(super) library: Option<String>,
    /// Where in the sources.
    pub(super) line: Option<(String, u32)>,
}

/// Everything that stacks name.
#[derive(Clone, Debug, Default)]
pub(super) struct StackTable {
    pub(super) frames: FrameTable,
    nodes: Vec<StackNode>,
    pub(super) threads: Vec<String>,
}

impl StackTable {
    /// Takes what an item brings. The reader has checked that it fits what came before.
    pub(super) fn extend(&mut self, item: &StackSamples) {
        self.frames.extend(item);
        self.nodes.extend(&item.stacks);
        let threads = item.threads.iter().map(|name| printable(name).into_owned());
        self.threads.extend(threads);
    }

    /// The functions of a stack, the outermost first.
    pub(super) fn functions(&self, stack: StackId) -> Vec<Function> {
        let mut functions = Vec::new();
        let mut at = stack;
        while let Some(node) = (at.0 as usize)
            .checked_sub(1)
            .and_then(|at| self.nodes.get(at))
        {
            self.push(node.frame, &mut functions);
            at = node.caller;
        }
        if functions.is_empty() {
            functions.push(Function::without_file(NOTHING.to_owned()));
        }
        functions.reverse();
        functions
    }

    /// Appends a frame's functions, the innermost first.
    fn push(&self, frame: u32, functions: &mut Vec<Function>) {
        match self.frames.frames.get(frame as usize) {
            Some(StackFrame::File { module, offset }) => {
                let path = self
                    .frames
                    .modules
                    .get(*module as usize)
                    .map_or("", |module| &module.path);
                let library = library_of(path);
                let Some(symbol) = self.frames.symbols.get(&frame) else {
                    functions.push(Function {
                        name: format!("{library}+{offset:#x}"),
                        library: Some(library),
                        line: None,
                    });
                    return;
                };
                let names = symbol.inlined.iter().rev().chain([&symbol.name]);
                let mut line = symbol.file.clone().zip(symbol.line);
                for name in names {
                    functions.push(Function {
                        name: printable(name).into_owned(),
                        library: Some(library.clone()),
                        line: line.take(),
                    });
                }
            }
            Some(StackFrame::Named(name)) => functions.push(Function::without_file(jit_name(name))),
            Some(StackFrame::Unnamed { .. }) => {
                let symbol = self.frames.symbols.get(&frame);
                let name =
                    symbol.map_or_else(|| ANONYMOUS.to_owned(), |symbol| jit_name(&symbol.name));
                functions.push(Function::without_file(name));
            }
            Some(StackFrame::Cut) | None => functions.push(Function::without_file(CUT.to_owned())),
        }
    }
}

impl Function {
    fn without_file(name: String) -> Self {
        Self {
            name,
            library: None,
            line: None,
        }
    }

    /// Whether it only carries out what another function wants: allocators, copies, run times.
    pub(super) fn is_helper(&self) -> bool {
        let Some(library) = &self.library else {
            return self.name.starts_with('[')
                || RUNTIME_CODE.iter().any(|prefix| self.name.contains(prefix));
        };
        // Instances of templates begin with what they return.
        let name = self.name.split(['<', '(']).find(|part| !part.is_empty());
        let name = name.unwrap_or_default();
        let name = name.rsplit(' ').next().unwrap_or(name);
        HELPER_LIBRARIES
            .iter()
            .any(|prefix| library.starts_with(prefix))
            || HELPER_PATHS.iter().any(|prefix| name.starts_with(prefix))
            || HELPERS.contains(&name)
    }

    /// Whether it is of a program that runs another language.
    pub(super) fn is_run_time(&self) -> bool {
        let library = self.library.as_deref().unwrap_or_default();
        RUN_TIMES.iter().any(|prefix| library.starts_with(prefix))
            || self.is_helper()
                && ["v8::", "Builtins_"]
                    .iter()
                    .any(|part| self.name.contains(part))
    }
}

/// Programs that run other languages.
const RUN_TIMES: [&str; 3] = ["libpython", "python3", "libjvm"];

/// Libraries whose functions are called for others: C's and C++'s, allocators, and programs that run other languages.
const HELPER_LIBRARIES: [&str; 18] = [
    "libc.so",
    "libc-",
    "libc.musl",
    "ld-",
    "libstdc++",
    "libc++",
    "libgcc_s",
    "libm.so",
    "libpthread",
    "libgomp",
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
    "libpython",
    "python3",
    "libjvm",
    "libjli",
    "[vdso]",
];
/// What is called for others and linked into programs, by where it belongs.
const HELPER_PATHS: [&str; 19] = [
    "v8::",
    "heap::base::",
    "cppgc::",
    "node::",
    "Builtins_",
    "std::",
    "__gnu_cxx::",
    "alloc::",
    "core::",
    "hashbrown::",
    "__rust",
    "__rdl",
    "runtime.",
    "internal/",
    "je_",
    "tc_",
    "mi_",
    "__mem",
    "__libc",
];
/// The same, by name.
const HELPERS: [&str; 14] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "memset",
    "memcpy",
    "memmove",
    "mmap",
    "operator new",
    "new",
    "delete",
    "aligned_alloc",
    "posix_memalign",
    "_start",
];
/// Code that was made at run time for others.
const RUNTIME_CODE: [&str; 6] = [
    "java.",
    "jdk.",
    "sun.",
    "Interpreter",
    "StubRoutines",
    " (node:",
];

/// What Python's trampolines (`py::function:file`) and V8's functions (`JS:*function file:line:column`) are called.
/// Others are left as they are.
fn jit_name(name: &str) -> String {
    let name = printable(name);
    if let Some(name) = name.strip_prefix("JS:").and_then(javascript_name) {
        return name;
    }
    let python = name
        .strip_prefix("py::")
        .and_then(|rest| rest.split_once(':'));
    match python {
        Some((function, file)) => format!("{function} ({file})"),
        None => name.into_owned(),
    }
}

/// Of V8: how it is compiled is left out, as it changes while the program runs; and so is the column.
fn javascript_name(name: &str) -> Option<String> {
    let name = name.trim_start_matches(['~', '*', '^', '+']);
    let files = [" /", " file:", " node:"].iter();
    let at = files.filter_map(|start| name.find(start)).min();
    let (function, place) = name.split_at_checked(at.or_else(|| name.rfind(' '))?)?;
    let (place, _column) = place.rsplit_once(':')?;
    let function = if function.is_empty() {
        "(anonymous)"
    } else {
        function
    };
    Some(format!("{function} ({})", place.trim_start()))
}

fn library_of(path: &str) -> String {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    printable(path.rsplit('/').next().unwrap_or(path)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_jits_are_called_as_in_the_source() {
        let check = |name: &str, wanted: &str| assert_eq!(jit_name(name), wanted);
        check("py::load:/srv/app.py", "load (/srv/app.py)");
        check("JS:*loadRows /srv/n.js:2:18", "loadRows (/srv/n.js:2)");
        check("JS:~ /srv/my app.js:1:1", "(anonymous) (/srv/my app.js:1)");
        check("JS:~odd", "JS:~odd");
        check("JS: ::", "(anonymous) (:)");
        check("void Service.fillCache()", "void Service.fillCache()");
    }

    #[test]
    fn what_v8_does_for_a_function_is_that_functions() {
        let of = |name: &str, library: Option<&str>| Function {
            library: library.map(str::to_owned),
            ..Function::without_file(name.to_owned())
        };
        let runtime = of("void v8::internal::Heap::Fill<int>(int)", Some("node"));
        assert!(runtime.is_helper() && runtime.is_run_time());
        assert!(of("Builtins_JSEntry", Some("node")).is_helper());
        assert!(of("load (node:internal/modules:3)", None).is_helper());
        assert!(!of("loadRows (/srv/n.js:2)", None).is_helper());
        assert!(!of("nodes_of(int)", Some("app")).is_helper());
    }
}
