//! Errors that are caused by missing privileges, for callers that distinguish them.

use std::io;

use isotherm_linux::host::NoProbe;
use nix::errno::Errno;

/// Whether `error` comes from a missing privilege of this user.
pub fn lacks_privilege(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let is_io = cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        let is_errno = cause
            .downcast_ref::<Errno>()
            .is_some_and(|errno| matches!(errno, Errno::EPERM | Errno::EACCES));
        let is_named = matches!(
            cause.downcast_ref(),
            Some(NoProbe::Lacking {
                is_privilege: true,
                ..
            })
        );
        is_io || is_errno || is_named
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::*;

    #[test]
    fn it_is_found_beneath_what_was_tried() {
        let refused = io::Error::from_raw_os_error(libc::EACCES);
        let error = Err::<(), _>(refused).context("cannot read it");
        assert!(lacks_privilege(&error.expect_err("refused")));
        let lacking = NoProbe::Lacking {
            what: "without CAP_BPF".to_owned(),
            is_privilege: true,
        };
        assert!(lacks_privilege(&anyhow::Error::from(lacking)));
        assert!(!lacks_privilege(&anyhow!("no process is named 'x'")));
    }
}
