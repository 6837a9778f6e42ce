//! Leases: how processes of one node tell each other which regions are in use, with nothing but files and their locks.
//!
//! A copy on a device takes no part of the process that owns the other end. So the owner of a region cannot know by itself
//! that another process uses it (contract E3), and the user cannot know that the owner has taken it back or is gone (E4).
//!
//! # Protocol
//!
//! 1. An owner has a folder of a random name. In it, the file `alive` is locked exclusively by the owner for as long as it lives;
//!    the kernel unlocks it when the process ends in whatever way. It gets its name only when it is locked.
//! 2. Each region that peers may use has a file, named by its key.
//! 3. A user takes a shared lock on the region's file while its copies are under way, and looks afterwards whether the
//!    file still has its name. If it has not, the region is gone.
//! 4. To take a region back, the owner removes the file's name first and then waits until it gets the lock exclusively. Whoever
//!    looks (3) and still sees the name has taken the lock before the owner asks for it; whoever comes later sees that the name
//!    is gone. No stream of new users can starve the owner.
//! 5. Whoever gets a shared lock on `alive` knows that the owner is gone.
//! 6. Folders of owners that are gone are removed by the next owner that starts.
//!
//! The locks are advice among the processes of one user. They keep nobody out, and need not: see the encoding's words on handles.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use mori_core::{Clock, Error, ErrorKind, Result};

use crate::blob::{Key, hex};
use crate::sync::lock;

const PREFIX: &str = "mori-xgmi-";
const ALIVE: &str = "alive";

/// The owner's side.
#[derive(Debug)]
pub(crate) struct Board {
    folder: PathBuf,
    _alive: File,
}

impl Board {
    /// Makes the folder, and removes those that dead owners have left.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the folder above cannot be written to.
    pub(crate) fn create(above: &Path, incarnation: &Key) -> Result<Self> {
        sweep(above);
        let folder = above.join(format!("{PREFIX}{}", hex(incarnation)));
        let failed = |error: io::Error| {
            Error::io(
                ErrorKind::Unavailable,
                format!(
                    "cannot make {}; name a folder in memory with XgmiConfig::lease_dir",
                    folder.display()
                ),
                &error,
            )
        };
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
        let unnamed = folder.join("starting");
        let made = create(&unnamed).and_then(|alive| {
            alive.lock()?;
            fs::rename(&unnamed, folder.join(ALIVE))?;
            Ok(alive)
        });
        match made {
            Ok(alive) => Ok(Self { folder, _alive: alive }),
            Err(error) => {
                let failed = failed(error);
                let _ = fs::remove_dir_all(&folder);
                Err(failed)
            }
        }
    }

    /// The folder, for peers.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Offers a region.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ResourceExhausted`] if the file cannot be made.
    pub(crate) fn offer(&self, key: &Key) -> Result<()> {
        let path = self.folder.join(hex(key));
        create(&path).map(drop).map_err(|error| {
            Error::io(ErrorKind::ResourceExhausted, format!("cannot make {}", path.display()), &error)
        })
    }

    /// Takes a region back, and waits for at most `bound` until nobody uses it. Returns whether that is so.
    pub(crate) fn take_back(&self, key: &Key, bound: Duration) -> bool {
        let path = self.folder.join(hex(key));
        let Ok(file) = File::open(&path) else { return true };
        // Step 4: the name first.
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "a lease could not be removed");
        }
        let clock = Clock::system();
        let deadline = clock.deadline(bound);
        let mut pause = Duration::from_micros(50);
        loop {
            match file.try_lock() {
                Ok(()) => return true,
                Err(TryLockError::Error(error)) => {
                    tracing::warn!(path = %path.display(), %error, "a lease could not be locked");
                    return false;
                }
                Err(TryLockError::WouldBlock) if deadline.passed(clock.now()) => return false,
                Err(TryLockError::WouldBlock) => {
                    std::thread::park_timeout(pause);
                    pause = (pause * 2).min(Duration::from_millis(5));
                }
            }
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // First the name of the sign of life, so that nobody takes a folder that is half removed for a live one.
        let _ = fs::remove_file(self.folder.join(ALIVE));
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::debug!(path = %self.folder.display(), %error, "a lease folder stays behind");
        }
    }
}

