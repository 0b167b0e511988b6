//! The record's stacks, and the names of their frames.

use isotherm_record::{FrameTable, StackFrame, StackId, StackNode, StackSamples, printable};

pub(super) const CUT: &str = "[unknown caller]";
const ANONYMOUS: &str = "[code made at run time]";
pub(super) const NOTHING: &str = "[unknown stack]";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Function {
    pub(super) name: String,
    /// Name of the file, without directories; `None` for code that was generated at run time.
    pub(super) library: Option<String>,
    pub(super) line: Option<(String, u32)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct StackTable {
    pub(super) frames: FrameTable,
    nodes: Vec<StackNode>,
    pub(super) threads: Vec<String>,
}

impl StackTable {
    /// Adds the definitions of an item. The reader has checked that it fits the items before.
    pub(super) fn extend(&mut self, item: &StackSamples) {
        self.frames.extend(item);
        self.nodes.extend(&item.stacks);
        let threads = item.threads.iter().map(|name| printable(name).into_owned());
        self.threads.extend(threads);
    }

    /// Returns the functions of a stack, the outermost first.
    pub(super) fn functions(&self, stack: StackId) -> Vec<Function> {
        let mut functions = Vec::new();
        let mut at = stack;
        let node = |at: StackId| self.nodes.get((at.0 as usize).checked_sub(1)?);
        while let Some(node) = node(at) {
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
        let symbol = self.frames.symbols.get(&frame);
        let name = match self.frames.frames.get(frame as usize) {
            Some(StackFrame::File { module, offset }) => {
                let module = self.frames.modules.get(*module as usize);
                let library = library_of(module.map_or("", |module| &module.path));
                let Some(symbol) = symbol else {
                    functions.push(Function {
                        name: format!("{library}+{offset:#x}"),
                        library: Some(library),
                        line: None,
                    });
                    return;
                };
                let mut line = symbol.file.clone().zip(symbol.line);
                for name in symbol.inlined.iter().rev().chain([&symbol.name]) {
                    functions.push(Function {
                        name: printable(name).into_owned(),
                        library: Some(library.clone()),
                        line: line.take(),
                    });
                }
                return;
            }
            Some(StackFrame::Named(name)) => jit_name(name),
            Some(StackFrame::Unnamed { .. }) => match symbol {
                Some(symbol) => jit_name(&symbol.name),
                None => ANONYMOUS.to_owned(),
            },
            Some(StackFrame::Cut) | None => CUT.to_owned(),
        };
        functions.push(Function::without_file(name));
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

    /// Returns whether the function only works for its callers: allocators, copy functions, run times.
    fn is_helper(&self) -> bool {
        let Some(library) = &self.library else {
            return self.name.starts_with('[')
                || RUNTIME_CODE.iter().any(|prefix| self.name.contains(prefix));
        };
        let name = self.name_without_types();
        begins_with(library, HELPER_LIBRARIES)
            || begins_with(library, RUN_TIMES)
            || begins_with(name, HELPER_PATHS)
            || HELPERS.split(' ').any(|helper| helper == name)
    }

    /// Returns whether it belongs to a program that runs another language.
    fn is_run_time(&self) -> bool {
        let library = self.library.as_deref().unwrap_or_default();
        let is_v8 = self.name.contains("v8::") || self.name.contains("Builtins_");
        begins_with(library, RUN_TIMES) || is_v8 && self.is_helper()
    }

    /// Returns whether it allocates for the rest of its run time, interprets, or has no name.
    fn says_nothing(&self) -> bool {
        let library = self.library.as_deref().unwrap_or_default();
        let offset = self.name.strip_prefix(library);
        let name = self.name_without_types();
        offset.is_some_and(|offset| offset.starts_with("+0x"))
            || RUN_TIME_HELPERS
                .iter()
                .any(|helpers| begins_with(name, helpers))
    }

    fn name_without_types(&self) -> &str {
        // Instances of templates begin with their return type.
        let name = self.name.split(['<', '(']).find(|part| !part.is_empty());
        let name = name.unwrap_or_default();
        name.rsplit(' ').next().unwrap_or(name)
    }
}

/// Returns the function of a stack that requested the memory: the innermost that is no helper. In a stack of run-time
/// functions alone, it is the innermost one with a name that neither allocates nor interprets.
pub(super) fn owner(functions: &[Function]) -> Option<&Function> {
    let innermost = |is: fn(&Function) -> bool| functions.iter().rfind(|function| is(function));
    innermost(|function| !function.is_helper())
        .or_else(|| innermost(|f| f.is_run_time() && !f.says_nothing()))
        .or_else(|| innermost(Function::is_run_time))
        .or(functions.last())
}

pub(super) fn is_python(library: &str) -> bool {
    begins_with(library, PYTHON)
}

/// Returns whether a name begins with one of some prefixes, which spaces separate.
fn begins_with(name: &str, prefixes: &str) -> bool {
    let mut prefixes = prefixes.split(' ');
    prefixes.any(|prefix| name.starts_with(prefix))
}

const PYTHON: &str = "libpython python3";
const RUN_TIMES: &str = "libpython python3 libjvm";

/// Libraries whose functions work for their callers: C's and C++'s, and allocators.
const HELPER_LIBRARIES: &str = "libc.so libc- libc.musl ld- libstdc++ libc++ libgcc_s libm.so libpthread libgomp \
    libjemalloc libtcmalloc libmimalloc libtbbmalloc libjli [vdso]";
/// Prefixes of helper functions that are linked into programs, by their namespace.
const HELPER_PATHS: &str = "v8:: heap::base:: cppgc:: node:: Builtins_ std:: __gnu_cxx:: alloc:: core:: hashbrown:: \
    __rust __rdl __rg_ runtime. internal/ je_ _rjem_ tc_ tcmalloc:: mi_ _mi_ g_malloc g_realloc g_slice_ g_try_ \
    __mem __libc __mmap _int_";
/// Names of helper functions; `operator new` is `new` ([`Function::name_without_types`]).
const HELPERS: &str = "malloc calloc realloc reallocarray free memset memcpy memmove bcopy bzero strdup strndup mmap \
    mremap sbrk sysmalloc new delete aligned_alloc memalign posix_memalign valloc _start";
/// Functions of run times that allocate or interpret, for any purpose.
const RUN_TIME_HELPERS: [&str; 4] = [
    // CPython's allocators.
    "_PyMem_ PyMem_ _PyObject_Malloc _PyObject_Calloc _PyObject_Realloc PyObject_Malloc PyObject_Calloc \
     PyObject_Realloc _PyObject_New _PyObject_GC_ PyObject_GC_ PyType_GenericAlloc PyType_GenericNew \
     _PyType_AllocNoTrack pymalloc_ new_arena allocate_from_new_pool",
    // mimalloc, in CPython since 3.13.
    "mi_ _mi_",
    // CPython's interpreter, and its calls.
    "_PyEval_ PyEval_ _PyFunction_Vectorcall _PyVectorcall_ PyVectorcall_ _PyObject_Call PyObject_Call \
     _PyObject_MakeTpCall _PyObject_Vectorcall PyObject_Vectorcall method_vectorcall cfunction_ type_call slot_tp_ \
     pymain_ Py_RunMain Py_BytesMain _PyRun_ PyRun_ run_mod run_eval_code_obj main _start",
    // HotSpot's allocations, and its calls.
    "MemAllocator:: CollectedHeap:: InterpreterRuntime:: OptoRuntime:: JavaCalls::",
];
/// Helper code that was generated at run time.
const RUNTIME_CODE: [&str; 6] = [
    "java.",
    "jdk.",
    "sun.",
    "Interpreter",
    "StubRoutines",
    " (node:",
];

/// Formats the names of Python's trampolines (`py::function:file`) and V8's functions
/// (`JS:*function file:line:column`). Other names stay as they are.
fn jit_name(name: &str) -> String {
    let name = printable(name);
    if let Some(name) = name.strip_prefix("JS:").and_then(javascript_name) {
        return name;
    }
    let python = name.strip_prefix("py::");
    match python.and_then(|rest| rest.split_once(':')) {
        Some((function, file)) => format!("{function} ({file})"),
        None => name.into_owned(),
    }
}

/// Formats a name of V8. It omits the compilation mark, which changes while the program runs, and the column.
fn javascript_name(name: &str) -> Option<String> {
    let name = name.trim_start_matches(['~', '*', '^', '+']);
    let files = [" /", " file:", " node:"].iter();
    let at = files.filter_map(|start| name.find(start)).min();
    let (function, place) = name.split_at_checked(at.or_else(|| name.rfind(' '))?)?;
    let (place, _column) = place.rsplit_once(':')?;
    let function = Some(function).filter(|name| !name.is_empty());
    let function = function.unwrap_or("(anonymous)");
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
    fn memory_of_an_interpreter_is_laid_to_what_it_is_for() {
        let check = |names: &[&str], wanted: &str| {
            let of = |name: &&str| Function {
                library: Some("python3.11".to_owned()),
                ..Function::without_file((*name).to_owned())
            };
            let functions: Vec<Function> = names.iter().map(of).collect();
            let owner = owner(&functions).expect("there are functions");
            assert_eq!(owner.name, wanted);
        };
        let begin = ["main", "Py_BytesMain", "_PyEval_EvalFrameDefault"];
        let with = |rest: &[&'static str]| [&begin[..], rest].concat();
        let bytes = "PyBytes_FromStringAndSize";
        let unnamed = with(&[bytes, "_PyObject_Malloc", "python3.11+0x5f10"]);
        check(&unnamed, bytes);
        check(&with(&["list_resize", "PyMem_Realloc"]), "list_resize");
        check(&with(&["_PyObject_Malloc"]), "_PyObject_Malloc");
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
