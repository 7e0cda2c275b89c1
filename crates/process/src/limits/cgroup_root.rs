//! Finds the parent for new groups: the control group of this program, so that its own limits apply too.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, getxattr};
use rustix::process::geteuid;

use super::Controller;

/// Last part of the name of the child group into which this program moves. The process id precedes it.
pub(super) const OWN_GROUP_NAME: &str = "self";
pub(super) const GROUP_PREFIX: &str = "narrows-";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// The control group of this program in the hierarchy of one controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CgroupRoot {
    pub(super) controller: Controller,
    pub(super) version: Version,
    pub(super) path: PathBuf,
    /// `true` if the group is the root of the visible hierarchy.
    pub(super) top: bool,
}

impl CgroupRoot {
    /// Finds the program's group. Returns a reason if there is none.
    pub(super) fn find(controller: Controller) -> Result<Self, String> {
        let read = |file: &str| {
            let text = fs::read(file).map_err(|error| format!("{file}: {error}"))?;
            Ok::<_, String>(String::from_utf8_lossy(&text).into_owned())
        };
        let (mounts, groups) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
        let mut place = Self::locate(controller, &mounts, &groups)?;
        // The program may already have moved into a child of its original group.
        let moved = format!("{GROUP_PREFIX}{}-{OWN_GROUP_NAME}", std::process::id());
        if place.path.file_name().is_some_and(|name| *name == *moved) {
            place.path.pop();
            place.top = Self::locate(controller, &mounts, "0::/").is_ok_and(|top| top.path == place.path);
        }
        Ok(place)
    }

    /// Finds the group from the kernel's lists of mounts and groups.
    fn locate(controller: Controller, mounts: &str, groups: &str) -> Result<Self, String> {
        let mut second = None;
        for mount in mounts.lines().filter_map(Mount::read) {
            match mount.kind {
                "cgroup" if mount.options.split(',').any(|option| option == controller.name()) => {
                    let group = group(groups, |controllers| {
                        controllers.split(',').any(|name| name == controller.name())
                    });
                    return mount.cgroup_root(controller, Version::One, group);
                }
                "cgroup2" => _ = second.get_or_insert(mount),
                _ => {}
            }
        }
        let mount = second.ok_or("no control groups are mounted")?;
        mount.cgroup_root(controller, Version::Two, group(groups, str::is_empty))
    }

    /// Checks that child groups can probably be created.
    pub(super) fn check(&self) -> Result<(), String> {
        self.check_ownership()?;
        if self.version == Version::Two
            && !self.is_divided()?
            && self.path.join("cgroup.type").exists()
            && self.lines("cgroup.procs")?.iter().any(|pid| *pid != std::process::id().to_string())
        {
            return Err(self.describe_crowded());
        }
        Ok(())
    }

    /// Prepares the group for children with limits. In version 2 a group with such children must have no
    /// processes.
    pub(super) fn divide(&self) -> Result<(), String> {
        self.check_ownership()?;
        if self.version == Version::One || self.is_divided()? {
            return Ok(());
        }
        let divide = || write(&self.path.join("cgroup.subtree_control"), &format!("+{}", self.controller));
        match divide() {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) => return Err(self.explain(&error)),
        }
        let own = std::process::id().to_string();
        let part = self.path.join(format!("{GROUP_PREFIX}{own}-{OWN_GROUP_NAME}"));
        match fs::create_dir(&part) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(self.explain(&error)),
            _ => {}
        }
        let moved = write(&part.join("cgroup.procs"), &own).and_then(|()| divide());
        if let Err(error) = moved {
            _ = write(&self.path.join("cgroup.procs"), &own);
            _ = fs::remove_dir(&part);
            return Err(match error.kind() {
                io::ErrorKind::ResourceBusy => self.describe_crowded(),
                _ => self.explain(&error),
            });
        }
        Ok(())
    }

    /// Checks that the group may be divided. A group that is not delegated belongs to a manager, which may
    /// count or end the group's processes, and would miss those in child groups.
    fn check_ownership(&self) -> Result<(), String> {
        let metadata = fs::metadata(&self.path).map_err(|error| self.explain(&error))?;
        let user = geteuid();
        let given = !user.is_root() && metadata.uid() == user.as_raw();
        let marked = ["user.delegate", "trusted.delegate"].iter().any(|name| {
            let mut value = [0; 2];
            getxattr(&self.path, *name, &mut value).is_ok_and(|len| value.get(..len) == Some(b"1"))
        });
        if !(self.top || given || marked) {
            let path = self.path.display();
            return Err(format!("{path} is not delegated to this program (systemd: Delegate=yes)"));
        }
        access(&self.path, Access::WRITE_OK).map_err(|errno| self.explain(&errno.into()))?;
        match self.version {
            Version::One
                if !self.top && self.lines("memory.use_hierarchy").is_ok_and(|lines| lines == ["0"]) =>
            {
                Err(format!("{} does not support limits for child groups", self.path.display()))
            }
            Version::Two if !self.lists_controller("cgroup.controllers")? => {
                Err(format!("{} does not provide it", self.path.display()))
            }
            _ => Ok(()),
        }
    }

    fn is_divided(&self) -> Result<bool, String> {
        self.lists_controller("cgroup.subtree_control")
    }

    fn lists_controller(&self, file: &str) -> Result<bool, String> {
        let lines = self.lines(file)?;
        Ok(lines.iter().any(|line| line.split(' ').any(|word| word == self.controller.name())))
    }

    fn lines(&self, file: &str) -> Result<Vec<String>, String> {
        let text = fs::read_to_string(self.path.join(file)).map_err(|error| self.explain(&error))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn describe_crowded(&self) -> String {
        let path = self.path.display();
        format!(
            "{path} has other processes too (systemd-run --scope -p Delegate=yes gives this program its own)"
        )
    }

    pub(super) fn explain(&self, error: &io::Error) -> String {
        format!("{}: {error}", self.path.display())
    }
}

