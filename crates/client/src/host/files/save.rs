//! Writes a file completely or not at all, in an open directory.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, RawMode, Stat, Uid, fchmod, fchown, fstat, fsync, ftruncate, mkdirat, openat,
    renameat, unlinkat,
};
use rustix::io::Errno;

use super::walk::PASS_THROUGH;

/// Creates the directories `names`, each in the previous one, and opens the last. Accepts an existing
/// directory, but not a link.
pub(super) fn directories(top: &OwnedFd, names: &[OsString]) -> Result<Option<OwnedFd>, Errno> {
    let mut made: Option<OwnedFd> = None;
    for name in names {
        let above = made.as_ref().unwrap_or(top);
        match mkdirat(above, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = PASS_THROUGH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(above, name, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP | Errno::MLINK | Errno::NOTDIR => Errno::AGAIN,
            errno => errno,
        })?;
        made = Some(opened);
    }
    Ok(made)
}

/// Replaces the file `name` by `content`. Copies owner and mode from the `old` file. Its other hard links
/// keep the old content. If `durable`, `content` is synced to disk before the replacement.
pub(super) fn save(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    content: &[u8],
    old: Option<&Stat>,
    durable: bool,
) -> Result<(), Errno> {
    let mut new = TemporaryFile::create(directory, if old.is_some() { 0o600 } else { 0o666 })?;
    let mut file = std::fs::File::from(new.file.try_clone().map_err(|error| errno(&error))?);
    file.write_all(content).map_err(|error| errno(&error))?;
    if let Some(old) = old {
        inherit(&new.file, old)?;
    }
    if durable {
        fsync(&new.file)?;
    }
    new.replace(name)?;
    if durable {
        // The file is already replaced. If this sync fails, only a power loss right now could restore the old
        // file.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let _ = openat(directory, ".", flags, Mode::empty()).and_then(|directory| fsync(&directory));
    }
    Ok(())
}

/// Overwrites `file` with `content`, so that it stays the same inode. Reserves space first, so that a full
/// disk keeps the old content. After a crash or an error, the content may be incomplete.
pub(super) fn overwrite(file: &OwnedFd, content: &[u8], durable: bool) -> Result<(), Errno> {
    let length = content.len() as u64;
    reserve(file, length)?;
    let mut writer = std::fs::File::from(file.try_clone().map_err(|error| errno(&error))?);
    writer.write_all(content).map_err(|error| errno(&error))?;
    ftruncate(file, length)?;
    // Drops set-user-id and set-group-id, because the content is new.
    let old = fstat(file)?;
    if old.st_mode & 0o7000 != 0 {
        fchmod(file, Mode::from_raw_mode(old.st_mode & 0o777))?;
    }
    if durable { fsync(file) } else { Ok(()) }
}

/// Reserves `length` bytes on disk, where the system supports it.
#[cfg(target_os = "linux")]
fn reserve(file: &OwnedFd, length: u64) -> Result<(), Errno> {
    use rustix::fs::{FallocateFlags, fallocate};
    if length == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, length) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        outcome => outcome,
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: &OwnedFd, _: u64) -> Result<(), Errno> {
    Ok(())
}

fn inherit(file: &OwnedFd, old: &Stat) -> Result<(), Errno> {
    // Drops set-user-id and set-group-id, because the content is new.
    let mut mode = old.st_mode & 0o777;
    let new = fstat(file)?;
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid) {
        let (user, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        let kept = fchown(file, Some(user), Some(group)).or_else(|_| fchown(file, None, Some(group)));
        if kept.is_err() {
            // Permissions for the old group do not apply to another group.
            mode &= !0o070;
        }
    }
    fchmod(file, Mode::from_raw_mode(mode))
}

/// A temporary file. Removed on drop unless it has replaced the target.
struct TemporaryFile<'d> {
    directory: BorrowedFd<'d>,
    name: Option<String>,
    file: OwnedFd,
}

impl<'d> TemporaryFile<'d> {
    fn create(directory: BorrowedFd<'d>, mode: RawMode) -> Result<Self, Errno> {
        let name = format!(".narrows-{}.tmp", uuid::Uuid::now_v7().simple());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, &name, flags, Mode::from_raw_mode(mode))?;
        Ok(Self { directory, name: Some(name), file })
    }

    fn replace(&mut self, place: &OsStr) -> Result<(), Errno> {
        if let Some(name) = &self.name {
            renameat(self.directory, name, self.directory, place)?;
            self.name = None;
        }
        Ok(())
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(self.directory.as_fd(), name, AtFlags::empty());
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
