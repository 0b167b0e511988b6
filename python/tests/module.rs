//! The shared library that pytest loads: where it is a dependency of a test, it is built with the features that all
//! tests are built with, so nothing is compiled twice for it.

use std::path::Path;

#[test]
fn the_module_is_built_and_exports_its_init_function() {
    let test = std::env::current_exe().expect("this test's own path");
    let library = test.with_file_name("lib_isotherm.so");
    let bytes = std::fs::read(&library)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", library.display()));
    let name = b"PyInit__isotherm";
    assert!(bytes.windows(name.len()).any(|bytes| bytes == name));
}

#[test]
fn what_is_installed_is_this_module() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let project = std::fs::read_to_string(folder.join("pyproject.toml")).expect("it is here");
    assert!(project.contains("module-name = \"isotherm._isotherm\""));
}