/// Writes to a kernel file, which must exist.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

/// Returns the path of this process's group in the first hierarchy with a matching controller.
fn group(groups: &str, wanted: impl Fn(&str) -> bool) -> Option<&str> {
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        wanted(controllers).then_some(path)
    })
}

struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (fields, rest) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let mut rest = rest.split(' ');
        Some(Self { root: fields.next()?, point: fields.next()?, kind: rest.next()?, options: rest.nth(1)? })
    }

    /// Returns the directory of the process's group below one mount, if the mount shows the group.
    fn cgroup_root(
        &self,
        controller: Controller,
        version: Version,
        group: Option<&str>,
    ) -> Result<CgroupRoot, String> {
        let group = group.ok_or("this program is not in a control group")?;
        let root = unescaped(self.root);
        let inside = Path::new(group).strip_prefix(&root).ok();
        let inside = inside.filter(|path| !path.components().any(|part| part.as_os_str() == ".."));
        let inside = inside.ok_or_else(|| format!("the control group {group} is not visible"))?;
        let top = inside.as_os_str().is_empty();
        let point = unescaped(self.point);
        Ok(CgroupRoot { controller, version, path: if top { point } else { point.join(inside) }, top })
    }
}

/// Decodes a path of `mountinfo`, which escapes blanks in octal.
fn unescaped(path: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
39 31 0:36 /box /sys/fs/cgroup/my\\040pids rw,relatime - cgroup cgroup rw,cpu,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_own_group_is_found_below_its_mount() {
        use Controller::{Memory, Pids};
        use Version::{One, Two};
        let groups = "8:cpu,pids:/box\n4:memory:/a/b:c\n1:name=systemd:/x\n0::/\n";
        let check = |controller, mounts, groups, expected: (Version, &str, bool)| {
            let place = CgroupRoot::locate(controller, mounts, groups).unwrap();
            assert_eq!((place.version, place.path.to_str().unwrap(), place.top), expected);
        };
        check(Memory, HYBRID, groups, (One, "/sys/fs/cgroup/memory/a/b:c", false));
        check(Pids, HYBRID, groups, (One, "/sys/fs/cgroup/my pids", true));
        check(Pids, HYBRID, "8:cpu,pids:/box/in\n", (One, "/sys/fs/cgroup/my pids/in", false));
        check(Memory, UNIFIED, "0::/user.slice/a.scope\n", (Two, "/sys/fs/cgroup/user.slice/a.scope", false));
        check(Pids, UNIFIED, "0::/\n", (Two, "/sys/fs/cgroup", true));
    }

    #[test]
    fn a_missing_group_is_reported() {
        let check = |mounts, groups, expected: &str| {
            let why = CgroupRoot::locate(Controller::Pids, mounts, groups).unwrap_err();
            assert!(why.contains(expected), "{why}");
        };
        check("", "0::/\n", "no control groups are mounted");
        check("broken", "0::/\n", "no control groups are mounted");
        check(UNIFIED, "8:pids:/\n", "not in a control group");
        check(HYBRID, "8:pids:/elsewhere\n", "is not visible");
        check(UNIFIED, "0::/../other\n", "is not visible");
    }

    #[test]
    fn a_group_of_another_owner_is_not_divided() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let place = CgroupRoot { controller: Controller::Memory, version: Version::One, path, top: false };
        // The test runs as root, who owns every group. Only ownership by another user proves delegation.
        match place.check_ownership() {
            Err(why) => assert!(geteuid().is_root() && why.contains("not delegated"), "{why}"),
            Ok(()) => assert!(!geteuid().is_root()),
        }
        assert_eq!(CgroupRoot { top: true, ..place }.check_ownership(), Ok(()));
    }

    #[test]
    fn version_two_lists_its_controllers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let place =
            CgroupRoot { controller: Controller::Pids, version: Version::Two, path: path.clone(), top: true };
        fs::write(path.join("cgroup.controllers"), "cpu memory\n").unwrap();
        fs::write(path.join("cgroup.subtree_control"), "\n").unwrap();
        assert!(place.check().unwrap_err().contains("does not provide it"));
        fs::write(path.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        assert_eq!(place.check(), Ok(()), "the root group can have processes");
        fs::write(path.join("cgroup.type"), "domain\n").unwrap();
        fs::write(path.join("cgroup.procs"), format!("{}\n1\n", std::process::id())).unwrap();
        assert!(place.check().unwrap_err().contains("has other processes too"));
        fs::write(path.join("cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
        assert_eq!(place.check(), Ok(()));
        assert_eq!(place.is_divided(), Ok(false));
        fs::write(path.join("cgroup.subtree_control"), "memory pids\n").unwrap();
        assert_eq!(place.is_divided(), Ok(true));
        assert_eq!(place.divide(), Ok(()));
    }
}
