//! Kernel modules: found in the package's tree together with those they need.
//!
//! An unpacked package has no `modules.dep` (depmod writes that when it is installed), so what a
//! module needs is read from the module itself: its `.modinfo` strings hold `depends=a,b`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Result, VmError, output};
use crate::kernel::KernelImage;

pub(crate) type Module = (String, Vec<u8>);

/// Appends the module called `name` to `chain`, after the ones it needs that are not there yet.
pub(crate) fn resolve(kernel: &KernelImage, name: &str, chain: &mut Vec<Module>) -> Result<()> {
    if chain.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    let path = find(&kernel.modules, name)?.ok_or_else(|| {
        VmError::Wrong(format!(
            "kernel {} has no module `{name}`; it may be built in",
            kernel.release
        ))
    })?;
    let content = decompressed(&path)?;
    for needed in depends(&content) {
        resolve(kernel, &needed, chain)?;
    }
    chain.push((name.to_owned(), content));
    Ok(())
}

fn find(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(dir).map_err(VmError::io("list", dir))? {
        let path = entry.map_err(VmError::io("list", dir))?.path();
        if path.is_dir() {
            if let Some(found) = find(&path, name)? {
                return Ok(Some(found));
            }
        } else if let Some(file) = path.file_name().and_then(|f| f.to_str()) {
            // Files may spell with `-` what `depends` spells with `_`.
            let stem = file.strip_suffix(".xz").unwrap_or(file).strip_suffix(".ko");
            if stem.is_some_and(|stem| stem.replace('-', "_") == name) {
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}

fn depends(module: &[u8]) -> Vec<String> {
    module
        .split(|byte| *byte == 0)
        .find_map(|string| string.strip_prefix(b"depends="))
        .map(String::from_utf8_lossy)
        .map(|list| {
            let names = list.split(',').filter(|name| !name.is_empty());
            names.map(|name| name.replace('-', "_")).collect()
        })
        .unwrap_or_default()
}

fn decompressed(module: &Path) -> Result<Vec<u8>> {
    if module.extension().is_none_or(|e| e != "xz") {
        return fs::read(module).map_err(VmError::io("read", module));
    }
    output(Command::new("xz").arg("-dc").arg(module))
}

#[cfg(test)]
mod tests {
    use super::depends;

    #[test]
    fn dependencies_are_read_from_modinfo() {
        let check = |module: &[u8], want: &[&str]| assert_eq!(depends(module), want);
        check(
            b"\x7fELF\0license=GPL\0depends=zsmalloc,lz4-compress\0",
            &["zsmalloc", "lz4_compress"],
        );
        check(b"\x7fELF\0depends=\0", &[]);
        check(b"\x7fELF", &[]);
    }
}
