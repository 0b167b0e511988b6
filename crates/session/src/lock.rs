//! Lock files. They are held by flock, so that a lock ends with its owner, even after a crash.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(5);

/// Mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Shared with other owners of shared locks.
    Shared,
    /// Exclusive; the file then holds our process id.
    Alone,
}

/// Locks the file. If another process holds the lock, returns its process id, as far as known.
pub fn lock(path: &Path, how: Lock) -> io::Result<Result<File, Option<u32>>> {
    let mut nr_tries = 0;
    loop {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        let locked = match how {
            Lock::Shared => file.try_lock_shared(),
            Lock::Alone => file.try_lock(),
        };
        match locked {
            Ok(()) => {}
            // Another process may hold the lock briefly to check whether the file is in use.
            Err(TryLockError::WouldBlock) if nr_tries < TRIES => {
                nr_tries += 1;
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.take(32).read_to_string(&mut text).ok();
                return Ok(Err(text.trim().parse().ok()));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Its last owner may have removed it between the opening and the locking.
        let is_there = fs::metadata(path).is_ok_and(|there| {
            file.metadata()
                .is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        });
        if !is_there {
            continue;
        }
        if how == Lock::Alone {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())?;
        }
        return Ok(Ok(file));
    }
}
