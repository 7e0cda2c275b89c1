//! Leak checks: descriptors, threads, children, processes of a worker's tree, memory.

use std::fs;
use std::time::{Duration, Instant};

/// Time after which everything that has to end must have ended.
const END_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) struct Holdings {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) children: usize,
}

impl Holdings {
    pub(crate) fn now() -> Self {
        let of_tasks = |file: &'static str| {
            let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
            tasks.filter_map(move |task| fs::read_to_string(task.path().join(file)).ok())
        };
        let children = of_tasks("children");
        // Threads of the test harness come and go.
        let ours = |name: &String| name.starts_with("narrows") || name.starts_with("tokio");
        Self {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            threads: of_tasks("comm").filter(ours).count(),
            children: children.map(|text| text.split_whitespace().count()).sum(),
        }
    }

    /// Waits until no resource exceeds the initial number.
    pub(crate) fn restored(self) -> Result<(), String> {
        let within = |now: Self| {
            now.descriptors <= self.descriptors
                && now.threads <= self.threads
                && now.children <= self.children
        };
        eventually(|| {
            let now = Self::now();
            if within(now) { Ok(()) } else { Err(format!("{now:?} is left of {self:?}")) }
        })
    }
}

pub(crate) fn eventually(look: impl Fn() -> Result<(), String>) -> Result<(), String> {
    let since = Instant::now();
    loop {
        match look() {
            Err(wrong) if since.elapsed() > END_TIMEOUT => return Err(wrong),
            Err(_) => std::thread::sleep(Duration::from_millis(20)), // sleep: processes are watched by looking again
            Ok(()) => return Ok(()),
        }
    }
}

pub(crate) fn variable(pid: u32, name: &str) -> Option<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let prefix = format!("{name}=");
    let value = environ.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(prefix.as_bytes()))?;
    String::from_utf8(value.to_vec()).ok()
}

/// Returns the processes in the trees of all workers with this mark.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| variable(*pid, "CHAOS_MARK").as_deref() == Some(mark)).collect()
}

/// Checks that every process of a worker ends with it.
pub(crate) fn no_orphans(mark: &str) -> Result<(), String> {
    eventually(|| {
        let alive = marked(mark);
        let of = |pid: u32| variable(pid, "CHAOS_OF").and_then(|of| of.parse::<u32>().ok());
        let orphans: Vec<u32> =
            alive.iter().copied().filter(|pid| of(*pid).is_some_and(|of| !alive.contains(&of))).collect();
        if orphans.is_empty() { Ok(()) } else { Err(format!("{orphans:?} have outlived their workers")) }
    })
}

pub(crate) fn none_alive(mark: &str) -> Result<(), String> {
    eventually(|| {
        let alive = marked(mark);
        if alive.is_empty() { Ok(()) } else { Err(format!("{alive:?} have outlived the bus")) }
    })
}

pub(crate) fn memory() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    (field("VmRSS:"), field("VmHWM:"))
}