fn create(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Step 6.
fn sweep(above: &Path) {
    let Ok(entries) = fs::read_dir(above) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // A folder without the sign of life is one that starts or ends just now, or another user's.
        let Ok(alive) = File::open(entry.path().join(ALIVE)) else { continue };
        if alive.try_lock_shared().is_ok() {
            tracing::debug!(path = %entry.path().display(), "removing what a dead process left");
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The user's view of an owner.
#[derive(Debug)]
pub(crate) struct Neighbour {
    folder: PathBuf,
    alive: File,
}

impl Neighbour {
    /// Opens an owner's folder.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerLost`] if it is not there, which is so when the owner is gone, or keeps its folder elsewhere.
    pub(crate) fn open(folder: &str) -> Result<Self> {
        let folder = PathBuf::from(folder);
        let alive = File::open(folder.join(ALIVE)).map_err(|error| {
            Error::io(
                ErrorKind::PeerLost,
                format!(
                    "cannot open the peer's lease folder {}: the peer has ended, or runs where this folder is another one (containers must share it)",
                    folder.display()
                ),
                &error,
            )
        })?;
        Ok(Self { folder, alive })
    }

    /// Whether the owner lives (step 5).
    pub(crate) fn is_alive(&self) -> bool {
        // A name that is gone is the sign of an orderly end, which comes a moment before the lock goes.
        if self.alive.metadata().is_ok_and(|found| found.nlink() == 0) {
            return false;
        }
        match self.alive.try_lock_shared() {
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(_)) => false,
            Ok(()) => {
                let _ = self.alive.unlock();
                false
            }
        }
    }

    /// Opens a region's lease, without taking it. `None` if the region is not offered (any more).
    pub(crate) fn lease(&self, key: &Key) -> Option<Lease> {
        let file = File::open(self.folder.join(hex(key))).ok()?;
        Some(Lease { file, users: Mutex::new(0) })
    }
}

/// A region's lease.
#[derive(Debug)]
pub(crate) struct Lease {
    file: File,
    users: Mutex<usize>,
}

impl Lease {
    /// Whether the region is offered still.
    pub(crate) fn is_offered(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() > 0)
    }

    /// Begins a use of the region (step 3); says whether it is offered still. If so, [`leave`](Lease::leave) ends the use.
    pub(crate) fn enter(&self) -> bool {
        let mut users = lock(&self.users);
        // The owner locks exclusively only after the name is gone, so a lock that is not to be had is an answer.
        if *users == 0 && self.file.try_lock_shared().is_err() {
            return false;
        }
        if !self.is_offered() {
            if *users == 0 {
                let _ = self.file.unlock();
            }
            return false;
        }
        *users += 1;
        true
    }

    /// Ends a use.
    pub(crate) fn leave(&self) {
        let mut users = lock(&self.users);
        *users = users.saturating_sub(1);
        if *users == 0 {
            let _ = self.file.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(above: &tempfile::TempDir, number: u8) -> Board {
        Board::create(above.path(), &[number; 16]).unwrap()
    }

    #[test]
    fn a_region_in_use_is_taken_back_only_when_it_is_quiet() {
        let above = tempfile::tempdir().unwrap();
        let owner = board(&above, 1);
        let key = [9; 16];
        owner.offer(&key).unwrap();
        let user = Neighbour::open(owner.folder().to_str().unwrap()).unwrap();
        let lease = user.lease(&key).unwrap();
        assert!(lease.enter() && lease.enter());
        assert!(!owner.take_back(&key, Duration::from_millis(2)), "it is in use");
        assert!(!lease.enter(), "the region is taken back, so there are no new uses");
        lease.leave();
        lease.leave();
        assert!(!lease.is_offered() && user.lease(&key).is_none());

        owner.offer(&key).unwrap();
        let lease = user.lease(&key).unwrap();
        assert!(lease.enter());
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| owner.take_back(&key, Duration::from_secs(60)));
            while lease.is_offered() {
                std::thread::yield_now();
            }
            lease.leave();
            assert!(taking.join().unwrap());
        });
    }

    #[test]
    fn an_owner_that_ends_is_noticed_and_swept() {
        let above = tempfile::tempdir().unwrap();
        let owner = board(&above, 1);
        let user = Neighbour::open(owner.folder().to_str().unwrap()).unwrap();
        assert!(user.is_alive() && user.is_alive());
        drop(owner);
        assert!(!user.is_alive());
        assert_eq!(fs::read_dir(above.path()).unwrap().count(), 0);

        // One that died: its folder is there, its lock is not.
        let dead = above.path().join(format!("{PREFIX}dead"));
        fs::create_dir(&dead).unwrap();
        create(&dead.join(ALIVE)).unwrap();
        let user = Neighbour::open(dead.to_str().unwrap()).unwrap();
        assert!(!user.is_alive());
        let other = board(&above, 2);
        assert!(!dead.exists(), "what the dead left is removed");
        let third = board(&above, 3);
        assert!(other.folder().exists() && third.folder().exists(), "the living keep theirs");
        let error = Neighbour::open(dead.to_str().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost);
    }

    #[test]
    fn a_folder_that_cannot_be_made_says_what_to_do() {
        let error = Board::create(Path::new("/nonexistent"), &[1; 16]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("lease_dir"), "{error}");
    }
}
